"""The parts of a member that differ by Kafka version, for Kafka 0.8 and later (`consumerd.member.consumer.backends`).

Strategy: a module of its own, which a member of 0.7 never imports. A member of a group in Kafka imports nothing of
ZooKeeper with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Any

from consumerd.base.ports import ZooKeeper
from consumerd.group.rules import V08Rules
from consumerd.member.fetch.pool import Fetching, FetchPool
from consumerd.member.fetch.v08.brokers import V08Brokers
from consumerd.member.offsets.choice import OffsetSettings, make_store
from consumerd.member.offsets.guards import Ownership
from consumerd.member.offsets.store import OffsetStore
from consumerd.net.client.cluster import ClusterClient

if TYPE_CHECKING:
    from consumerd.group.coordinated_base import BrokerMember
    from consumerd.member.consumer.running_member import RunningMember
    from consumerd.member.consumer.snapshot import SnapshotReader
    from consumerd.net.cluster.topic_nodes import TopicNodes


class V08Backend:
    """Kafka 0.8 and later. `client` stays the caller's, who closes it after the member's `run`.

    `protocol`: the client begins with the brokers in ZooKeeper that listen for this security protocol (`PLAINTEXT`,
    `SSL`, ...); None leaves it the brokers that it was made with. `offsets`: by default in ZooKeeper.
    """

    def __init__(
        self,
        client: ClusterClient,
        rules: V08Rules | None = None,
        *,
        protocol: str | None = None,
        offsets: OffsetSettings | None = None,
    ) -> None:
        self._client = client
        self._protocol = protocol
        self._offsets = offsets or OffsetSettings(storage="zookeeper")
        self._topics: TopicNodes | None = None
        self.rules = rules or V08Rules()

    @property
    def reader(self) -> type[SnapshotReader]:
        """The reader of the group's snapshots."""
        from consumerd.member.consumer.snapshot import V08SnapshotReader  # noqa: PLC0415 - not of a group in Kafka

        return V08SnapshotReader

    def fetching(self, zk: ZooKeeper, owner: RunningMember[Any], rng: Random) -> Fetching:
        """Return a pool that fetches from leaders. Brokers in ZooKeeper are watched: one of 0.7 ends the member."""
        from consumerd.net.cluster.directory import V08BrokerDirectory  # noqa: PLC0415 - a broker that coordinates
        from consumerd.net.cluster.topic_nodes import TopicNodes  # noqa: PLC0415 - needs none of ZooKeeper

        directory = V08BrokerDirectory(zk, clock=owner.clock)
        protocol = self._protocol
        if protocol is not None:
            directory.subscribe(lambda _: self._client.begin_with(directory.addresses(protocol)))
        self._topics = TopicNodes(zk, owner.clock)
        pool = FetchPool(V08Brokers(self._client, owner.settings.fetch, owner.clock, rng, owner, self._topics))
        return Fetching(pool, [directory.run, pool.run], directory.count)

    def store(self, zk: ZooKeeper, group: str, ownership: Ownership) -> OffsetStore:
        """Return the configured store; the one in ZooKeeper is fenced by the owner nodes."""
        return make_store(
            self._offsets,
            group,
            client=self._client,
            zk=zk,
            claimed=True,
            ownership=ownership,
            topics=self._topics,
        )

    def cluster(self, zk: ZooKeeper) -> Callable[[], Awaitable[str | None]]:
        """Return what tells the cluster's id; before 0.10.1 the name of the tree in ZooKeeper."""
        from consumerd.net.cluster.directory import TreeName  # noqa: PLC0415 - as above

        tree = TreeName(zk)

        async def name() -> str | None:
            return self._client.metadata.cluster_id or await tree.read()

        return name


class ClusterBackend:
    """Kafka 0.8 and later, for members that ZooKeeper does not coordinate. `client` and `zk` stay the caller's.

    `offsets`: by default in Kafka. `zk` is a started session, needed only where they are in ZooKeeper, too.
    """

    def __init__(
        self, client: ClusterClient, *, offsets: OffsetSettings | None = None, zk: ZooKeeper | None = None
    ) -> None:
        self.client = client
        self._offsets = offsets or OffsetSettings()
        self._zk = zk

    def pool(self, owner: RunningMember[Any], rng: Random) -> FetchPool:
        """Return the pool that fetches partitions from their leaders."""
        return FetchPool(V08Brokers(self.client, owner.settings.fetch, owner.clock, rng, owner))

    def store(self, group: str, membership: BrokerMember | None = None) -> OffsetStore:
        """Return the offset store; it commits as `membership`, if the group has a coordinator."""
        return make_store(self._offsets, group, client=self.client, zk=self._zk, membership=membership)

    def brokers(self) -> int | None:
        """Return the number of brokers in the latest metadata; None before there are any."""
        return len(self.client.metadata.nodes) or None

    async def cluster(self) -> str | None:
        """Return the cluster's id; None before 0.10.1."""
        return self.client.metadata.cluster_id

"""Choosing and making the store that keeps the offsets of a group.

Strategy: the store is requested by name; its parts (a session, a client, a membership, whether partitions are claimed
in ZooKeeper) come from the consumer. Of two stores the one that knows the group's members goes
first: ZooKeeper where partitions are claimed there, Kafka everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from consumerd.base.partition import TopicPartition
from consumerd.base.ports import ZooKeeper
from consumerd.base.settings.group import CommitSection
from consumerd.base.settings.setting import Tuned
from consumerd.member.offsets.guards import OwnedGuard, Ownership
from consumerd.member.offsets.store import (
    NO_NOTES,
    CommitResult,
    OffsetStore,
    UnclaimedZooKeeperOffsetStore,
    ZooKeeperOffsetStore,
)

if TYPE_CHECKING:
    from consumerd.group.coordinated_base import BrokerMember
    from consumerd.member.offsets.store import Notes
    from consumerd.net.client.cluster import ClusterClient
    from consumerd.net.cluster.topic_nodes import TopicNodes

Storage = Literal["zookeeper", "kafka", "both", "none"]


class OffsetSettings(CommitSection):
    """How offsets are committed, and the choice of the store."""

    storage: Storage = Tuned("kafka")

    @property
    def in_zookeeper(self) -> bool:
        """Whether a session is needed."""
        return self.storage in ("zookeeper", "both")

    @property
    def in_kafka(self) -> bool:
        """Whether a client of brokers is needed."""
        return self.storage in ("kafka", "both")


class NoOffsets(OffsetStore):
    """Stores nothing and reports success: the handler stores offsets itself, or they are not needed."""

    async def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return no offsets."""
        return {}

    async def commit(
        self, positions: Mapping[TopicPartition, int], *, session_id: int, notes: Notes = NO_NOTES
    ) -> CommitResult:
        """Report success."""
        return CommitResult(frozenset(positions), frozenset())


def make_store(
    settings: OffsetSettings,
    group: str,
    *,
    client: ClusterClient | None = None,
    zk: ZooKeeper | None = None,
    membership: BrokerMember | None = None,
    claimed: bool = False,
    ownership: Ownership | None = None,
    topics: TopicNodes | None = None,
) -> OffsetStore:
    """Make the store of `group`. `settings` decide whether it needs `client`, `zk`. `membership`: with a coordinator.

    `claimed`: the group's members claim their partitions in ZooKeeper; `ownership` knows which are ours, and
    `topics` when topics were created, which shows offsets of former ones.
    """
    if settings.storage == "none":
        return NoOffsets()
    in_zookeeper: OffsetStore | None = None
    in_kafka: OffsetStore | None = None
    if settings.in_zookeeper:
        if zk is None:
            raise ValueError("offsets in ZooKeeper need a session")
        if claimed:
            in_zookeeper = ZooKeeperOffsetStore(zk, group, OwnedGuard(zk, group, ownership), topics)
        else:
            in_zookeeper = UnclaimedZooKeeperOffsetStore(zk, group)
    if settings.in_kafka:
        if client is None:
            raise ValueError("offsets in Kafka need a client")
        # A member of 0.7 never needs these.
        from consumerd.member.offsets.kafka_store import ClaimedStore, KafkaOffsetStore  # noqa: PLC0415

        if claimed and in_zookeeper is None:
            if zk is None:
                raise ValueError("partitions that are claimed in ZooKeeper need a session")
            return ClaimedStore(client, group, zk, ownership, settings)
        in_kafka = KafkaOffsetStore(client, group, membership, settings)
    if in_zookeeper is not None and in_kafka is not None:
        from consumerd.member.offsets.dual_store import DualOffsetStore  # noqa: PLC0415 - as above

        if claimed:
            return DualOffsetStore(group, in_zookeeper, in_kafka, "Kafka")
        return DualOffsetStore(group, in_kafka, in_zookeeper, "ZooKeeper")
    store = in_zookeeper or in_kafka
    assert store is not None  # one of the two, as there are no other names
    return store

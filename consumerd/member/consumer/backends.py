"""The parts of a member that differ by Kafka version: the dialect of its group, its brokers, and its offset store.

Strategy: one value, chosen where the configuration is read; the member in ZooKeeper (`GroupConsumer`) is the same for
both. In 0.7 each broker is found in ZooKeeper and fetched from as it is. Since 0.8 partitions move, so a client of the
cluster follows their leaders by METADATA; ZooKeeper only names the first brokers if nothing else does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

from consumerd.base.ports import ZooKeeper
from consumerd.group.rules import V07Rules
from consumerd.member.consumer.snapshot import V07SnapshotReader
from consumerd.member.fetch.pool import Fetching, FetchPool
from consumerd.member.fetch.v07.brokers import V07Brokers
from consumerd.member.offsets.choice import OffsetSettings, make_store
from consumerd.member.offsets.guards import Ownership
from consumerd.member.offsets.store import OffsetStore
from consumerd.net.cluster.directory import BrokerDirectory, TreeName
from consumerd.net.connect import Connector

if TYPE_CHECKING:
    from consumerd.member.consumer.backends_v08 import V08Backend
    from consumerd.member.consumer.running_member import RunningMember


#: One dialect, for a member of a group in ZooKeeper.
GroupBackend: TypeAlias = "V07Backend | V08Backend"


class V07Backend:
    """Kafka 0.7. `connect` opens a connection to a broker."""

    #: Reads the group's snapshots.
    reader = V07SnapshotReader

    def __init__(self, connect: Connector) -> None:
        self._connect = connect
        self.rules = V07Rules()

    def fetching(self, zk: ZooKeeper, owner: RunningMember[Any], rng: Random) -> Fetching:
        """Return a pool that finds brokers by their addresses in ZooKeeper."""
        directory = BrokerDirectory(zk, clock=owner.clock)
        pool = FetchPool(
            V07Brokers(self._connect, directory, owner.budget, owner.settings.fetch, owner.clock, rng, owner)
        )
        return Fetching(pool, [directory.run, pool.run], directory.count)

    def store(self, zk: ZooKeeper, group: str, ownership: Ownership) -> OffsetStore:
        """Return the store in ZooKeeper, the only one of 0.7."""
        return make_store(OffsetSettings(storage="zookeeper"), group, zk=zk, claimed=True, ownership=ownership)

    def cluster(self, zk: ZooKeeper) -> Callable[[], Awaitable[str | None]]:
        """Return what reads the name of the tree in ZooKeeper."""
        return TreeName(zk).read

"""The parts of a member that differ by Kafka version: the dialect of its group, its brokers, and its offset store.

Strategy: one value, chosen where the configuration is read; the member in ZooKeeper (`GroupConsumer`) is the same for
both. In 0.7 each broker is found in ZooKeeper and fetched from as it is. Since 0.8 partitions move, so a client of the
cluster follows their leaders by METADATA; ZooKeeper only names the first brokers if nothing else does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol

from consumerd.base.ports import ZooKeeper
from consumerd.group.rules import GroupRules, V07Rules
from consumerd.member.consumer.protocols import Fetching, FetchOwner
from consumerd.member.consumer.snapshot import SnapshotReader, V07SnapshotReader
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.fetch.v07.brokers import V07Brokers
from consumerd.member.offsets.choice import OffsetSettings, make_store
from consumerd.member.offsets.guards import Ownership
from consumerd.member.offsets.store import OffsetStore
from consumerd.net.cluster.directory import BrokerDirectory
from consumerd.net.cluster.names import TreeName
from consumerd.net.connect import Connector


class GroupBackend(Protocol):
    """One dialect, for a member of a group in ZooKeeper."""

    @property
    def rules(self) -> GroupRules:
        """The group's dialect."""
        ...

    @property
    def reader(self) -> type[SnapshotReader]:
        """The reader of the group's snapshots."""
        ...

    def fetching(self, zk: ZooKeeper, owner: FetchOwner, rng: Random) -> Fetching:
        """Return the pool that fetches partitions."""
        ...

    def store(self, zk: ZooKeeper, group: str, ownership: Ownership) -> OffsetStore:
        """Return the offset store. `ownership` knows which partitions this member has claimed."""
        ...

    def cluster(self, zk: ZooKeeper) -> Callable[[], Awaitable[str | None]]:
        """Return what tells the cluster's name (`consumerd.handlers.HandlerContext.cluster`)."""
        ...


class V07Backend:
    """Kafka 0.7. `connect` opens a connection to a broker."""

    reader = V07SnapshotReader

    def __init__(self, connect: Connector) -> None:
        self._connect = connect
        self.rules = V07Rules()

    def fetching(self, zk: ZooKeeper, owner: FetchOwner, rng: Random) -> Fetching:
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

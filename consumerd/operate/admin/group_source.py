"""The groups of a cluster of any dialect, seen and changed from outside; those of Kafka 0.7 are here.

Strategy: tools work on a `GroupSource` and its snapshots, and do not ask which Kafka it is. The sources of 0.8 and
later are in `consumerd.operate.admin.v08`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, Never

from consumerd.base.calls import read_all
from consumerd.base.errors import BrokerError, NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import ZooKeeper
from consumerd.group.assignment import partitions_of
from consumerd.member.fetch.v07.boundaries import SearchReach, begins_message, boundary_before
from consumerd.net.cluster.groups import GroupView
from consumerd.net.cluster.view import ClusterView
from consumerd.net.connect import Connector
from consumerd.operate.admin.changes import ChangePlanner, OffsetChange, V07ChangePlanner
from consumerd.operate.admin.diagnosis_offsets import DiagnosisInput
from consumerd.operate.admin.editing import write_changes
from consumerd.operate.admin.errors import ArgumentError
from consumerd.operate.admin.logs import BrokerLogs, GroupLogs, LogRange, Position
from consumerd.operate.admin.removal import GroupRemains, delete_tree, read_tree, require_dead
from consumerd.operate.admin.snapshot import GroupSnapshot, Topics, V07GroupSnapshot, read_v07_snapshot
from consumerd.wire.errors import WireError
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.values import RegisteredBroker

if TYPE_CHECKING:
    from consumerd.operate.admin.v08.topic_nodes import TopicChanges

#: Bytes before an offset that are searched for the message that contains it: four times the largest by default.
_REACH: Final = SearchReach(walk=4 << 20, back=4 << 20)
#: Offsets that are checked at once.
_AT_ONCE: Final = 8


class GroupSource(ABC):
    """A cluster, and the groups that are coordinated in one place. Methods raise ZooKeeperError and BrokerError."""

    dialect: ClassVar[Dialect]
    #: Where the groups are nodes, which can be mended; None where brokers keep them.
    zk: ZooKeeper | None = None

    @property
    @abstractmethod
    def logs(self) -> GroupLogs:
        """Queries the brokers; those of 0.7 as the last snapshot found them."""

    @abstractmethod
    async def names(self) -> list[str]:
        """The groups, sorted, also dead ones."""

    async def prepare(self, groups: Sequence[str]) -> None:  # noqa: B027 - nothing where ZooKeeper has all of them
        """Look up at once which brokers have these groups, before a snapshot of each."""

    @abstractmethod
    async def snapshot(self, group: str, *, brokers: bool = True) -> GroupSnapshot:
        """A snapshot of a group. Raises NotFoundError for one that never was, DialectError for another dialect.

        `brokers`: whether it needs the live brokers of 0.7.
        """

    async def committed(self, group: str, topics: Collection[str]) -> GroupSnapshot:
        """As `snapshot`, for the committed offsets of `topics`, of all without any: the rest may be missing."""
        del topics
        return await self.snapshot(group, brokers=False)

    @abstractmethod
    async def unknown(self, group: str) -> GroupSnapshot:
        """The snapshot of a group that does not exist yet."""

    async def snapshot_or_unknown(self, group: str) -> GroupSnapshot:
        """A snapshot of a group that may not exist yet."""
        try:
            return await self.snapshot(group)
        except NotFoundError:
            return await self.unknown(group)

    @abstractmethod
    async def planner(self, snapshot: GroupSnapshot, topics: Collection[str]) -> ChangePlanner:
        """Plans changes of the offsets of the group, of partitions of `topics`."""

    @abstractmethod
    async def partitions(self, snapshot: GroupSnapshot, topics: Sequence[str]) -> list[TopicPartition]:
        """Those of `topics`, by default of the group's: all existing ones, and those committed that no longer exist."""

    @abstractmethod
    async def addresses(self) -> dict[int, str]:
        """`host:port` of the live brokers, by id."""

    @abstractmethod
    async def topics(self, names: Iterable[str] | None = None) -> Mapping[str, Mapping[int, object]]:
        """All topics, or those of `names` that exist: by number of the partition, or by broker in 0.7."""

    @abstractmethod
    async def topic_changes(self) -> TopicChanges:
        """Creates and deletes topics. Raises ArgumentError where this is done in another way, NotFoundError without
        brokers.
        """

    @abstractmethod
    async def diagnosis_input(self, group: str) -> DiagnosisInput:
        """Everything that the diagnosis of a group needs, with the time of the event loop. Raises NotFoundError.

        Data that a broker does not return are missing, with the reason; the rest is still diagnosed.
        """

    @abstractmethod
    async def remains(self, group: str) -> GroupRemains:
        """All that there is of a dead group. Raises NotFoundError, RefusedError while it has members."""

    @abstractmethod
    async def delete(self, remains: GroupRemains) -> None:
        """Delete what `remains` found. Raises ChangedMeanwhileError, RefusedError where a member joined since."""

    @abstractmethod
    async def write(self, changes: Sequence[OffsetChange], *, force: bool) -> int:
        """Write the changes that move anything; returns how many. Raises ChangedMeanwhileError, RefusedError."""


class GroupNodes(GroupSource):
    """The groups of a cluster of any dialect that are nodes in ZooKeeper."""

    zk: ZooKeeper

    async def remains(self, group: str) -> GroupRemains:
        tree = await read_tree(self.zk, group)
        require_dead(group, tree)
        return GroupRemains(group, (await self.snapshot(group, brokers=False)).view.offsets, tree)

    async def delete(self, remains: GroupRemains) -> None:
        """As of `GroupSource`, fenced by the versions of the nodes."""
        await delete_tree(self.zk, remains.group, remains.nodes)

    async def write(self, changes: Sequence[OffsetChange], *, force: bool) -> int:
        """As `write_changes`: fenced by owner nodes and versions, unless forced."""
        return await write_changes(self.zk, changes, force=force)


class V07Groups(GroupNodes):
    """The groups of Kafka 0.7 in ZooKeeper; `connect` connects to brokers."""

    dialect = Dialect.V07

    def __init__(self, zk: ZooKeeper, connect: Connector) -> None:
        self.zk = zk
        self._view = ClusterView(zk)
        self._connect = connect
        self._brokers: Mapping[int, RegisteredBroker] = {}
        #: The offsets that were looked at before, and where the messages around them begin.
        self._checked: dict[Position, int | None] = {}

    @property
    def logs(self) -> BrokerLogs:
        return BrokerLogs(self._brokers, self._connect)

    async def names(self) -> list[str]:
        return await self._view.read_groups()

    async def snapshot(self, group: str, *, brokers: bool = True) -> V07GroupSnapshot:
        snapshot = await read_v07_snapshot(self.zk, group, brokers=brokers)
        self._brokers = snapshot.brokers
        return snapshot

    async def committed(self, group: str, topics: Collection[str]) -> V07GroupSnapshot:
        """As of `GroupSource`; no node but those of the offsets is read."""
        return V07GroupSnapshot(await self._view.read_committed(group, topics), {})

    async def addresses(self) -> dict[int, str]:
        """As of `GroupSource`; `logs` queries these brokers."""
        self._brokers = await self._view.read_brokers()
        return {number: f"{broker.host}:{broker.port}" for number, broker in self._brokers.items()}

    async def topics(self, names: Iterable[str] | None = None) -> Topics:
        """Topic -> broker id -> number of partitions."""
        return await self._view.read_topics(names)

    async def topic_changes(self) -> Never:
        """Raises ArgumentError."""
        raise ArgumentError(
            "brokers of Kafka 0.7 delete no topics (stop them, and remove the topic's directories), and create one "
            "when the first message comes"
        )

    async def unknown(self, group: str) -> V07GroupSnapshot:
        await self.addresses()
        return V07GroupSnapshot(GroupView(group), {}, self._brokers)

    async def planner(self, snapshot: GroupSnapshot, topics: Collection[str]) -> V07ChangePlanner:
        assert isinstance(snapshot, V07GroupSnapshot)
        snapshot = replace(snapshot, topics=await self.topics(topics), brokers=self._brokers)
        return V07ChangePlanner(snapshot, self.logs)

    async def partitions(self, snapshot: GroupSnapshot, topics: Sequence[str]) -> list[TopicPartition]:
        """As of `GroupSource`, in 0.7's order of names."""
        assert isinstance(snapshot, V07GroupSnapshot)
        registered = await self.topics(topics) if topics else snapshot.topics
        found = {partition for topic, counts in registered.items() for partition in partitions_of(topic, counts)}
        found |= {partition for partition in snapshot.view.offsets if not topics or partition.topic in topics}
        return sorted(found, key=TopicPartition.order)

    async def diagnosis_input(self, group: str) -> DiagnosisInput:
        snapshot = await self.snapshot(group)
        logs = self.logs
        ranges = await logs.ranges(filter(snapshot.exists, snapshot.partitions()))
        within = {
            (partition, offset)
            for partition, offset in snapshot.view.offsets.items()
            if isinstance(known := ranges.get(partition), LogRange) and known.earliest < offset < known.end
        }
        new = within - self._checked.keys()
        self._checked |= await read_all(new, lambda place: _message_around(logs, *place), at_once=_AT_ONCE)
        inside = {place[0]: start for place in sorted(within) if (start := self._checked[place]) is not None}
        now = asyncio.get_running_loop().time()
        return DiagnosisInput(snapshot, ranges, now, inside=inside, registered=snapshot.brokers.keys())


async def _message_around(logs: BrokerLogs, partition: TopicPartition, offset: int) -> int | None:
    """Where the message begins that contains `offset`; None if one begins there, or where that cannot be found out."""
    try:
        if await begins_message(logs, partition, offset, reach=_REACH):
            return None
        start = await boundary_before(logs, partition, offset, reach=_REACH)
    except (BrokerError, WireError):
        return None  # a broker that does not answer has a finding of its own; damage is for `log verify`
    return start if start < offset else None

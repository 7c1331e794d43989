"""Plans changes of committed offsets, and checks them. Nothing is written here.

Strategy: every wanted change becomes an `OffsetChange` with the result of its check. A *problem* stops all of them
unless forced: the offset is outside of the log, inside a message, or cannot be determined. A *note* stops nothing:
where the broker cannot be asked, the offset is trusted. An offset that stays, or is an end of the log, is not checked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from consumerd.base.calls import read_all
from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.v07.boundaries import begins_message, boundary_before
from consumerd.operate.admin.diagnosis_offsets import inside_words
from consumerd.operate.admin.logs import BrokerLogs, GroupLogs, LogRange, LookupFailure, OffsetAtTime
from consumerd.operate.admin.snapshot import GroupSnapshot, V07GroupSnapshot
from consumerd.wire.errors import WireError
from consumerd.wire.registry.paths import offset_path

#: Members that commit to brokers do not read the offsets in ZooKeeper.
KEPT_BY_BROKER: Final = "a broker keeps its offset (offsets.storage=kafka): give --bootstrap-server to change it there"
#: Partitions whose logs are looked into at the same time.
AT_ONCE = 8


class OffsetChange(NamedTuple):
    """One partition's offset. None: no node. `version` is the node's (None: it does not exist)."""

    group: str
    partition: TopicPartition
    before: int | None
    after: int | None
    version: int | None
    #: The reason why it should not be done.
    problem: str | None = None
    #: A remark for the user.
    note: str | None = None
    #: `after` could not be found out, so that not even force can do it.
    unknown: bool = False

    @property
    def moves(self) -> bool:
        """Whether the offset would change."""
        unreadable = self.before is None and self.version is not None
        return not self.unknown and (unreadable or self.before != self.after)


class OffsetTargetKind(Enum):
    """The rule by which a new offset is determined."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    SHIFT = "shift"
    #: The committed offset, moved into the log if it is outside; the end of the log if none is committed.
    CURRENT = "current"
    TIME = "time"


class OffsetTarget(NamedTuple):
    """A new offset: `value` is an offset, bytes to shift by (negative: back), or milliseconds since 1970."""

    kind: OffsetTargetKind
    value: int = 0


class OffsetCheck(NamedTuple):
    """The problems of a new offset, and notes about it."""

    problem: str | None = None
    note: str | None = None


class ChangePlanner:
    """Plans changes of one group's offsets; `logs` queries brokers. Each offset within a log is a place to start at."""

    def __init__(self, snapshot: GroupSnapshot, logs: GroupLogs) -> None:
        self._snapshot = snapshot
        self._view = snapshot.view
        self._logs = logs

    async def set_to(self, wanted: Mapping[TopicPartition, int | None]) -> list[OffsetChange]:
        """Change each partition to the offset that is named; None deletes it."""
        ranges = await self._ranges(partition for partition, offset in wanted.items() if offset is not None)

        async def one(partition: TopicPartition) -> OffsetChange:
            after = wanted[partition]
            if (refusal := self._refusal(partition, delete=after is None)) is not None:
                return self._unknown(partition, refusal)
            change = self._change(partition, after)
            if after is None or not change.moves:
                return change
            return change._replace(**(await self._check(partition, after, ranges[partition]))._asdict())

        return await self._each(wanted, one)

    async def reset(self, partitions: Iterable[TopicPartition], target: OffsetTarget) -> list[OffsetChange]:
        """Change each partition to `target`."""
        wanted = list(dict.fromkeys(partitions))
        if target.kind is OffsetTargetKind.OFFSET:
            return await self.set_to(dict.fromkeys(wanted, target.value))
        ranges = await self._ranges(wanted)
        answering = {partition: known for partition, known in ranges.items() if isinstance(known, LogRange)}
        by_time = await self._logs.at_time(answering, target.value) if target.kind is OffsetTargetKind.TIME else {}

        async def one(partition: TopicPartition) -> OffsetChange:
            known = ranges[partition]
            if (refusal := self._refusal(partition)) is not None:
                return self._unknown(partition, refusal)
            if isinstance(known, LookupFailure):
                return self._unknown(partition, known.reason)
            if target.kind is OffsetTargetKind.TIME:
                return self._at_time(partition, by_time[partition])
            is_committed = self._view.offsets.get(partition) is not None
            if target.kind is OffsetTargetKind.SHIFT or (target.kind is OffsetTargetKind.CURRENT and is_committed):
                return await self._shifted(partition, target.value, known)
            return self._change(partition, known.earliest if target.kind is OffsetTargetKind.EARLIEST else known.end)

        return await self._each(wanted, one)

    async def _shifted(self, partition: TopicPartition, by: int, known: LogRange) -> OffsetChange:
        before = self._view.offsets.get(partition)
        if before is None:
            return self._unknown(partition, "no committed offset to shift")
        wanted = min(max(before + by, known.earliest), known.end)
        note = None if wanted == before + by else "limited to the range of the log"
        after = wanted
        if known.earliest < wanted < known.end:
            try:
                after = await self._boundary(partition, wanted)
            except (BrokerError, WireError) as error:
                return self._unknown(partition, str(error))
            if after != wanted:
                note = f"a message starts there, {wanted - after} bytes before {wanted}"
        return self._change(partition, after)._replace(note=note)

    def _at_time(self, partition: TopicPartition, found: OffsetAtTime | LookupFailure) -> OffsetChange:
        if isinstance(found, LookupFailure):
            return self._unknown(partition, found.reason)
        return self._change(partition, found.offset)._replace(note=found.note)

    async def _ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange | LookupFailure]:
        """The range of each partition's log."""
        return await self._logs.ranges(partitions)

    def _refusal(self, partition: TopicPartition, *, delete: bool = False) -> str | None:
        """The reason why the partition's offset cannot be changed here, or deleted."""
        if partition in self._snapshot.at_broker:
            return KEPT_BY_BROKER
        if delete and self._snapshot.by_broker and self._view.offsets.get(partition) is not None:
            return "brokers cannot delete a single offset: change it, or delete the whole group"
        return None

    async def _boundary(self, partition: TopicPartition, offset: int) -> int:
        """The start of the message at `offset`. Raises BrokerError, WireError."""
        return offset

    async def _check(self, partition: TopicPartition, offset: int, known: LogRange | LookupFailure) -> OffsetCheck:
        """The problems of `offset` as a new one."""
        if isinstance(known, LookupFailure):
            return OffsetCheck(note=f"not checked: {known.reason}")
        if not known.earliest <= offset <= known.end:
            return OffsetCheck(problem=f"the broker has {known.earliest} to {known.end}")
        return OffsetCheck()

    def _change(self, partition: TopicPartition, after: int | None) -> OffsetChange:
        return OffsetChange(
            self._view.group, partition, self._view.offsets.get(partition), after, self._version(partition)
        )

    def _version(self, partition: TopicPartition) -> int | None:
        """The version of the offset's node; None if there is none."""
        if self._snapshot.by_broker:
            return None  # its group may have a name that no node can have
        stat = self._view.stats.get(offset_path(self._view.group, partition))
        return None if stat is None else stat.version

    def _unknown(self, partition: TopicPartition, reason: str) -> OffsetChange:
        return self._change(partition, None)._replace(problem=reason, unknown=True)

    async def _each(
        self, partitions: Iterable[TopicPartition], plan: Callable[[TopicPartition], Awaitable[OffsetChange]]
    ) -> list[OffsetChange]:
        return list((await read_all(partitions, plan, at_once=AT_ONCE)).values())


class V07ChangePlanner(ChangePlanner):
    """Of a group of 0.7, whose offsets are bytes. The snapshot has the topics of the changes and all brokers."""

    _snapshot: V07GroupSnapshot
    _logs: BrokerLogs

    async def _boundary(self, partition: TopicPartition, offset: int) -> int:
        return await boundary_before(self._logs, partition, offset)

    async def _check(self, partition: TopicPartition, offset: int, known: LogRange | LookupFailure) -> OffsetCheck:
        if isinstance(known, LookupFailure):
            if partition.broker in self._snapshot.brokers and not self._snapshot.exists(partition):
                return OffsetCheck(problem=known.reason)
        elif known.earliest <= offset <= known.end and offset not in known:
            return await self._check_boundary(partition, offset)
        return await super()._check(partition, offset, known)

    async def _check_boundary(self, partition: TopicPartition, offset: int) -> OffsetCheck:
        try:
            if await begins_message(self._logs, partition, offset):
                return OffsetCheck()
            start = await boundary_before(self._logs, partition, offset)
        except (BrokerError, WireError) as error:
            return OffsetCheck(note=f"not checked: {error}")
        if start == offset:
            return OffsetCheck(note="the message that begins there is damaged")
        return OffsetCheck(problem=inside_words(start))

    async def _ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange | LookupFailure]:
        """The ranges of registered partitions; a broker closes the connection upon a request for any other."""
        wanted = list(partitions)
        known = await self._logs.ranges(filter(self._snapshot.exists, wanted))
        return {partition: known.get(partition) or self._not_registered(partition) for partition in wanted}

    def _not_registered(self, partition: TopicPartition) -> LookupFailure:
        if partition.broker not in self._snapshot.brokers:
            return LookupFailure(f"broker {partition.broker} is not registered")
        return LookupFailure(f"broker {partition.broker} has no such partition")

"""Plans changes of committed offsets of a group of Kafka 0.8 or later, and checks them.

Strategy: that of `changes`, whose checks and values these are. Offsets number messages here, so each within the log
is a place to start at, and nothing has to be looked into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from consumerd.operate.admin.changes import OffsetChange, OffsetTarget, OffsetTargetKind
from consumerd.operate.admin.logs import LogRange, LookupFailure
from consumerd.operate.admin.v08.snapshot import CoordinatorKind
from consumerd.wire.registry import offset_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from consumerd.base.partition import TopicPartition
    from consumerd.operate.admin.v08.logs import TimestampOffset, V08BrokerLogs
    from consumerd.operate.admin.v08.snapshot import V08GroupSnapshot


#: Members that commit to brokers do not read the offsets in ZooKeeper.
KEPT_BY_BROKER: Final = "a broker keeps its offset (offsets.storage=kafka): give --bootstrap-server to change it there"


class V08ChangePlanner:
    """Plans changes of one group's offsets; `logs` asks the brokers."""

    def __init__(self, snapshot: V08GroupSnapshot, logs: V08BrokerLogs) -> None:
        self._snapshot = snapshot
        self._logs = logs

    async def set_to(self, wanted: Mapping[TopicPartition, int | None]) -> list[OffsetChange]:
        """Change each partition to the offset that is named; None deletes it (in ZooKeeper)."""
        ranges = await self._logs.ranges(partition for partition, offset in wanted.items() if offset is not None)
        changes = []
        for partition, after in wanted.items():
            change = self._change(partition, after)
            if partition in self._snapshot.at_broker:
                change = self._unknown(partition, KEPT_BY_BROKER)
            elif after is None and change.before is not None and self._snapshot.coordinator is CoordinatorKind.BROKER:
                problem = "brokers cannot delete a single offset: change it, or delete the whole group"
                change = change._replace(problem=problem, unknown=True)
            elif after is not None and change.moves:
                known = ranges[partition]
                if isinstance(known, LookupFailure):
                    change = change._replace(note=f"not checked: {known.reason}")
                elif not known.earliest <= after <= known.end:
                    change = change._replace(problem=f"the broker has {known.earliest} to {known.end}")
            changes.append(change)
        return changes

    async def reset(self, partitions: Iterable[TopicPartition], target: OffsetTarget) -> list[OffsetChange]:
        """Change each partition to `target`."""
        wanted = list(dict.fromkeys(partitions))
        if target.kind is OffsetTargetKind.OFFSET:
            return await self.set_to(dict.fromkeys(wanted, target.value))
        ranges = await self._logs.ranges(wanted)
        moments: Mapping[TopicPartition, TimestampOffset | LookupFailure] = {}
        if target.kind is OffsetTargetKind.TIME:
            moments = await self._logs.at_time(wanted, target.value)
        return [self._reset(partition, target, ranges[partition], moments.get(partition)) for partition in wanted]

    def _reset(
        self,
        partition: TopicPartition,
        target: OffsetTarget,
        known: LogRange | LookupFailure,
        moment: TimestampOffset | LookupFailure | None,
    ) -> OffsetChange:
        if partition in self._snapshot.at_broker:
            return self._unknown(partition, KEPT_BY_BROKER)
        if isinstance(known, LookupFailure):
            return self._unknown(partition, known.reason)
        if target.kind is OffsetTargetKind.EARLIEST:
            return self._change(partition, known.earliest)
        before = self._snapshot.view.offsets.get(partition)
        if target.kind is OffsetTargetKind.LATEST or (target.kind is OffsetTargetKind.CURRENT and before is None):
            return self._change(partition, known.end)
        if target.kind in (OffsetTargetKind.SHIFT, OffsetTargetKind.CURRENT):
            if before is None:
                return self._unknown(partition, "no committed offset to shift")
            after = min(max(before + target.value, known.earliest), known.end)
            note = None if after == before + target.value else "limited to the range of the log"
            return self._change(partition, after)._replace(note=note)
        if moment is None or isinstance(moment, LookupFailure):
            return self._unknown(partition, "the broker returned nothing" if moment is None else moment.reason)
        note = None
        if moment.by_segment:
            note = "the broker knows times of whole segments only: older messages come too"
        elif moment.offset == known.end:
            note = "all messages in the log are older"
        return self._change(partition, moment.offset)._replace(note=note)

    def _change(self, partition: TopicPartition, after: int | None) -> OffsetChange:
        view = self._snapshot.view
        by_broker = self._snapshot.coordinator is CoordinatorKind.BROKER
        stat = None if by_broker else view.stats.get(offset_path(view.group, partition))
        return OffsetChange(
            view.group, partition, view.offsets.get(partition), after, None if stat is None else stat.version
        )

    def _unknown(self, partition: TopicPartition, reason: str) -> OffsetChange:
        return self._change(partition, None)._replace(problem=reason, unknown=True)

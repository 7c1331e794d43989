"""Plans changes of committed offsets of a group of Kafka 0.8 or later, and checks them.

Strategy: that of `changes`. Offsets number messages here, so each within the log is a place to start at, and nothing
has to be looked into.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from consumerd.base.partition import TopicPartition
from consumerd.operate.admin.changes import ChangePlanner, OffsetChange
from consumerd.operate.admin.logs import LogRange, LookupFailure
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.operate.admin.v08.logs import V08BrokerLogs

#: Members that commit to brokers do not read the offsets in ZooKeeper.
KEPT_BY_BROKER: Final = "a broker keeps its offset (offsets.storage=kafka): give --bootstrap-server to change it there"


class V08ChangePlanner(ChangePlanner):
    """Of a group of Kafka 0.8 or later; `logs` asks the brokers."""

    def __init__(self, snapshot: GroupSnapshot, logs: V08BrokerLogs) -> None:
        super().__init__(snapshot.view)
        self._snapshot = snapshot
        self._logs = logs

    def _version(self, partition: TopicPartition) -> int | None:
        if self._snapshot.by_broker:
            return None  # its group may have a name that no node can have
        return super()._version(partition)

    async def _ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange | LookupFailure]:
        return await self._logs.ranges(partitions)

    def _refusal(self, partition: TopicPartition, *, delete: bool = False) -> str | None:
        if partition in self._snapshot.at_broker:
            return KEPT_BY_BROKER
        if delete and self._snapshot.by_broker and self._view.offsets.get(partition) is not None:
            return "brokers cannot delete a single offset: change it, or delete the whole group"
        return None

    async def _at_time(
        self, ranges: Mapping[TopicPartition, LogRange], time_ms: int
    ) -> dict[TopicPartition, OffsetChange]:
        changes = {}
        for partition, moment in (await self._logs.at_time(ranges, time_ms)).items():
            if isinstance(moment, LookupFailure):
                changes[partition] = self._unknown(partition, moment.reason)
                continue
            note = None
            if moment.by_segment:
                note = "the broker knows times of whole segments only: older messages come too"
            elif moment.offset == ranges[partition].end:
                note = "all messages in the log are older"
            changes[partition] = self._change(partition, moment.offset)._replace(note=note)
        return changes

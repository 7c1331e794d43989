"""Plans changes of committed offsets of a group of Kafka 0.8 or later, and checks them.

Strategy: that of `changes`. Offsets number messages here, so each within the log is a place to start at, and nothing
has to be looked into.
"""

from __future__ import annotations

from typing import Final

from consumerd.base.partition import TopicPartition
from consumerd.operate.admin.changes import ChangePlanner
from consumerd.operate.admin.logs import GroupLogs
from consumerd.operate.admin.snapshot import GroupSnapshot

#: Members that commit to brokers do not read the offsets in ZooKeeper.
KEPT_BY_BROKER: Final = "a broker keeps its offset (offsets.storage=kafka): give --bootstrap-server to change it there"


class V08ChangePlanner(ChangePlanner):
    """Of a group of Kafka 0.8 or later; `logs` asks the brokers."""

    def __init__(self, snapshot: GroupSnapshot, logs: GroupLogs) -> None:
        super().__init__(snapshot.view, logs)
        self._snapshot = snapshot

    def _version(self, partition: TopicPartition) -> int | None:
        if self._snapshot.by_broker:
            return None  # its group may have a name that no node can have
        return super()._version(partition)

    def _refusal(self, partition: TopicPartition, *, delete: bool = False) -> str | None:
        if partition in self._snapshot.at_broker:
            return KEPT_BY_BROKER
        if delete and self._snapshot.by_broker and self._view.offsets.get(partition) is not None:
            return "brokers cannot delete a single offset: change it, or delete the whole group"
        return None

"""Watching the demo from outside: owners and committed offsets in ZooKeeper, ends of logs, messages handled.

Strategy: the daemons are not queried. Owners and committed offsets are read from ZooKeeper, the ends of logs from the
segment files, and delivered messages are counted in the record files as they grow.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from consumerd.base.partition import TopicPartition
from consumerd.net.zk.errors import NoNode
from consumerd.net.zk.session import Session
from consumerd.storage.log.segment import parse_segment_name
from consumerd.wire.registry.paths import offset_path, owner_path
from consumerd.wire.registry.values import parse_offset, parse_owner

_COUNT = re.compile(rb'"count":(\d+)')


@dataclass(frozen=True, slots=True)
class DemoSnapshot:
    """One snapshot of the demo. Offsets and lag are bytes of the log, as in 0.7."""

    #: Consumer ids by the partitions that they own.
    owners: Mapping[TopicPartition, str] = field(default_factory=dict)
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: Delivered messages, repetitions included.
    handled: int = 0

    @property
    def lag(self) -> int:
        """Bytes between the committed offsets and the ends of the logs."""
        return sum(abs(end - self.committed.get(partition, 0)) for partition, end in self.ends.items())

    @property
    def holding(self) -> frozenset[TopicPartition]:
        """The partitions with messages."""
        return frozenset(partition for partition, end in self.ends.items() if end)


class RecordCounter:
    """Counts delivered messages in record files that grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self.handled = 0

    def read(self) -> int:
        """Read new lines; return the count so far. Blocks."""
        for path in self._directory.glob("*.ndjson"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path] = self._read.get(path, 0) + len(whole) + len(newline)
            self.handled += sum(int(count) for count in _COUNT.findall(whole))
        return self.handled


class Watch:
    """Observes one topic and one group. `logs` are the brokers' log directories by id."""

    def __init__(
        self,
        session: Session,
        group: str,
        partitions: Sequence[TopicPartition],
        logs: Mapping[int, Path],
        records: Path,
    ) -> None:
        self._session = session
        self._group = group
        self._partitions = list(partitions)
        self._logs = dict(logs)
        self._counter = RecordCounter(records)

    async def read_snapshot(self) -> DemoSnapshot:
        """The current state. Raises ZooKeeperError."""
        # Ends after commits: a commit never runs ahead of the end that is seen then.
        owners, committed = {}, {}
        for partition in self._partitions:
            if (data := await self._data(owner_path(self._group, partition))) is not None:
                owners[partition] = parse_owner(data)[0]
            if (data := await self._data(offset_path(self._group, partition))) is not None:
                committed[partition] = parse_offset(data)
        ends, handled = await asyncio.to_thread(self._read_files)
        return DemoSnapshot(owners, committed, ends, handled)

    async def _data(self, path: str) -> bytes | None:
        try:
            return (await self._session.get(path))[0] or b""
        except NoNode:
            return None

    def _read_files(self) -> tuple[dict[TopicPartition, int], int]:
        return {partition: self._end(partition) for partition in self._partitions}, self._counter.read()

    def _end(self, partition: TopicPartition) -> int:
        folder = self._logs[partition.broker] / f"{partition.topic}-{partition.partition}"
        ends = (
            start + path.stat().st_size
            for path in folder.glob("*.kafka")
            if (start := parse_segment_name(path.name)) is not None
        )
        return max(ends, default=0)

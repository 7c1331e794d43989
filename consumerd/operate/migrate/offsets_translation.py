"""Translation of a group's offsets: from the old logs to those of the topics that were forwarded.

Strategy: forwarded messages have their origin in their headers (`consumerd.handlers.forward.identity`). A message of
the target is *handled* if its headers name a partition of the old group and an offset before the committed one. Each
partition of the target is read from its start to the first message that is not known to be handled; there the group
resumes. So nothing is left out, even if the forwarder sent messages twice, in any order and to any partition: messages
of other origin, or without headers, count as not handled. Handled messages behind that offset are delivered a second
time: where several old partitions share one, up to the distance between them.

The log has to be read, since a binary search could miss the first unhandled message where messages were repeated.

Messages that were never forwarded do not show there. So each old partition is looked for as well: its first message on
the target must not begin behind the committed offset, and a partition without any message there is a problem by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from consumerd.base.partition import TopicPartition
from consumerd.handlers.forward.identity import read_identity
from consumerd.handlers.forward.target_log import LogBounds
from consumerd.wire.v08.records import Record


class ReadableLog(Protocol):
    """The messages of a target: `consumerd.handlers.forward.target_log.TargetLog`."""

    async def bounds(self, topic: str, partition: int) -> LogBounds: ...

    def read(self, topic: str, partition: int, start: int, end: int) -> AsyncIterator[list[Record]]: ...


class PartitionOffset(NamedTuple):
    """The offset at which the group resumes in one partition of the target, and its end when it was read.

    `sources`: old partitions of which something was seen up to there.
    """

    offset: int
    end: int
    sources: frozenset[TopicPartition]


@dataclass(slots=True)
class TopicTranslation:
    """One topic of the target. `problems` and `notes` are sentences."""

    offsets: dict[int, PartitionOffset] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class OffsetTranslator:
    """Translates for one group. `committed`: old partition -> offset that it committed.

    `cluster`: the name of the source in the headers; None where it has none.
    """

    def __init__(
        self, log: ReadableLog, committed: Mapping[TopicPartition, int], *, cluster: str | None = None
    ) -> None:
        self._log = log
        self._committed = committed
        self._cluster = cluster

    async def translate(
        self, topic: str, numbers: Iterable[int], sources: Iterable[TopicPartition], empty: Iterable[TopicPartition]
    ) -> TopicTranslation:
        """The partitions `numbers` of the target's `topic`, to which `sources` (all of them committed) were forwarded.

        `empty`: sources whose logs hold nothing. Raises BrokerError, CorruptDataError.
        """
        scan = _Scan(set(sources), self._cluster)
        found = TopicTranslation()
        for number in sorted(numbers):
            bounds = await self._log.bounds(topic, number)
            scan.here = set()
            offset = await self._first_open(topic, number, bounds, scan)
            found.offsets[number] = PartitionOffset(offset, bounds.end, frozenset(scan.here))
        for number, resume in found.offsets.items():
            await self._look_for_missing(topic, number, resume, scan)
        self._judge(found, topic, scan, set(empty))
        return found

    async def _first_open(self, topic: str, number: int, bounds: LogBounds, scan: _Scan) -> int:
        """The first offset whose message is not known to be handled."""
        async for records in self._log.read(topic, number, *bounds):
            for record in records:
                source, offset = scan.look(record)
                if source is None or offset >= self._committed.get(source, 0):
                    return record.offset
        return bounds.end

    async def _look_for_missing(self, topic: str, number: int, resume: PartitionOffset, scan: _Scan) -> None:
        """Read on for old partitions of which nothing was seen yet."""
        if not scan.missing:
            return
        async for records in self._log.read(topic, number, resume.offset, resume.end):
            for record in records:
                scan.look(record)
            if not scan.missing:
                return

    def _judge(self, found: TopicTranslation, topic: str, scan: _Scan, empty: set[TopicPartition]) -> None:
        for source in sorted(scan.sources):
            committed, first = self._committed[source], scan.first.get(source)
            if first is not None and first > committed:
                found.problems.append(
                    f"{source}: the group is at {committed}, and {topic} has messages from {first} on: "
                    "the messages in between were not forwarded"
                )
            elif first is None and source in empty:
                found.notes.append(f"{source}: its log is empty")
            elif first is None:
                found.problems.append(
                    f"{source}: {topic} has no message of it: check the topic, and that it was forwarded"
                )
        if scan.others:
            named = ", ".join("without a name" if name is None else repr(name) for name in sorted(scan.others, key=str))
            wanted = "without a name" if self._cluster is None else repr(self._cluster)
            found.problems.append(
                f"{topic} holds messages of sources {named}, not only of the expected source, {wanted}"
            )


class _Scan:
    """The records of old partitions that were read."""

    def __init__(self, sources: set[TopicPartition], cluster: str | None) -> None:
        self.sources = sources
        self.missing = set(sources)
        #: The first offset that was seen of each; in the order of the log, so the least unless chunks were repeated.
        self.first: dict[TopicPartition, int] = {}
        #: The sources that were seen in the partition that is being read.
        self.here: set[TopicPartition] = set()
        #: Names of other sources.
        self.others: set[str | None] = set()
        self._cluster = cluster

    def look(self, record: Record) -> tuple[TopicPartition | None, int]:
        """The old partition and offset of a record; None where it is of no old partition of ours."""
        identity = read_identity(record.headers)
        if identity is None or identity.partition not in self.sources:
            return None, 0
        if identity.cluster != self._cluster:
            self.others.add(identity.cluster)
            return None, 0
        source, offset = identity.partition, identity.offset
        self.here.add(source)
        if offset < self.first.get(source, offset + 1):
            self.first[source] = offset
            self.missing.discard(source)
        return source, offset

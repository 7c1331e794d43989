"""Compares a source with a target: by sums of ranges, then message by message where these differ.

Strategy: three passes. The source is read once, and becomes sums of ranges. Every partition of the target's topics is
read once, its messages added to the ranges that they say they are of. Ranges whose sums agree, and whose messages came
in order and once, are done; the others are read again on both sides, a few at a time, message by message. Bounds are
taken first on the source and then on the target, so that a mirror at work only makes the target have more, which is
counted and called neither wrong nor foreign.

What out of order means across ranges: a message is late when a later one of its source partition stood before it in
the same partition of the target; only the first copy of each counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.handlers.forward.identity import read_identity
from consumerd.handlers.forward.mapping import TopicNaming
from consumerd.handlers.forward.target_log import LogBounds
from consumerd.operate.migrate.findings import (
    ComparisonReport,
    ExampleMessages,
    MessageCounts,
    PartitionReport,
    RangeReport,
)
from consumerd.operate.migrate.message_source import MessageSource, UnreadableStretch
from consumerd.operate.migrate.offsets_translation import ReadableLog
from consumerd.operate.migrate.ranges import (
    RANGE_MESSAGES,
    MessagePosition,
    SourceRange,
    SourceRanges,
    message_number,
    source_number,
)
from consumerd.wire.v08.records import Record

if TYPE_CHECKING:
    from consumerd.handlers.forward.identity import SourceIdentity


# From a range whose sums differ to the messages that do: missing, changed, duplicated, out of order, foreign.
#
# Strategy: the messages of a few ranges at a time, as numbers by their places, against every message of the target that
# claims to be one of theirs, read from the stretch in which such messages were seen. So memory is bounded by the size
# of a range times how many are looked at together, not by the sizes of the logs.


@dataclass(slots=True)
class SuspectRange:
    """A range with its messages."""

    partition: TopicPartition
    range: SourceRange
    #: The messages of the source, in order.
    expected: dict[MessagePosition, int] = field(default_factory=dict)
    seen: set[MessagePosition] = field(default_factory=set)
    counts: MessageCounts = field(default_factory=MessageCounts)

    def see(
        self,
        identity: SourceIdentity,
        payload: bytes | None,
        furthest: MessagePosition | None,
        examples: ExampleMessages,
    ) -> None:
        """Add a message of the target that claims to be of this range; `furthest`: the furthest one before it there."""
        position, counts = identity.place, self.counts
        number = self.expected.get(position)
        if number is None:
            counts.foreign += 1
            examples.add("foreign", f"{identity}: the source has no such message")
            return
        if position in self.seen:
            counts.duplicated += 1
            examples.add("duplicated", identity)
            return
        self.seen.add(position)
        if number != message_number(position, identity.crc, payload):
            counts.changed += 1
            examples.add("changed", identity)
        else:
            counts.there += 1
        if furthest is not None and position < furthest:
            counts.out_of_order += 1
            examples.add("out of order", f"{identity}: after offset {furthest[0]} index {furthest[1]}")

    def finish(self, examples: ExampleMessages) -> MessageCounts:
        """Count the missing messages, once all of the target was read."""
        missing = [position for position in self.expected if position not in self.seen]
        self.counts.source = len(self.expected)
        self.counts.missing = len(missing)
        for offset, index in missing:
            examples.add("missing", f"{self.partition} offset {offset} index {index}")
        return self.counts


#: Ranges that are looked at closely at a time.
CLOSE_RANGES = 20


class VerificationTarget(ReadableLog, Protocol):
    """The reads of the target that a comparison needs; see `consumerd.handlers.forward.target_log.TargetLog`."""

    async def partitions(self, topic: str) -> list[int]: ...


class Comparison:
    """Compares `source` with the topics of `target` that `naming` gives. Used once.

    `cluster`: the source's name in the headers. `examples`: how many messages of each kind of difference are named.
    `progress` is called with the name of each step.
    """

    def __init__(
        self,
        source: MessageSource,
        target: VerificationTarget,
        naming: TopicNaming,
        *,
        cluster: str | None = None,
        range_messages: int = RANGE_MESSAGES,
        examples: int = 10,
        progress: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._source = source
        self._target = target
        self._naming = naming
        self._cluster = cluster
        self._size = range_messages
        self._examples = ExampleMessages(examples)
        self._progress = progress
        self._ranges: dict[TopicPartition, SourceRanges] = {}
        self._outside: defaultdict[TopicPartition, int] = defaultdict(int)
        self._strangers: defaultdict[str, int] = defaultdict(int)
        #: (source partition, topic's partition on the target) -> the furthest position.
        self._furthest: dict[tuple[TopicPartition, int], MessagePosition] = {}
        self._bounds: dict[tuple[str, int], LogBounds] = {}

    async def run(self) -> ComparisonReport:
        """Raises NotFoundError for a missing topic, and what reading either side raises."""
        partitions = await self._source.partitions()
        by_topic: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        for partition in partitions:
            try:
                by_topic[self._naming.target(partition.topic)].append(partition)
            except ValueError as error:
                raise NotFoundError(f"{partition.topic!r} is on no target: {error}.") from error
        for partition, (start, end) in partitions.items():
            self._progress(f"source {partition}")
            await self._sum_up(partition, start, end)
        for topic in by_topic:
            await self._find_bounds(topic)
        reports = []
        for topic, mine in by_topic.items():
            for number in self._numbers(topic):
                self._progress(f"target {topic}/{number}")
                await self._scan(topic, number, frozenset(mine))
            close = await self._look_closely(topic, mine)
            reports += [self._report(partition, topic, close) for partition in mine]
        return ComparisonReport(reports, dict(self._strangers), self._examples.found)

    # -- the source

    async def _sum_up(self, partition: TopicPartition, start: int, end: int) -> None:
        ranges = self._ranges[partition] = SourceRanges(partition, start, self._size)
        async for found in self._source.read(partition, start, end):
            if isinstance(found, UnreadableStretch):
                ranges.unreadable.append(found.problem)
                continue
            for offset, index, payload in found:
                ranges.add(offset, index, payload)
        ranges.close(end)

    # -- the target

    async def _find_bounds(self, topic: str) -> None:
        numbers = await self._target.partitions(topic)
        if not numbers:
            raise NotFoundError(f"the target has no topic {topic!r}; give --rename if it has another name there.")
        for number in numbers:
            self._bounds[topic, number] = await self._target.bounds(topic, number)

    def _numbers(self, topic: str) -> list[int]:
        return [number for name, number in self._bounds if name == topic]

    async def _scan(self, topic: str, number: int, mine: frozenset[TopicPartition]) -> None:
        async for records in self._target.read(topic, number, *self._bounds[topic, number]):
            for record in records:
                self._see(record, topic, number, mine)

    def _see(self, record: Record, topic: str, number: int, mine: frozenset[TopicPartition]) -> None:
        identity = read_identity(record.headers)
        if identity is None or identity.cluster != self._cluster or identity.partition not in mine:
            self._strangers[f"{topic}/{number}"] += 1
            self._examples.add("foreign", f"{topic}/{number} offset {record.offset}: {identity or 'no old identity'}")
            return
        found = self._ranges[identity.partition].find(identity.offset)
        if found is None:
            self._outside[identity.partition] += 1
            return
        seen, position, key = found.seen, identity.place, (identity.partition, number)
        furthest = self._furthest.get(key)
        seen.note(number, record.offset, furthest)
        if furthest is not None and position <= furthest:
            seen.late += 1
            return
        self._furthest[key] = position
        seen.summing.add(message_number(position, identity.crc, record.payload))

    # -- a close look

    async def _look_closely(self, topic: str, mine: Sequence[TopicPartition]) -> dict[int, MessageCounts]:
        """The counts of the ranges that do not agree, by the ranges' ids."""
        close: dict[int, MessageCounts] = {}
        suspects = [
            SuspectRange(partition, each)
            for partition in mine
            for each in self._ranges[partition].ranges
            if not each.agrees
        ]
        for first in range(0, len(suspects), CLOSE_RANGES):
            group = suspects[first : first + CLOSE_RANGES]
            self._progress(f"comparing {len(group)} of {len(suspects)} ranges of {topic} by message")
            for suspect in group:
                await self._expect(suspect)
            for number in self._numbers(topic):
                await self._compare(topic, number, group)
            for suspect in group:
                close[id(suspect.range)] = suspect.finish(self._examples)
        return close

    async def _expect(self, suspect: SuspectRange) -> None:
        found = suspect.range
        async for messages in self._source.read(suspect.partition, found.start, found.end):
            if not isinstance(messages, UnreadableStretch):
                for offset, index, payload in messages:
                    position = offset, index
                    suspect.expected[position] = source_number(position, payload)

    async def _compare(self, topic: str, number: int, group: Sequence[SuspectRange]) -> None:
        spans = [span for suspect in group if (span := suspect.range.seen.spans.get(number)) is not None]
        if not spans:
            return
        by_range = {id(suspect.range): suspect for suspect in group}
        low, high = min(span.low for span in spans), max(span.high for span in spans)
        furthest: dict[TopicPartition, MessagePosition] = {}
        async for records in self._target.read(topic, number, low, high):
            for record in records:
                identity = read_identity(record.headers)
                if identity is None or identity.cluster != self._cluster:
                    continue
                ranges = self._ranges.get(identity.partition)
                found = None if ranges is None else ranges.find(identity.offset)
                if found is None:
                    continue
                before = furthest.get(identity.partition)
                if (suspect := by_range.get(id(found))) is not None:
                    span = found.seen.spans[number]
                    known = [position for position in (before, span.before) if position is not None]
                    suspect.see(identity, record.payload, max(known, default=None), self._examples)
                    if identity.place not in suspect.expected:
                        continue
                furthest[identity.partition] = identity.place if before is None else max(before, identity.place)

    # -- results

    def _report(self, partition: TopicPartition, topic: str, close: dict[int, MessageCounts]) -> PartitionReport:
        ranges = self._ranges[partition]
        reports = [RangeReport(each, close.get(id(each)) or _clean(each)) for each in ranges.ranges]
        counts = MessageCounts()
        for report in reports:
            counts.add(report.counts)
        numbers = sorted({number for each in ranges.ranges for number in each.seen.spans})
        return PartitionReport(
            partition, topic, ranges.start, ranges.end, numbers, reports, counts,
            outside=self._outside[partition], unreadable=ranges.unreadable,
        )  # fmt: skip


def _clean(found: SourceRange) -> MessageCounts:
    count = found.source.count
    return MessageCounts(source=count, there=count)

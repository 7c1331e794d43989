"""The ranges of a source partition, with the sums of each range on the source and on the target. No I/O.

Strategy: a range is a fixed number of messages in a row, cut where an outermost message ends. It is all that is kept:
memory goes with the number of ranges, not of messages. On the target a message is *fresh* if it stands behind all that
were seen of its source partition in that partition of the target; one that is not fresh came again, or out of order,
and makes its range one to look at closely. So does every difference between the sums.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.operate.migrate.sums import MessagePosition, RangeSums, RunningSums, source_number

#: Messages of a range, unless said otherwise.
RANGE_MESSAGES = 10_000


class OffsetSpan(NamedTuple):
    """The offsets of messages of a range in a partition of the target, [low, high), and the furthest one before."""

    low: int
    high: int
    before: MessagePosition | None


@dataclass(slots=True)
class TargetRange:
    """The sums and places of a range on the target."""

    summing: RunningSums = field(default_factory=RunningSums)
    #: Messages that came when a later one had come.
    late: int = 0
    #: By partition of the target.
    spans: dict[int, OffsetSpan] = field(default_factory=dict)

    def note(self, partition: int, offset: int, furthest: MessagePosition | None) -> None:
        """Note a message of the range at an offset behind all that were noted before."""
        span = self.spans.get(partition)
        self.spans[partition] = (
            OffsetSpan(offset, offset + 1, furthest) if span is None else span._replace(high=offset + 1)
        )


@dataclass(slots=True)
class SourceRange:
    """Messages [start, end) of a source partition."""

    start: int
    end: int
    source: RangeSums
    seen: TargetRange = field(default_factory=TargetRange)

    @property
    def target(self) -> RangeSums:
        """The sums of the target's messages of the range."""
        return self.seen.summing.result(ordered=len(self.seen.spans) == 1)

    @property
    def agrees(self) -> bool:
        """Whether source and target agree, so that messages need not be compared."""
        here, there = self.source, self.target
        if self.seen.late or (here.count, here.total) != (there.count, there.total):
            return False
        return there.in_order is None or there.in_order == here.in_order


class SourceRanges:
    """The ranges of one partition, first made with `add` and `close`, then looked up."""

    def __init__(self, partition: TopicPartition, start: int, size: int = RANGE_MESSAGES) -> None:
        self.partition = partition
        self.start = start
        self.end = start
        self.ranges: list[SourceRange] = []
        #: Stretches of the source that cannot be read: messages, or bytes in their place.
        self.unreadable: list[str] = []
        self._starts: list[int] = []
        self._size = size
        self._summing = RunningSums()
        self._begin = start
        self._last = -1

    def add(self, offset: int, index: int, payload: bytes | None) -> None:
        """Add the next message of the source."""
        if self._summing.count >= self._size and offset != self._last:
            self._cut(offset)
        self._last = offset
        self._summing.add(source_number((offset, index), payload))

    def close(self, end: int) -> None:
        """End the last range."""
        if self._summing.count or end > self._begin:
            self._cut(end)
        self.end = end

    def _cut(self, end: int) -> None:
        self.ranges.append(SourceRange(self._begin, end, self._summing.result()))
        self._starts.append(self._begin)
        self._summing = RunningSums()
        self._begin = end

    def find(self, offset: int) -> SourceRange | None:
        """The range of an offset; None before the first and behind the last."""
        if not self.start <= offset < self.end:
            return None
        return self.ranges[bisect_right(self._starts, offset) - 1]

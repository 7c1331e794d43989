"""A partition of 0.7 for planning: its segments, in files or on brokers, where it may be cut, and its splits.

Strategy: the boundaries known without a search are the starts of segments; `boundaries` finds those inside. Offsets
count bytes, so a limit in messages needs the size of a message. The next messages of some partitions are read and
counted, including those inside compressed ones. It is an estimate that limits a batch and decides nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from consumerd.spark.source.logs import PartitionLog
from consumerd.spark.source.offsets import Key
from consumerd.spark.source.split import BrokerRange, FileRange, V07Split, broker_partition
from consumerd.spark.source.v07.boundaries import REACH, Boundaries, Fetch
from consumerd.wire.v07 import DEFAULT_LIMITS, DecodeLimits, decode_batch

if TYPE_CHECKING:
    from consumerd.spark.source.split import Split

#: The largest message that is looked for, also with a higher limit: it bounds the memory of the planner.
_MOST_REACH: Final = 32 << 20
#: Bytes that are read of one partition to estimate the size of its messages, and of how many partitions.
_SAMPLE: Final = 256 << 10
_PARTITIONS: Final = 8


class SourceSegment(NamedTuple):
    """One segment: the offsets of its first byte and after its last, and who has it."""

    start: int
    end: int
    location: FileRange | BrokerRange
    #: Reading from the middle is not cheaper than reading all of it, so it is one split.
    whole: bool = False


@dataclass(frozen=True)
class SegmentLog:
    """A partition of 0.7: `segments` by start, without overlaps, at least one.

    `open_segment` opens one for reading its bytes; `by_time` answers `before`.
    """

    topic: str
    broker: int | None
    partition: int
    segments: tuple[SourceSegment, ...]
    open_segment: Callable[[SegmentLog, SourceSegment], AbstractContextManager[Fetch]] = field(repr=False)
    by_time: Callable[[SegmentLog, int], int] = field(repr=False)
    limits: DecodeLimits = DEFAULT_LIMITS

    topic_id = None

    @property
    def key(self) -> Key:
        return self.topic, broker_partition(self.broker, self.partition)

    @property
    def start(self) -> int:
        return self.segments[0].start

    @property
    def end(self) -> int:
        return self.segments[-1].end

    def gaps(self) -> list[tuple[int, int]]:
        return [(left.end, right.start) for left, right in pairwise(self.segments) if left.end < right.start]

    def message_at(self, offset: int) -> int | None:
        segment = self._holding(offset)
        if segment is None or offset in (segment.start, segment.end):
            return offset if segment is not None else None
        with self.open_segment(self, segment) as fetch:
            found = self._boundaries(fetch, segment).around(segment.start, offset, thorough=True)
        return None if found is None else found.start

    def resumed(self, offset: int) -> int:
        segment = self._holding(offset)
        if segment is None or segment.whole or offset in (segment.start, segment.end):
            return offset
        with self.open_segment(self, segment) as fetch:
            boundaries = self._boundaries(fetch, segment)
            if boundaries.intact(offset):
                return offset
            found = boundaries.around(segment.start, offset, thorough=True)
        return offset if found is None or found.start is None else found.start

    def limited(self, start: int, most: int) -> int:
        wanted = start + most
        if wanted >= self.end:
            return self.end
        segment = self._holding(wanted)
        if segment is None:  # in a gap: up to where it begins, or over it if nothing is before it
            ends = [each.end for each in self.segments if start < each.end <= wanted]
            return max(ends) if ends else min(each.start for each in self.segments if each.start > wanted)
        known = max(start, segment.start)
        if wanted == segment.end or wanted == segment.start > start:
            return wanted
        found = None
        if not segment.whole:
            with self.open_segment(self, segment) as fetch:
                found = self._boundaries(fetch, segment).around(known, wanted)
        if found is not None and found.start is not None and found.start > start:
            return found.start
        if segment.start > start:
            return segment.start
        return segment.end if found is None else min(found.end, segment.end)

    def before(self, time_ms: int) -> int:
        return self.by_time(self, time_ms)

    def splits(self, start: int, end: int, max_bytes: int) -> list[Split]:
        found: list[Split] = []
        for segment in self.segments:
            low, high = max(start, segment.start), min(end, segment.end)
            if low < high:
                cuts = [low, *self._cuts(segment, low, high, max_bytes), high]
                found += [
                    V07Split(self.topic, self.broker, self.partition, left, right, segment.location)
                    for left, right in pairwise(cuts)
                ]
        return found

    def _cuts(self, segment: SourceSegment, low: int, high: int, max_bytes: int) -> list[int]:
        """Boundaries between `low` and `high` that leave pieces of about the same size."""
        cuts: list[int] = []
        if segment.whole or not max_bytes or high - low <= max_bytes:
            return cuts
        with self.open_segment(self, segment) as fetch:
            boundaries = self._boundaries(fetch, segment)
            wanted = low
            while high - wanted > max_bytes:
                pieces = -(-(high - wanted) // max_bytes)
                wanted += -(-(high - wanted) // pieces)
                found = boundaries.around(low, wanted)
                if found is None:
                    continue
                cut = found.start if found.start is not None and found.start > low else found.end
                if not low < cut < high:
                    continue
                cuts.append(cut)
                low = wanted = cut
        return cuts

    def _holding(self, offset: int) -> SourceSegment | None:
        """The segment of the byte at `offset`; at the log's end the last one; None in a gap or outside."""
        for segment in self.segments:
            if segment.start <= offset < segment.end:
                return segment
        return next((segment for segment in self.segments if segment.end == offset), None)

    def _boundaries(self, fetch: Fetch, segment: SourceSegment) -> Boundaries:
        most = self.limits.max_message_bytes
        reach = min(most, _MOST_REACH) if most != DEFAULT_LIMITS.max_message_bytes else REACH
        return Boundaries(fetch, segment.end, max_payload=most, reach=max(reach, REACH))


def bytes_per_message(starts: Iterable[tuple[PartitionLog, int]]) -> float:
    """The mean over the messages from these offsets on; 1 where nothing can be read. Raises as the logs do."""
    size = count = 0
    for log, start in starts:
        sampled = _sample(log, start)
        size, count = size + sampled[0], count + sampled[1]
    return max(1.0, size / count) if count else 1.0


def some(starts: list[tuple[PartitionLog, int]]) -> list[tuple[PartitionLog, int]]:
    """Evenly spread ones of many."""
    step = -(-len(starts) // _PARTITIONS) or 1
    return starts[::step]


def _sample(log: PartitionLog, start: int) -> tuple[int, int]:
    """Bytes, and messages in them, from the boundary `start` on; of a large first message its bytes, as one."""
    if not isinstance(log, SegmentLog):
        return 0, 0
    segment = next((each for each in log.segments if each.start <= start < each.end), None)
    if segment is None:
        return 0, 0
    data = b""
    with log.open_segment(log, segment) as fetch:
        while len(data) < _SAMPLE and (more := fetch(start + len(data), _SAMPLE - len(data))):
            data += more
    last, count = start, 0
    for message in decode_batch(data, start, limits=log.limits).messages():
        last, count = max(last, message.next_offset), count + 1
    return (last - start, count) if last > start else (len(data), 1)

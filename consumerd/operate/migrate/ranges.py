"""The ranges of a source partition, with the sums of each range on the source and on the target. No I/O.

Strategy: a range is a fixed number of messages in a row, cut where an outermost message ends. It is all that is kept:
memory goes with the number of ranges, not of messages. On the target a message is *fresh* if it stands behind all that
were seen of its source partition in that partition of the target; one that is not fresh came again, or out of order,
and makes its range one to look at closely. So does every difference between the sums.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.wire.crc import crc32

# Checksums for the comparison of two logs: one for each message, and sums for ranges of offsets. No I/O.
#
# Strategy: a message's number is a 64-bit hash over where it stood, its checksum and its payload, so that neither a
# changed payload nor two swapped ones go unseen. A range keeps how many there are, their sum, which no order changes,
# and a polynomial in them, which every change of order changes. Equal sums mean equal messages but for a chance of
# about 2**-64 for each range; the sums do not protect against an attacker who chooses payloads.

_MASK: Final = (1 << 64) - 1
#: Odd, so that the polynomial loses nothing.
_FACTOR: Final = 0x9E3779B97F4A7C15

#: Offset of the outermost message, and index of the leaf in it.
MessagePosition = tuple[int, int]


def message_number(position: MessagePosition, crc: int | None, payload: bytes | None) -> int:
    """The number of a message. `crc` and `payload` are None for a null payload."""
    head = b"%d.%d.%s." % (*position, b"-" if crc is None else b"%d" % crc)
    return int.from_bytes(blake2b(head if payload is None else head + payload, digest_size=8).digest(), "big")


def source_number(position: MessagePosition, payload: bytes | None) -> int:
    """Return the number of a message of the source, whose checksum is computed here."""
    return message_number(position, None if payload is None else crc32(payload), payload)


class RangeSums(NamedTuple):
    """The sums of a range. `in_order` is None where its messages came from several places."""

    count: int  # type: ignore[assignment]  # tuple.count is not used
    total: int
    in_order: int | None


@dataclass(slots=True)
class RunningSums:
    """Sums that are being computed."""

    count: int = 0
    total: int = 0
    in_order: int = 0

    def add(self, number: int) -> None:
        """Add a message."""
        self.count += 1
        self.total = (self.total + number) & _MASK
        self.in_order = (self.in_order * _FACTOR + number) & _MASK

    def result(self, *, ordered: bool = True) -> RangeSums:
        """The sums so far."""
        return RangeSums(self.count, self.total, self.in_order if ordered else None)


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

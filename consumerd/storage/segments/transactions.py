"""Which batches of a partition are of transactions that were not committed, as readers of committed messages leave out.

Strategy: a control batch says only behind the messages of a transaction how it ended, perhaps in a later segment. So
each segment is summed up by itself, in any order, and what all of them say is put together. A transaction that is open
at the end counts as aborted, since its producer cannot end it any more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from consumerd.storage.segments.batches import SegmentFlaw, StoredBatch

#: Behind every offset.
OPEN_END: Final = 1 << 63


class TransactionEnd(NamedTuple):
    """A control batch at offset `end`. `first`: the transaction's first offset in its segment, None without one."""

    producer: int
    first: int | None
    end: int
    committed: bool


class SegmentTransactions(NamedTuple):
    """The ends of transactions in the segment that starts at `start`, and by producer where those begin that go on."""

    start: int
    ends: list[TransactionEnd]
    open: dict[int, int]


@dataclass(slots=True)
class UncommittedRanges:
    """By producer, (first, end) offsets of transactions that were not committed, in order."""

    ranges: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, producer: int, first: int, end: int) -> None:
        """Add a transaction, behind the producer's other ones."""
        self.ranges.setdefault(producer, []).append((first, end))

    def has(self, item: StoredBatch) -> bool:
        """Whether a batch is of one of these transactions."""
        if not item.transactional or item.producer is None or item.control is not None:
            return False
        ranges = self.ranges.get(item.producer.id, [])
        at = bisect_left(ranges, item.offset, key=lambda each: each[1])
        return at < len(ranges) and ranges[at][0] <= item.offset

    def between(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """The (producer, first, end) of those that have offsets from `start` to `end`, sorted."""
        return sorted(
            (producer, first, last)
            for producer, ranges in self.ranges.items()
            for first, last in ranges
            if first < end and start < last
        )


def transactions_of(items: Iterable[StoredBatch | SegmentFlaw], start: int) -> SegmentTransactions:
    """The transactions in the segment that starts at offset `start`, by what `read_batches` finds in it."""
    ends: list[TransactionEnd] = []
    begun: dict[int, int] = {}
    for item in items:
        if isinstance(item, SegmentFlaw) or not item.transactional or item.producer is None:
            continue
        producer = item.producer.id
        if item.control is None:
            begun.setdefault(producer, item.offset)
        elif item.control in {"commit", "abort"}:
            ends.append(TransactionEnd(producer, begun.pop(producer, None), item.offset, item.control == "commit"))
    return SegmentTransactions(start, ends, begun)


def uncommitted_by_folder(scanned: Iterable[tuple[str, SegmentTransactions]]) -> dict[str, UncommittedRanges]:
    """By the folder of a partition, where there are some, those that were not committed. `scanned`: in any order."""
    folders: defaultdict[str, list[SegmentTransactions]] = defaultdict(list)
    for folder, transactions in scanned:
        folders[folder].append(transactions)
    found = {folder: uncommitted(segments) for folder, segments in folders.items()}
    return {folder: each for folder, each in found.items() if each.ranges}


def uncommitted(segments: Iterable[SegmentTransactions]) -> UncommittedRanges:
    """The transactions of a partition that were not committed, by all of its segments."""
    found = UncommittedRanges()
    begun: dict[int, int] = {}
    for segment in sorted(segments, key=lambda each: each.start):
        for end in segment.ends:
            first = begun.pop(end.producer, end.first)
            if first is not None and not end.committed:
                found.add(end.producer, first, end.end)
        for producer, first in segment.open.items():
            begun.setdefault(producer, first)
    for producer, first in begun.items():
        found.add(producer, first, OPEN_END)
    return found

"""The offsets of earlier batches, so that only a batch that overlaps them is checked for duplicates.

Strategy: for each partition the intervals [first offset, end) of all earlier batches, merged where they touch: since
logs are landed in order that is one interval per partition, however long the history. Only a batch that overlaps one of
them is compared with the existing rows. The state after batch N is a file of its own, written before batch N is stored;
a retried batch starts from the state after N - 1, like the first time.

A topic that is deleted and created again has another log, with intervals of its own. Where logs have no id (0.7, and
brokers before 2.8) its offsets start at 0 again, and its rows overlap the old ones, as their identities do.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from consumerd.base.files import Files

#: Files that are kept; the last two would do.
_KEPT: Final = 5


class SeenPartition(NamedTuple):
    """The partition that offsets belong to, and its log."""

    topic: str | None
    broker: int | None
    partition: int | None
    topic_id: str | None = None


class OffsetStretch(NamedTuple):
    """Offsets of one source: from `start` up to, and without, `end`."""

    source: SeenPartition
    start: int
    end: int


OffsetInterval = tuple[int, int]


class SeenOffsets:
    """Merged, ascending intervals of each source."""

    def __init__(self, intervals: Mapping[SeenPartition, list[OffsetInterval]] | None = None) -> None:
        self._intervals = {source: list(found) for source, found in (intervals or {}).items()}

    def overlapping(self, stretches: Iterable[OffsetStretch]) -> list[OffsetStretch]:
        """Return the stretches that share an offset with an earlier one."""
        return [each for each in stretches if self._meets(each)]

    def _meets(self, stretch: OffsetStretch) -> bool:
        intervals = self._intervals.get(stretch.source, [])
        # The first interval that ends behind the start is the only one that can begin before the end.
        index = bisect_left(intervals, stretch.start + 1, key=lambda interval: interval[1])
        return index < len(intervals) and intervals[index][0] < stretch.end

    def with_stretches(self, stretches: Iterable[OffsetStretch]) -> SeenOffsets:
        """The state after a batch that held these."""
        grown = SeenOffsets(self._intervals)
        for source, start, end in stretches:
            grown._intervals[source] = merge([*grown._intervals.get(source, []), (start, end)])
        return grown

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps([[*source, intervals] for source, intervals in self._intervals.items()]).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> SeenOffsets | None:
        """The state, or None for invalid data."""
        try:
            found: dict[SeenPartition, list[OffsetInterval]] = {}
            for topic, broker, partition, *log, intervals in json.loads(data):  # earlier releases wrote no log
                source = SeenPartition(topic, broker, partition, *log)
                found[source] = [(int(start), int(end)) for start, end in intervals]
        except (ValueError, TypeError, RecursionError):
            return None
        return cls(found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeenOffsets) and self._intervals == other._intervals

    __hash__ = None  # type: ignore[assignment]  # it compares by its content

    def __repr__(self) -> str:
        return f"SeenOffsets({self._intervals!r})"


def merge(intervals: Iterable[OffsetInterval]) -> list[OffsetInterval]:
    """Ascending and disjoint; those that touch become one."""
    merged: list[OffsetInterval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


class SeenLog:
    """States after each of the last batches, as files of one folder."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._last: tuple[int, SeenOffsets] | None = None

    def before(self, batch: int) -> SeenOffsets | None:
        """The state after batch `batch - 1`; None where it was never written or cannot be read."""
        if batch == 0:
            return SeenOffsets()
        if self._last is not None and self._last[0] == batch - 1:
            return self._last[1]
        data = self._files.read(self._path(batch - 1))
        return None if data is None else SeenOffsets.decode(data)

    def store(self, batch: int, seen: SeenOffsets) -> None:
        """Store the state after `batch`, and remove states that are not needed any more."""
        self._files.make_directory(self._folder)
        self._files.replace(self._path(batch), seen.encode())
        self._last = (batch, seen)
        if batch >= _KEPT:
            self._files.remove_tree(self._path(batch - _KEPT))

    def _path(self, batch: int) -> str:
        return f"{self._folder}/{batch:020d}.json"

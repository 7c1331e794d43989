"""A partition of 0.8 and later in segment files: its view for planning, and the rows of a split.

Strategy: a split is one segment, or its part between two offsets. A large segment is read in parts that begin at
batches to which its index leads (`consumerd.spark.source.v08.segment_parts`); offsets and leader epochs are judged as a
broker does, from the beginning of the part on. Gaps between offsets are what compaction leaves, so they are not
a loss. All records are rows, those of aborted transactions too, as a consumer with `read_uncommitted` sees them.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from consumerd.spark.source.logs import EveryOffset
from consumerd.spark.source.offsets import Key
from consumerd.spark.source.request import ReadRequest, SplitReader
from consumerd.spark.source.split import FileRange, SegmentPart, StoredSplit, broker_partition
from consumerd.spark.source.v07.segment_file import SplitStream, open_segment
from consumerd.spark.source.v08.reading import V08Rows
from consumerd.spark.source.v08.segment_parts import parts_of
from consumerd.storage.log.archive_items import MAX_SEGMENT_BYTES
from consumerd.storage.segments.batches import SegmentFlaw, StoredBatch, read_batches
from consumerd.wire.v07 import DEFAULT_LIMITS, DecodeLimits

if TYPE_CHECKING:
    from consumerd.spark.source.split import Split

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredPartitionLog(EveryOffset):
    """A partition of 0.8 or later: `segments` in order, and the offset after the last whole batch."""

    topic: str
    broker: int | None
    partition: int
    segments: tuple[FileRange, ...]
    end: int
    limits: DecodeLimits = DEFAULT_LIMITS

    #: Unknown: the id is not a part of the archive's layout.
    topic_id = None

    @property
    def key(self) -> Key:
        return self.topic, broker_partition(self.broker, self.partition)

    @property
    def start(self) -> int:
        return self.segments[0].segment_start

    def before(self, time_ms: int) -> int:
        """The first batch that has, or may have, a record of that time or later; reads up to there."""
        for segment in self.segments:
            for item in read_segment(segment, self.topic, self.partition, self.limits):
                if isinstance(item, StoredBatch) and (item.max_timestamp is None or item.max_timestamp >= time_ms):
                    return item.offset
        return self.end

    def splits(self, start: int, end: int, max_bytes: int) -> list[Split]:
        """One per segment, or per part of about `max_bytes` of a segment with an index; 0: one per segment."""
        ends = [*(each.segment_start for each in self.segments[1:]), self.end]
        found: list[Split] = []
        for segment, stop in zip(self.segments, ends, strict=True):
            low, high = max(start, segment.segment_start), min(end, stop)
            if low >= high:
                continue
            parts = parts_of(segment, max_bytes)
            for part, following in pairwise([*parts, SegmentPart(0, high)]):
                first, last = max(low, part.offset), min(high, following.offset)
                if first < last:
                    found.append(StoredSplit(self.topic, self.broker, self.partition, first, last, segment, part))
        return found


def read_segment(
    segment: FileRange, topic: str, partition: int, limits: DecodeLimits, part: SegmentPart | None = None
) -> Iterator[StoredBatch | SegmentFlaw]:
    """Batches and flaws of a file, from the beginning of `part` on. Raises FileNotFoundError, FileReadError."""
    start = segment.segment_start
    position, offset = part or (0, start)
    with open_segment(segment, topic, partition) as reader:
        stream = SplitStream(reader, start + position, start + MAX_SEGMENT_BYTES)
        yield from read_batches(stream, offset, limits=limits, position=position)


def segment_end(segment: FileRange, topic: str, partition: int, limits: DecodeLimits) -> int:
    """The offset after the last whole batch; reads the file. Raises as `read_segment`."""
    end = segment.segment_start
    for item in read_segment(segment, topic, partition, limits):
        if isinstance(item, StoredBatch):
            end = max(end, item.next_offset)
    return end


def read_stored_split(split: StoredSplit, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """The split's rows, in the order of the log.

    Raises MalformedMessageError in mode FAILFAST, FileReadError, and DataLossError for a file that was deleted.
    """
    reader = _Reader(split, request)
    try:
        yield from reader.read()
    except FileNotFoundError:
        reader.lost(f"the offsets of {split} no longer exist: {split.location} was deleted")


class _Reader(SplitReader):
    """One pass over one split. `position`: the least offset that may follow."""

    _split: StoredSplit

    def __init__(self, split: StoredSplit, request: ReadRequest) -> None:
        super().__init__(split, request)
        self._rows = V08Rows(split, request.columns)
        self._position = split.part.offset
        self._flaw: SegmentFlaw | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        split = self._split
        for item in read_segment(split.location, split.topic, split.partition, self.request.limits, split.part):
            if isinstance(item, SegmentFlaw):
                self._flaw = self._flaw or item
                continue
            yield from self._flawed(min(item.offset, split.end))
            yield from self._batch(item)
            if self._position >= split.end:
                break
        else:
            yield from self._flawed(split.end)
        self.end()

    def _batch(self, item: StoredBatch) -> Iterator[pa.RecordBatch]:
        """The rows of a batch, without those whose offsets were read before, which a consumer would not see either."""
        first = max(self._split.start, self._position)
        if item.offset < self._position:
            log.warning("%s: %s; records with offsets that were read before are left out", self._split, item.problem)
        skipped = bisect_left(item.records.offsets, first) if item.offset < first else 0
        for rows in self._rows.batches(item.records, self._split.end):
            if skipped < rows.num_rows:
                yield rows.slice(skipped)
            skipped = max(0, skipped - rows.num_rows)
        self._position = max(self._position, item.next_offset)

    def _flawed(self, following: int) -> Iterator[pa.RecordBatch]:
        """The row of the flaws before offset `following`, if offsets are missing there."""
        flaw, self._flaw = self._flaw, None
        if flaw is None or not self._split.start <= self._position < self._split.end:
            return
        if self.is_row(f"{self._split.location} cannot be read at offset {self._position}: {flaw.problem}"):
            if following > self._position:
                yield self._rows.flaw(self._position, following, flaw.problem)
            else:
                self.dropped += 1

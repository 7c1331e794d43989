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

from consumerd.spark.source.columns import ParseMode
from consumerd.spark.source.errors import DataLossError, MalformedMessageError
from consumerd.spark.source.offsets import Key
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.split import broker_partition
from consumerd.spark.source.v07.segment_file import SplitStream, open_segment
from consumerd.spark.source.v07.split import FileRange
from consumerd.spark.source.v08.reading import V08Rows
from consumerd.spark.source.v08.segment_parts import parts_of
from consumerd.spark.source.v08.split import SegmentPart, StoredSplit
from consumerd.storage.log.archive_items import MAX_SEGMENT_BYTES
from consumerd.storage.segments.batches import SegmentFlaw, StoredBatch, read_batches
from consumerd.wire.v07 import DEFAULT_LIMITS, DecodeLimits

if TYPE_CHECKING:
    from consumerd.spark.source.request import Split

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredPartitionLog:
    """A partition of 0.8 or later: `segments` in order, and the offset after the last whole batch."""

    topic: str
    broker: int | None
    partition: int
    segments: tuple[FileRange, ...]
    end: int
    limits: DecodeLimits = DEFAULT_LIMITS

    @property
    def key(self) -> Key:
        return self.topic, broker_partition(self.broker, self.partition)

    @property
    def topic_id(self) -> None:
        """Unknown: the id is not a part of the archive's layout."""
        return

    @property
    def start(self) -> int:
        return self.segments[0].segment_start

    def gaps(self) -> list[tuple[int, int]]:
        return []

    def message_at(self, offset: int) -> int | None:
        return offset

    def resumed(self, offset: int) -> int:
        return offset

    def limited(self, start: int, most: int) -> int:
        return min(start + most, self.end)

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
    try:
        yield from _Reader(split, request).read()
    except FileNotFoundError:
        what = f"the offsets {split.start} to {split.end} of {split} no longer exist: {split.location} was deleted"
        if request.fail_on_data_loss:
            raise DataLossError(f"{what}; start later, or set failOnDataLoss=false to continue without them") from None
        log.warning("%s; continuing without them", what)


class _Reader:
    """One pass over one split. `position`: the least offset that may follow."""

    def __init__(self, split: StoredSplit, request: ReadRequest) -> None:
        self._split = split
        self._request = request
        self._rows = V08Rows(split, request.columns)
        self._position = split.part.offset
        self._flaw: SegmentFlaw | None = None
        self._dropped = 0

    def read(self) -> Iterator[pa.RecordBatch]:
        split = self._split
        for item in read_segment(split.location, split.topic, split.partition, self._request.limits, split.part):
            if isinstance(item, SegmentFlaw):
                self._flaw = self._flaw or item
                continue
            yield from self._lost(min(item.offset, split.end))
            yield from self._batch(item)
            if self._position >= split.end:
                break
        else:
            yield from self._lost(split.end)
        if self._dropped:
            log.warning("dropped %d malformed ranges of %s", self._dropped, split)

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

    def _lost(self, following: int) -> Iterator[pa.RecordBatch]:
        """The row of the flaws before offset `following`, if offsets are missing there."""
        flaw, self._flaw = self._flaw, None
        if flaw is None or not self._split.start <= self._position < self._split.end:
            return
        if self._request.mode is ParseMode.FAILFAST:
            raise MalformedMessageError(
                f"{self._split.location} cannot be read at offset {self._position}: {flaw.problem}; read with "
                "mode=PERMISSIVE or DROPMALFORMED to continue"
            )
        if self._request.mode is ParseMode.DROPMALFORMED or following <= self._position:
            self._dropped += 1
        else:
            yield self._rows.flaw(self._position, following, flaw.problem)

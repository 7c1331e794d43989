"""A split -> its rows as Arrow batches: what an executor's task does.

Strategy: `read_runs` of the archive's reader walks the bytes, a builder makes batches of what it finds. Bytes behind
the split's end are looked at where those before it cannot be understood without them, so that a split's rows do not
depend on how the segment was cut. What is not as it should be is judged here: bytes that are no message by the mode,
offsets that are gone by `fail_on_data_loss`, and a message that goes on beyond the split's end is always an error,
because its rows would be missing here and the next split would begin inside of it.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from consumerd.spark.source.columns import Mode
from consumerd.spark.source.errors import DataLossError, MalformedMessageError, SplitBoundaryError
from consumerd.spark.source.request import freeze_imports
from consumerd.spark.source.v07.rows import BatchBuilder
from consumerd.spark.source.v07.segment_file import SplitStream, open_segment
from consumerd.storage.archive import MESSAGE_FLAWS, Flaw, FlawKind, Run, read_runs
from consumerd.wire.v07 import Codec
from consumerd.wire.v07.walk import LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    import pyarrow as pa

    from consumerd.spark.source.request import ReadRequest
    from consumerd.spark.source.v07.segment_file import SegmentReader
    from consumerd.spark.source.v07.split import Split

log = logging.getLogger(__name__)

#: What wrappers decompress to is limited one by one (`Limits`), and no more than one is in memory.
_ANY_EXPANSION: Final = 1 << 40
#: Leaves of a larger wrapper are made so many bytes at a time.
_PIECE_BYTES: Final = 1 << 20
#: What a message has beside its payload, at most.
_ROOM: Final = 10


def read_split(split: Split, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """The split's rows, in the order of the log.

    Raises MalformedMessageError in mode FAILFAST, DataLossError for offsets that are gone where that is to fail,
    SplitBoundaryError, FileReadError, BrokerReadError. Memory: some times the largest message, and a batch.
    """
    freeze_imports()
    return _SplitReader(split, request).read()


class _SplitReader:
    """One pass over one split."""

    def __init__(self, split: Split, request: ReadRequest) -> None:
        self.split = split
        self.request = request
        self.builder = BatchBuilder(split, request.columns)
        self.dropped = 0

    def read(self) -> Iterator[pa.RecordBatch]:
        if self.split.start == self.split.end:
            return
        try:
            reader = open_segment(
                self.split.location,
                self.split.topic,
                self.split.partition,
                fetch_size=self.request.fetch_size,
                timeout=self.request.timeout,
            )
        except FileNotFoundError:
            self._lost(self.split.start, self.split.end, "the file was deleted")
            return
        with reader:
            yield from self._read(reader)
        if (batch := self.builder.finish()) is not None:
            yield batch
        if self.dropped:
            log.warning("dropped %d unreadable ranges of %s", self.dropped, self.split)

    def _read(self, reader: SegmentReader) -> Iterator[pa.RecordBatch]:
        start, end = self.split.start, self.split.end
        while (position := (yield from self._read_from(reader, start))) < end:
            # Where nothing was found either, nothing is asked again: a log that is cut all the time never ends.
            further = reader.next_available(position) if position > start or start == self.split.start else None
            start = end if further is None else min(further, end)
            self._lost(position, start, "the start of the log was deleted after the read was planned")

    def _read_from(self, reader: SegmentReader, position: int) -> Generator[pa.RecordBatch, None, int]:
        """Read as far as the segment has bytes without a gap; returns up to where."""
        end = self.split.end
        limits = self.request.limits
        stream = SplitStream(reader, position, end + limits.max_message_bytes + _ROOM)
        for found in read_runs(
            stream,
            position,
            limits=limits,
            window=reader.window,
            resync=True,
            expansion=_ANY_EXPANSION,
            piece_bytes=_PIECE_BYTES,
            stop=end,
        ):
            if isinstance(found, Flaw) and found.kind is FlawKind.TORN and stream.position < end:
                break  # the rest of this message is lost, not torn
            if found.next_offset > end:
                found = self._cut(found)
            if isinstance(found, Flaw):
                self._judge(found)
            if not isinstance(found, Flaw) or self.request.mode is Mode.PERMISSIVE:
                yield from self.builder.add(found)
            position = found.next_offset
        return position

    def _cut(self, found: Run | Flaw) -> Run | Flaw:
        """What reaches beyond the split's end, without what does. Raises SplitBoundaryError."""
        end = self.split.end
        if isinstance(found, Flaw) and found.kind not in MESSAGE_FLAWS:
            return found._replace(next_offset=end)
        first = found.offset
        if isinstance(found, Run) and found.codec is Codec.NONE:
            overhead = LAYOUTS[found.magic].overhead
            bounds = list(accumulate(map(overhead.__add__, map(len, found.payloads)), initial=first))
            count = bisect_left(bounds, end)
            if bounds[count] == end:
                return found._replace(next_offset=end, payloads=found.payloads[:count])
            first = bounds[count - 1]
        raise SplitBoundaryError(
            f"the split of {self.split} ends inside the message at offset {first}; read with the option "
            "maxSplitBytes=0, so that segments are not cut"
        )

    def _judge(self, flaw: Flaw) -> None:
        if self.request.mode is Mode.FAILFAST:
            raise MalformedMessageError(
                f"{self.split.topic}/{self.split.broker_partition} cannot be read at offset {flaw.offset}: "
                f"{flaw.problem}; read with mode=PERMISSIVE or DROPMALFORMED to continue"
            )
        if self.request.mode is Mode.DROPMALFORMED:
            self.dropped += 1

    def _lost(self, start: int, end: int, why: str) -> None:
        """Offsets that were planned are not there."""
        what = (
            f"the offsets {start} to {end} of {self.split.topic}/{self.split.broker_partition} are no longer in "
            f"{self.split.location}: {why}"
        )
        if self.request.fail_on_data_loss:
            raise DataLossError(f"{what}; start later, or set failOnDataLoss=false to continue without them")
        log.warning("%s; continuing without them", what)

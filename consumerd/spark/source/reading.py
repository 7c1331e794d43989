"""A split -> its rows as Arrow batches: what an executor's task does.

Strategy: `read_runs` of the archive's reader walks the bytes, a builder makes batches of what it finds. What is not
found is judged here: bytes that are no message by the mode, offsets that are gone by `fail_on_data_loss`, and a message
that goes on beyond the split's end is always an error, because its rows would be missing here and the next split would
begin inside of it.
"""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext

from consumerd.spark.source.broker_client import DEFAULT_TIMEOUT
from consumerd.spark.source.broker_reading import DEFAULT_FETCH_SIZE
from consumerd.spark.source.columns import Mode
from consumerd.spark.source.errors import DataLossError, MalformedMessageError, SplitBoundaryError
from consumerd.spark.source.places import open_place
from consumerd.spark.source.rows import BatchBuilder
from consumerd.spark.source.segment_reading import SplitStream
from consumerd.storage.archive import Flaw, FlawKind, read_runs
from consumerd.wire.v07 import DEFAULT_LIMITS, Limits, OuterMessage, read_outer

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    import pyarrow as pa

    from consumerd.spark.source.segment_reading import Place
    from consumerd.spark.source.split import Split

log = logging.getLogger(__name__)

#: What wrappers decompress to is limited one by one (`Limits`), and no more than one is in memory.
_ANY_EXPANSION: Final = 1 << 40
#: Leaves of a larger wrapper are made so many bytes at a time.
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What is asked of every split of a query.

    `columns`: names of `consumerd.spark.source.columns.COLUMNS` in the order of the batches. `fetch_size`: bytes asked
    of a broker at once. `timeout`: seconds that a broker may take for anything.
    """

    columns: tuple[str, ...]
    mode: Mode = Mode.PERMISSIVE
    fail_on_data_loss: bool = True
    limits: Limits = DEFAULT_LIMITS
    fetch_size: int = DEFAULT_FETCH_SIZE
    timeout: float = DEFAULT_TIMEOUT


def read_split(split: Split, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """The split's rows, in the order of the log.

    Raises MalformedMessageError in mode FAILFAST, DataLossError for offsets that are gone where that is to fail,
    SplitBoundaryError, PlaceError, BrokerReadError. Memory: some times the largest message, and a batch.
    """
    _settle_worker()
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
            place = open_place(
                self.split.place,
                self.split.topic,
                self.split.partition,
                fetch_size=self.request.fetch_size,
                timeout=self.request.timeout,
            )
        except FileNotFoundError:
            self._lost(self.split.start, self.split.end, "the file is gone")
            return
        with place:
            yield from self._read(place)
        if (batch := self.builder.finish()) is not None:
            yield batch
        if self.dropped:
            log.warning("dropped %d unreadable stretches of %s", self.dropped, self.split)

    def _read(self, place: Place) -> Iterator[pa.RecordBatch]:
        start, end = self.split.start, self.split.end
        while (position := (yield from self._read_from(place, start))) < end:
            # Where nothing was found either, nothing is asked again: a log that is cut all the time never ends.
            further = place.goes_on_at(position) if position > start or start == self.split.start else None
            start = end if further is None else min(further, end)
            self._lost(position, start, "the log has been cut since the read was planned")

    def _read_from(self, place: Place, position: int) -> Generator[pa.RecordBatch, None, int]:
        """Read as far as the place has bytes without a gap; returns up to where."""
        end = self.split.end
        stream = SplitStream(place, position, end)
        for found in read_runs(
            stream,
            position,
            limits=self.request.limits,
            window=place.window,
            resync=True,
            expansion=_ANY_EXPANSION,
            piece_bytes=_PIECE_BYTES,
        ):
            if isinstance(found, Flaw):
                if found.kind is FlawKind.TORN:
                    if stream.position < end:
                        break  # the rest of this message is lost, not torn
                    self._check_end(place, found)
                self._judge(found)
            if not isinstance(found, Flaw) or self.request.mode is Mode.PERMISSIVE:
                yield from self.builder.add(found)
            position = found.next_offset
        return position

    def _check_end(self, place: Place, torn: Flaw) -> None:
        """Raise SplitBoundaryError where the message that is cut off at the split's end goes on behind it."""
        head = place.fetch(torn.offset, 4)
        if len(head) < 4:
            return
        most = self.request.limits.max_message_bytes
        wanted = 4 + min(int.from_bytes(head), most + 6)
        stream = SplitStream(place, torn.offset, torn.offset + wanted)
        message = read_outer(b"".join(iter(lambda: stream.read(wanted), b"")), 0, torn.offset, most)
        if isinstance(message, OuterMessage) and message.valid:
            raise SplitBoundaryError(
                f"the split of {self.split} ends inside the message at offset {torn.offset}, which ends at "
                f"{message.next_offset}; read with the option maxSplitBytes=0, so that segments are not cut"
            )

    def _judge(self, flaw: Flaw) -> None:
        if self.request.mode is Mode.FAILFAST:
            raise MalformedMessageError(
                f"{self.split.topic}/{self.split.broker_partition} cannot be read at offset {flaw.offset}: "
                f"{flaw.problem}; read with mode=PERMISSIVE or DROPMALFORMED to go on"
            )
        if self.request.mode is Mode.DROPMALFORMED:
            self.dropped += 1

    def _lost(self, start: int, end: int, why: str) -> None:
        """Offsets that were planned are not there."""
        what = (
            f"the offsets {start} to {end} of {self.split.topic}/{self.split.broker_partition} are not in "
            f"{self.split.place} any more: {why}"
        )
        if self.request.fail_on_data_loss:
            raise DataLossError(f"{what}; start later, or read with failOnDataLoss=false to go on without them")
        log.warning("%s; going on without them", what)


_settled = False


def _settle_worker() -> None:
    """In a worker of Spark's: take what is imported out of the garbage collections, one of which ends each task."""
    global _settled  # noqa: PLW0603 - a process settles once
    if not _settled and TaskContext.get() is not None:
        _settled = True
        gc.collect()
        gc.freeze()

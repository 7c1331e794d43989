"""A split -> its rows as Arrow batches: the work of an executor's task.

Strategy: `read_indexed` of the archive's reader walks the bytes, and a builder makes batches of the result. Bytes after
the split's end are read if those before it cannot be understood without them, so that a split's rows do not depend on
how the segment was cut. Anomalies are handled here: bytes that are not a valid message by the mode, deleted offsets by
`fail_on_data_loss`; a message that continues beyond the split's end is always an error, because its rows would be
missing here and the next split would begin inside it.

Nothing is done per message in Python. What the native codec has indexed becomes a *piece*, whose buffers it writes.
With the pure codec, a long run of plain messages becomes a piece of its own: one call makes the values, and the offsets
follow from the buffer of positions that Arrow made for them. Short runs, messages within compressed ones and flaws are
collected in typed arrays first, and become a piece together. A batch is the pieces joined, which copies them unless
there is only one; columns that are constant in a split are made once and sliced, which copies nothing.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from itertools import accumulate
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.lake.arrays import texts
from consumerd.spark.source.errors import SplitBoundaryError
from consumerd.spark.source.request import (
    BATCH_BYTES,
    BATCH_ROWS,
    ConstantColumns,
    ReadRequest,
    SplitReader,
    numbers,
)
from consumerd.spark.source.split import V07Split
from consumerd.spark.source.v07.segment_file import SegmentReader, SplitStream, open_segment
from consumerd.storage.log.archive import read_indexed
from consumerd.storage.log.archive_items import MESSAGE_FLAWS, ArchivedRun, Flaw, FlawKind, IndexedMessages
from consumerd.wire.v07 import Codec
from consumerd.wire.v07.walk import LAYOUTS

#: The decompressed size of wrappers is limited one by one (`Limits`), and no more than one is in memory.
_ANY_EXPANSION: Final = 1 << 40
#: Leaves of a larger wrapper are made this many bytes at a time.
_PIECE_BYTES: Final = 1 << 20
#: Bytes of a message beside its payload, at most.
_ROOM: Final = 10


def read_split(split: V07Split, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """The split's rows, in the order of the log.

    Raises MalformedMessageError in mode FAILFAST, DataLossError for offsets that are gone where that is to fail,
    SplitBoundaryError, FileReadError, BrokerReadError. Memory: some times the largest message, and a batch.
    """
    return _SplitReader(split, request).read()


class _SplitReader(SplitReader):
    """One pass over one split."""

    _split: V07Split

    def __init__(self, split: V07Split, request: ReadRequest) -> None:
        super().__init__(split, request)
        self.builder = BatchBuilder(split, request.columns)

    def read(self) -> Iterator[pa.RecordBatch]:
        if self._split.start == self._split.end:
            return
        try:
            reader = open_segment(
                self._split.location,
                self._split.topic,
                self._split.partition,
                fetch_size=self.request.fetch_size,
                timeout=self.request.timeout,
            )
        except FileNotFoundError:
            self._lost_between(self._split.start, self._split.end, "the file was deleted")
            return
        with reader:
            yield from self._read(reader)
        if (batch := self.builder.finish()) is not None:
            yield batch
        self.end()

    def _read(self, reader: SegmentReader) -> Iterator[pa.RecordBatch]:
        start, end = self._split.start, self._split.end
        while (position := (yield from self._read_from(reader, start))) < end:
            # After a read without a message the log is not queried again: one that is cut all the time would never end.
            further = reader.next_available(position) if position > start or start == self._split.start else None
            start = end if further is None else min(further, end)
            self._lost_between(position, start, "the start of the log was deleted after the read was planned")

    def _read_from(self, reader: SegmentReader, position: int) -> Generator[pa.RecordBatch, None, int]:
        """Read as far as the segment has bytes without a gap; returns up to where."""
        end = self._split.end
        limits = self.request.limits
        stream = SplitStream(reader, position, end + limits.max_message_bytes + _ROOM)
        for found in read_indexed(
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
            position = min(found.next_offset, end)
            if isinstance(found, IndexedMessages):
                yield from self.builder.add_indexed(found)
                continue
            if found.next_offset > end:
                found = self._cut(found)
            if not isinstance(found, Flaw) or self.is_row(
                f"{self._split.topic}/{self._split.broker_partition} cannot be read at offset {found.offset}: "
                f"{found.problem}"
            ):
                yield from self.builder.add(found)
        return position

    def _cut(self, found: ArchivedRun | Flaw) -> ArchivedRun | Flaw:
        """Cut off everything beyond the split's end. Raises SplitBoundaryError."""
        end = self._split.end
        if isinstance(found, Flaw) and found.kind not in MESSAGE_FLAWS:
            return found._replace(next_offset=end)
        first = found.offset
        if isinstance(found, ArchivedRun) and found.codec is Codec.NONE:
            overhead = LAYOUTS[found.magic].overhead
            bounds = list(accumulate(map(overhead.__add__, map(len, found.payloads)), initial=first))
            count = bisect_left(bounds, end)
            if bounds[count] == end:
                return found._replace(next_offset=end, payloads=found.payloads[:count])
            first = bounds[count - 1]
        raise SplitBoundaryError(
            f"the split of {self._split} ends inside the message at offset {first}; read with the option "
            "maxSplitBytes=0, so that segments are not cut"
        )

    def _lost_between(self, start: int, end: int, why: str) -> None:
        self.lost(
            f"the offsets {start} to {end} of {self._split.topic}/{self._split.broker_partition} are no longer in "
            f"{self._split.location}: {why}"
        )


#: Plain messages in a row from which on they are worth a piece of their own.
LONG_RUN: Final = 128
#: Bytes from which on a message gets a batch of its own, because that takes no copy of it.
LARGE_MESSAGE: Final = 1 << 20

#: Payload bytes from which on indexed messages get a batch of their own, because that takes no copy of them.
OWN_BATCH_BYTES: Final = 1 << 19

#: The values of `codec` by number; the last one is for unknown.
_CODECS: Final = pa.concat_arrays([texts([codec.name.lower() for codec in Codec]), pa.nulls(1, pa.string())])
_NO_CODEC: Final = len(Codec)


class BatchBuilder:
    """Collects the rows of a split; `add` returns the batches that are full, `finish` the rest.

    `columns`: names in the order in which the batches have them, at least one.
    """

    def __init__(self, split: V07Split, columns: Sequence[str]) -> None:
        self._wanted = frozenset(columns)
        self._same = ConstantColumns(split, columns)
        self._pieces: list[dict[str, pa.Array]] = []
        self._sizes: list[int] = []
        self._rows = 0
        self._bytes = 0
        self._pending = _PendingRows()

    def add(self, found: ArchivedRun | Flaw) -> Iterator[pa.RecordBatch]:
        """Take all messages of a run, or a flaw as one row; gives the batches that are full with it."""
        plain = isinstance(found, ArchivedRun) and found.codec is Codec.NONE
        if isinstance(found, Flaw):
            rows, size = 1, len(found.raw)
        else:
            rows = len(found.payloads)
            size = found.next_offset - found.offset if plain else sum(map(len, found.payloads))
        alone = rows == 1 and size >= LARGE_MESSAGE
        if alone and (batch := self.finish()) is not None:
            yield batch
        if isinstance(found, Flaw):
            self._pending.add_flaw(found, self._wanted)
        elif rows >= LONG_RUN and plain:
            self._seal()
            self._add_piece(_plain_piece(found, self._wanted), rows)
        else:
            self._pending.add(found, self._wanted)
        self._rows += rows
        self._bytes += size
        if (alone or self._bytes >= BATCH_BYTES or self._rows >= BATCH_ROWS) and (batch := self.finish()) is not None:
            yield batch

    def add_indexed(self, found: IndexedMessages) -> Iterator[pa.RecordBatch]:
        """Take all of these messages; gives the batches that are full with them."""
        first, count = 0, len(found.payloads)
        while first < count:
            start = first
            first, size = found.payloads.fitting(start, min(start + BATCH_ROWS, count), BATCH_BYTES)
            if first == start:  # a large message
                first, size = start + 1, found.payloads.size_between(start, start + 1)
            if size >= OWN_BATCH_BYTES and (batch := self.finish()) is not None:
                yield batch
            self._seal()
            self._add_piece(_indexed_piece(found, start, first, self._wanted), first - start)
            self._rows += first - start
            self._bytes += size
            full = size >= OWN_BATCH_BYTES or self._bytes >= BATCH_BYTES or self._rows >= BATCH_ROWS
            if full and (batch := self.finish()) is not None:
                yield batch

    def finish(self) -> pa.RecordBatch | None:
        """All rows that are left as a batch; None without any."""
        self._seal()
        rows = self._rows
        if not rows:
            return None
        columns = [self._column(field, rows) for field in self._same.schema]
        self._pieces, self._sizes, self._rows, self._bytes = [], [], 0, 0
        return pa.RecordBatch.from_arrays(columns, schema=self._same.schema)

    def _seal(self) -> None:
        """Make a piece of the pending rows."""
        if rows := len(self._pending):
            self._add_piece(self._pending.piece(self._wanted), rows)
            self._pending = _PendingRows()

    def _add_piece(self, piece: dict[str, pa.Array], rows: int) -> None:
        self._pieces.append(piece)
        self._sizes.append(rows)

    def _column(self, field: pa.Field, rows: int) -> pa.Array:
        name = field.name
        if all(name not in piece for piece in self._pieces):
            return self._same.column(field, rows)
        found = [
            piece[name] if name in piece else self._same.column(field, size)
            for piece, size in zip(self._pieces, self._sizes, strict=True)
        ]
        return found[0] if len(found) == 1 else pa.concat_arrays(found)


def _indexed_piece(found: IndexedMessages, first: int, stop: int, wanted: frozenset[str]) -> dict[str, pa.Array]:
    """The columns of messages `first` to `stop` that differ from row to row."""
    rows = stop - first
    payloads = found.payloads
    value, offset, index, next_offset = payloads.arrow(first, stop, found.offset, found.next_offset, _MOST_BYTES, False)
    piece = {
        "value": _from_buffers(pa.binary(), rows, *value),
        "offset": _from_buffers(pa.int64(), rows, b"", offset),
        "index": _from_buffers(pa.int32(), rows, b"", index),
        "next_offset": _from_buffers(pa.int64(), rows, b"", next_offset),
    }
    if "codec" in wanted and (codecs := _codecs(found, first, stop)) is not None:
        piece["codec"] = codecs
    return piece


#: No value column of a batch can be larger.
_MOST_BYTES: Final = 0x7FFFFFFF


def _from_buffers(kind: pa.DataType, rows: int, validity: bytes, *buffers: bytes) -> pa.Array:
    given = [pa.py_buffer(validity) if validity else None, *map(pa.py_buffer, buffers)]
    return pa.Array.from_buffers(kind, rows, given)


def _codecs(found: IndexedMessages, first: int, stop: int) -> pa.Array | None:
    """The codec of each message, which is that of its outermost one; None if all are plain."""
    kinds = list(found.kinds(first, stop))
    if not any(codec for _, _, codec in kinds):
        return None
    codecs = array("b")
    for count, _, codec in kinds:
        codecs.extend(array("b", (codec,)) * count)
    return _CODECS.take(numbers(codecs, pa.int8()))


def _plain_piece(run: ArchivedRun, wanted: frozenset[str]) -> dict[str, pa.Array]:
    """The columns of a run of plain messages that differ from row to row."""
    values = _binary(run.payloads)
    piece = {"value": values} if "value" in wanted else {}
    if "offset" in wanted or "next_offset" in wanted:
        rows = len(values)
        starts = pa.Array.from_buffers(pa.int32(), rows + 1, [None, values.buffers()[1]])
        headers = _multiples(LAYOUTS[run.magic].overhead, rows + 1)
        bounds = pc.add(pc.add(starts.cast(pa.int64()), headers), pa.scalar(run.offset, pa.int64()))
        piece["offset"] = bounds.slice(0, rows)
        piece["next_offset"] = bounds.slice(1, rows)
    return piece


_made_multiples: dict[int, pa.Array] = {}


def _multiples(step: int, count: int) -> pa.Array:
    """0, step, 2 * step, ...; kept for the next time."""
    made = _made_multiples.get(step)
    if made is None or len(made) < count:
        made = _made_multiples[step] = pa.array(range(0, step * (count + BATCH_ROWS), step), pa.int64())
    return made.slice(0, count)


class _PendingRows:
    """Rows that are not in a piece yet."""

    def __init__(self) -> None:
        self.payloads: list[bytes | None] = []
        self.offsets = array("q")
        self.nexts = array("q")
        self.indexes = array("i")
        self.codecs = array("b")
        #: Row number -> the flaw that the row is.
        self.flaws: dict[int, Flaw] = {}

    def __len__(self) -> int:
        return len(self.payloads)

    def add(self, run: ArchivedRun, wanted: frozenset[str]) -> None:
        count = len(run.payloads)
        self.payloads += run.payloads
        if "codec" in wanted:
            self.codecs.extend(array("b", (run.codec,)) * count)
        if run.codec is not Codec.NONE:
            if not count:
                return
            shared = array("q", (run.offset,)) * count
            self.offsets.extend(shared)
            shared[-1] = run.next_offset
            self.nexts.extend(shared)
            if "index" in wanted:
                self.indexes.extend(range(run.first, run.first + count))
            return
        overhead = LAYOUTS[run.magic].overhead
        bounds = array("q", accumulate(map(overhead.__add__, map(len, run.payloads)), initial=run.offset))
        self.offsets.extend(bounds[:-1])
        self.nexts.extend(bounds[1:])
        if "index" in wanted:
            self.indexes.extend(array("i", (0,)) * count)

    def add_flaw(self, flaw: Flaw, wanted: frozenset[str]) -> None:
        self.flaws[len(self.payloads)] = flaw
        self.payloads.append(flaw.raw if flaw.kind in MESSAGE_FLAWS else None)
        self.offsets.append(flaw.offset)
        self.nexts.append(flaw.next_offset)
        if "index" in wanted:
            self.indexes.append(0)
        if "codec" in wanted:
            self.codecs.append(_NO_CODEC if flaw.codec is None else flaw.codec)

    def piece(self, wanted: frozenset[str]) -> dict[str, pa.Array]:
        """The columns that differ from row to row."""
        rows = len(self)
        piece: dict[str, pa.Array] = {}
        if "value" in wanted:
            piece["value"] = _binary(self.payloads)
        if "offset" in wanted:
            piece["offset"] = numbers(self.offsets, pa.int64())
        if "next_offset" in wanted:
            piece["next_offset"] = numbers(self.nexts, pa.int64())
        if "index" in wanted:
            piece["index"] = numbers(self.indexes, pa.int32())
        if "codec" in wanted:
            piece["codec"] = _CODECS.take(numbers(self.codecs, pa.int8()))
        if self.flaws:
            if "crc_ok" in wanted:
                piece["crc_ok"] = pa.array([row not in self.flaws for row in range(rows)], pa.bool_())
            if "_corrupt" in wanted:
                problems = [self.flaws[row].problem if row in self.flaws else None for row in range(rows)]
                piece["_corrupt"] = pa.array(problems, pa.string())
        return piece


def _binary(payloads: Sequence[bytes | None]) -> pa.Array:
    """The payloads as a column; a single one without copying it."""
    if len(payloads) == 1 and payloads[0] is not None:
        bounds = array("i", (0, len(payloads[0])))
        return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bounds), pa.py_buffer(payloads[0])])
    return pa.array(payloads, pa.binary())

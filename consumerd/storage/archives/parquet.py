"""Rows as Parquet.

Strategy: columns are collected as plain lists, or as the buffers that the native codec makes of its index. They are cut
into row groups by rows and bytes, never by how the input came in, so that the same segment always gives the same file.
Columns with few values are passed as dictionaries, which cost next to nothing per row; readers see plain strings.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from consumerd.storage.archives.arrays import DIFFERENCES, joined, same_values
from consumerd.storage.archives.extras import extra
from consumerd.storage.archives.ndjson import ByteSink
from consumerd.storage.archives.options import ExportCompression
from consumerd.storage.archives.rows import RowOrigin
from consumerd.storage.log.archive import ArchivedRun, Flaw, IndexedMessages
from consumerd.wire.v07 import Codec

#: A row group ends at the first of these.
GROUP_ROWS = 1 << 17
GROUP_BYTES = 64 << 20
#: No column of bytes can be larger.
_MOST_BYTES = 0x7FFFFFFF

#: The names that a cell of `codec` is an index of; None where it is unknown.
_CODECS = [codec.name.lower() for codec in Codec]
#: Columns worth a dictionary inside of the file.
_FEW_VALUES = ["topic", "broker", "partition", "index", "codec", "magic", "problem", "source"]


def require_parquet() -> None:
    """Check that Parquet can be written, before any work is done. Raises MissingExtraError."""
    extra("pyarrow.parquet", "writing Parquet")


class ParquetRows:
    """See `consumerd.storage.archives.rows.RowWriter`. Memory: one row group and its columns."""

    def __init__(self, sink: ByteSink, origin: RowOrigin, compression: ExportCompression) -> None:
        self._arrow: Any = extra("pyarrow", "writing Parquet")
        parquet: Any = extra("pyarrow.parquet", "writing Parquet")
        self._origin = origin
        self._schema = _schema(self._arrow)
        self._writer = parquet.ParquetWriter(
            self._arrow.PythonFile(sink, mode="w"),
            self._schema,
            compression=str(compression),
            use_dictionary=_FEW_VALUES,
            write_statistics=[name for name in self._schema.names if name not in ("payload", "problem")],
            column_encoding=dict.fromkeys(["offset", "next_offset"], DIFFERENCES),
            store_schema=False,  # else the file would tell readers to restore the dictionaries
        )
        self._start_group()

    def _start_group(self) -> None:
        self._rows = 0
        self._bytes = 0
        #: Columns that differ from row to row, of rows in a row; `_pending` are those after the last piece.
        self._pieces: list[_Columns] = []
        self._pending = _PendingRows()
        #: Row number -> the flaw that the row is.
        self._flaws: dict[int, Flaw] = {}

    def add_run(self, run: ArchivedRun) -> None:
        plain = run.codec is Codec.NONE
        ends = run.boundaries() if plain else []
        payloads = run.payloads
        for start, end in self._parts(len(payloads), partial(_fitting, payloads)):
            pending = self._pending
            count = end - start
            if plain:
                pending.offsets += ends[start:end]
                pending.nexts += ends[start + 1 : end + 1]
                pending.indexes += [0] * count
            else:
                pending.offsets += [run.offset] * count
                pending.nexts += [run.offset] * count
                pending.indexes += range(start, end)
                if end == len(payloads):
                    pending.nexts[-1] = run.next_offset
            pending.payloads += payloads[start:end]
            pending.codecs += [int(run.codec)] * count
            pending.magics += [run.magic] * count

    def add_indexed(self, messages: IndexedMessages) -> None:
        for first, stop in self._parts(len(messages.payloads), messages.payloads.fitting):
            self._seal()
            self._pieces.append(_indexed(self._arrow, messages, first, stop))

    def add_flaw(self, flaw: Flaw) -> None:
        for _ in self._parts(1, partial(_fitting, [flaw.raw])):
            self._flaws[self._rows] = flaw
            pending = self._pending
            pending.offsets.append(flaw.offset)
            pending.nexts.append(flaw.next_offset)
            pending.indexes.append(0)
            pending.payloads.append(flaw.raw)
            pending.codecs.append(None if flaw.codec is None else int(flaw.codec))
            pending.magics.append(flaw.magic)

    def finish(self) -> None:
        if self._rows:
            self._end_group()
        self._writer.close()

    def _parts(self, count: int, fitting: Callable[[int, int, int], tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Cut messages 0 to `count` at the ends of row groups: yields the first number and the one behind the last.

        The caller adds the rows before the next part. `fitting` is as `NativePayloads.fitting`.
        """
        first = 0
        while first < count:
            stop, size = fitting(first, min(first + GROUP_ROWS - self._rows, count), GROUP_BYTES - self._bytes)
            if stop == first and self._rows:
                self._end_group()
                continue
            if stop == first:  # larger than a group
                stop, size = fitting(first, first + 1, sys.maxsize)
            yield first, stop
            self._rows += stop - first
            first = stop
            self._bytes += size
            if self._rows == GROUP_ROWS or self._bytes >= GROUP_BYTES:
                self._end_group()

    def _seal(self) -> None:
        """Make a piece of the pending rows."""
        if self._pending.payloads:
            self._pieces.append(self._pending.columns(self._arrow))
            self._pending = _PendingRows()

    def _end_group(self) -> None:
        self._seal()
        arrow, origin, count = self._arrow, self._origin, self._rows
        intact, problems = (
            same_values(arrow, arrow.bool_(), value=True, count=count),
            arrow.nulls(count, arrow.string()),
        )
        if self._flaws:
            found = [self._flaws.get(row) for row in range(count)]
            intact = arrow.array([flaw is None or flaw.crc_ok for flaw in found], arrow.bool_())
            problems = arrow.array([flaw and flaw.problem for flaw in found], arrow.string())
        differing = _Columns(*(joined(arrow, column) for column in zip(*self._pieces, strict=True)))
        codecs = joined(arrow, [same_values(arrow, arrow.string(), name, 1) for name in _CODECS])
        columns = {
            "topic": same_text(arrow, origin.name.topic, count),
            "broker": same_values(arrow, arrow.int32(), origin.name.broker, count),
            "partition": same_values(arrow, arrow.int32(), origin.name.partition, count),
            "offset": differing.offset,
            "index": differing.index,
            "next_offset": differing.next_offset,
            "codec": arrow.DictionaryArray.from_arrays(differing.codec, codecs),
            "magic": differing.magic,
            "crc_ok": intact,
            "payload": differing.payload,
            "problem": problems,
            "source": same_text(arrow, origin.source, count),
        }
        self._start_group()
        self._writer.write_table(arrow.Table.from_pydict(columns, schema=self._schema), row_group_size=count)


class _Columns(NamedTuple):
    """Arrow arrays of equal length."""

    offset: Any
    index: Any
    next_offset: Any
    codec: Any
    magic: Any
    payload: Any


class _PendingRows:
    """Rows one by one."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.indexes: list[int] = []
        self.nexts: list[int] = []
        self.codecs: list[int | None] = []
        self.magics: list[int | None] = []
        self.payloads: list[bytes] = []

    def columns(self, arrow: Any) -> _Columns:
        return _Columns(
            arrow.array(self.offsets, arrow.int64()),
            arrow.array(self.indexes, arrow.int32()),
            arrow.array(self.nexts, arrow.int64()),
            arrow.array(self.codecs, arrow.int8()),
            arrow.array(self.magics, arrow.uint8()),
            arrow.array(self.payloads, arrow.binary()),
        )


def _indexed(arrow: Any, messages: IndexedMessages, first: int, stop: int) -> _Columns:
    count = stop - first
    (validity, ends, data), offsets, indexes, nexts = messages.payloads.arrow(
        first, stop, messages.offset, messages.next_offset, _MOST_BYTES, False
    )
    assert not validity
    codecs, magics = bytearray(), bytearray()
    for number, magic, codec in messages.kinds(first, stop):
        codecs += bytes((codec,)) * number
        magics += bytes((magic,)) * number

    def column(kind: Any, *buffers: bytes | bytearray) -> Any:
        return arrow.Array.from_buffers(kind, count, [None, *map(arrow.py_buffer, buffers)])

    return _Columns(
        column(arrow.int64(), offsets),
        column(arrow.int32(), indexes),
        column(arrow.int64(), nexts),
        column(arrow.int8(), codecs),
        column(arrow.uint8(), magics),
        column(arrow.binary(), ends, data),
    )


def _fitting(payloads: list[bytes], first: int, stop: int, size: int) -> tuple[int, int]:
    """As `NativePayloads.fitting`."""
    whole = sum(map(len, payloads[first:stop]))
    if whole <= size:
        return stop, whole
    used = list(accumulate(map(len, payloads[first:stop]), initial=0))
    count = bisect_right(used, size) - 1
    return first + count, used[count]


def same_text(arrow: Any, text: str, count: int) -> Any:
    """A column of `count` equal texts."""
    # A third of the time of `repeat`, which appends one after the other.
    indexes = arrow.Array.from_buffers(arrow.int8(), count, [None, arrow.py_buffer(bytes(count))])
    return arrow.DictionaryArray.from_arrays(indexes, same_values(arrow, arrow.string(), text, 1), safe=False)


def identity_fields(arrow: Any) -> list[Any]:
    """The columns that say which message a row is, in every Parquet file of ours."""
    return [
        arrow.field("topic", _few(arrow), nullable=False),
        arrow.field("broker", arrow.int32()),
        arrow.field("partition", arrow.int32(), nullable=False),
        arrow.field("offset", arrow.int64(), nullable=False),
        arrow.field("index", arrow.int32(), nullable=False),
        arrow.field("next_offset", arrow.int64(), nullable=False),
    ]


def _few(arrow: Any) -> Any:
    return arrow.dictionary(arrow.int8(), arrow.string())


def _schema(arrow: Any) -> Any:
    few = _few(arrow)
    return arrow.schema(
        [
            *identity_fields(arrow),
            arrow.field("codec", few),
            arrow.field("magic", arrow.uint8()),  # a flaw's may be any byte
            arrow.field("crc_ok", arrow.bool_(), nullable=False),
            arrow.field("payload", arrow.binary(), nullable=False),
            arrow.field("problem", arrow.string()),
            arrow.field("source", few, nullable=False),
        ]
    )

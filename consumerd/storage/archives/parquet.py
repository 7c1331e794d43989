"""Rows as Parquet.

Strategy: columns are collected as plain lists, or as the buffers that the native codec makes of its index. They are cut
into row groups by rows and bytes, never by how the input came in, so that the same segment always gives the same file.
Columns with few values are passed as dictionaries, which cost next to nothing per row; readers see plain strings.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from consumerd.storage.archives.arrays import DIFFERENCES, MOST_BYTES, array_of, joined, same_values
from consumerd.storage.archives.extras import extra
from consumerd.storage.archives.ndjson import ByteSink
from consumerd.storage.archives.options import ExportCompression
from consumerd.storage.archives.rows import RowOrigin
from consumerd.storage.log.archive_items import ArchivedRun, Flaw, IndexedMessages
from consumerd.wire.v07 import Codec

#: A row group ends at the first of these.
GROUP_ROWS = 1 << 17
GROUP_BYTES = 64 << 20
#: The names that a cell of `codec` is an index of; None where it is unknown.
_CODECS = [codec.name.lower() for codec in Codec]


def require_parquet() -> None:
    """Check that Parquet can be written, before any work is done. Raises MissingExtraError."""
    extra("pyarrow.parquet", "writing Parquet")


class ParquetGroups(ABC):
    """The rows of one segment in row groups. Memory: one row group and its columns."""

    def __init__(
        self,
        sink: ByteSink,
        origin: RowOrigin,
        compression: ExportCompression,
        fields: Callable[[Any], list[Any]],
        *,
        few: Collection[str],
        large: Collection[str],
        growing: Collection[str],
    ) -> None:
        """`fields`: the columns of contents, of `pyarrow`. `few`: columns worth a dictionary inside of the file.

        `large`: those without statistics. `growing`: those whose values grow from row to row.
        """
        self._arrow: Any = extra("pyarrow", "writing Parquet")
        parquet: Any = extra("pyarrow.parquet", "writing Parquet")
        self._origin = origin
        self._schema = _schema(self._arrow, fields(self._arrow))
        self._writer = parquet.ParquetWriter(
            self._arrow.PythonFile(sink, mode="w"),
            self._schema,
            compression=str(compression),
            use_dictionary=["topic", "broker", "partition", "index", "codec", "magic", "source", *few],
            write_statistics=[name for name in self._schema.names if name not in large],
            column_encoding=dict.fromkeys(growing, DIFFERENCES),
            store_schema=False,  # else the file would tell readers to restore the dictionaries
        )
        self._start_group()

    def _start_group(self) -> None:
        self._rows = self._bytes = 0

    @abstractmethod
    def _end_group(self) -> None:
        """Write the rows since `_start_group`, of which there are some, by `_write_group`."""

    def _write_group(self, columns: dict[str, Any]) -> None:
        """Write a row group, whose columns but those of the origin are given, and start the next one."""
        arrow, name, count = self._arrow, self._origin.name, self._rows
        columns |= {
            "topic": same_text(arrow, name.topic, count),
            "broker": same_values(arrow, arrow.int32(), name.broker, count),
            "partition": same_values(arrow, arrow.int32(), name.partition, count),
            "source": same_text(arrow, self._origin.source, count),
        }
        self._start_group()
        ordered = {field: columns[field] for field in self._schema.names}
        self._writer.write_table(arrow.Table.from_pydict(ordered, schema=self._schema), row_group_size=count)

    def finish(self) -> None:
        if self._rows:
            self._end_group()
        self._writer.close()


class ParquetRows(ParquetGroups):
    """See `consumerd.storage.archives.rows.RowWriter`."""

    def __init__(self, sink: ByteSink, origin: RowOrigin, compression: ExportCompression) -> None:
        large, growing = ("payload", "problem"), ("offset", "next_offset")
        super().__init__(sink, origin, compression, _fields, few=("problem",), large=large, growing=growing)

    def _start_group(self) -> None:
        super()._start_group()
        #: Columns that differ from row to row, of rows in a row; `_pending` are those after the last piece.
        self._pieces: list[_Columns] = []
        self._pending = _Columns([], [], [], [], [], [])
        #: Row number -> the flaw that the row is.
        self._flaws: dict[int, Flaw] = {}

    def add_run(self, run: ArchivedRun) -> None:
        plain = run.codec is Codec.NONE
        ends = run.boundaries() if plain else []
        payloads = run.payloads
        for start, end in self._parts(len(payloads), partial(_fitting, payloads)):
            count = end - start
            codecs, magics = [int(run.codec)] * count, [run.magic] * count
            if plain:
                offsets, indexes, nexts = ends[start:end], [0] * count, ends[start + 1 : end + 1]
            else:
                offsets, indexes, nexts = [run.offset] * count, [*range(start, end)], [run.offset] * count
                if end == len(payloads):
                    nexts[-1] = run.next_offset
            self._add(_Columns(offsets, indexes, nexts, codecs, magics, payloads[start:end]))

    def add_indexed(self, messages: IndexedMessages) -> None:
        for first, stop in self._parts(len(messages.payloads), messages.payloads.fitting):
            self._seal()
            self._pieces.append(_indexed(self._arrow, messages, first, stop))

    def add_flaw(self, flaw: Flaw) -> None:
        for _ in self._parts(1, partial(_fitting, [flaw.raw])):
            self._flaws[self._rows] = flaw
            codec = None if flaw.codec is None else int(flaw.codec)
            self._add(_Columns([flaw.offset], [0], [flaw.next_offset], [codec], [flaw.magic], [flaw.raw]))

    def _add(self, rows: _Columns) -> None:
        for pending, values in zip(self._pending, rows, strict=True):
            pending.extend(values)

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
        if self._pending.payload:
            arrow = self._arrow
            kinds = arrow.int64(), arrow.int32(), arrow.int64(), arrow.int8(), arrow.uint8(), arrow.binary()
            self._pieces.append(_Columns(*map(arrow.array, self._pending, kinds)))
            self._pending = _Columns([], [], [], [], [], [])

    def _end_group(self) -> None:
        self._seal()
        arrow, count = self._arrow, self._rows
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
        codec = arrow.DictionaryArray.from_arrays(differing.codec, codecs)
        self._write_group(differing._asdict() | {"codec": codec, "crc_ok": intact, "problem": problems})


class _Columns(NamedTuple):
    """Arrow arrays of equal length, or lists of the same values."""

    offset: Any
    index: Any
    next_offset: Any
    codec: Any
    magic: Any
    payload: Any


def _indexed(arrow: Any, messages: IndexedMessages, first: int, stop: int) -> _Columns:
    count = stop - first
    (validity, ends, data), offsets, indexes, nexts = messages.payloads.arrow(
        first, stop, messages.offset, messages.next_offset, MOST_BYTES, False
    )
    assert not validity
    codecs, magics = bytearray(), bytearray()
    for number, magic, codec in messages.kinds(first, stop):
        codecs += bytes((codec,)) * number
        magics += bytes((magic,)) * number
    return _Columns(
        array_of(arrow, arrow.int64(), count, b"", offsets),
        array_of(arrow, arrow.int32(), count, b"", indexes),
        array_of(arrow, arrow.int64(), count, b"", nexts),
        array_of(arrow, arrow.int8(), count, b"", codecs),
        array_of(arrow, arrow.uint8(), count, b"", magics),
        array_of(arrow, arrow.binary(), count, b"", ends, data),
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
    indexes = array_of(arrow, arrow.int8(), count, b"", bytes(count))
    return arrow.DictionaryArray.from_arrays(indexes, same_values(arrow, arrow.string(), text, 1), safe=False)


def identity_fields(arrow: Any) -> list[Any]:
    """The columns that say which message a row is, in every Parquet file of ours."""
    return [
        arrow.field("topic", few_values(arrow), nullable=False),
        arrow.field("broker", arrow.int32()),
        arrow.field("partition", arrow.int32(), nullable=False),
        arrow.field("offset", arrow.int64(), nullable=False),
        arrow.field("index", arrow.int32(), nullable=False),
        arrow.field("next_offset", arrow.int64(), nullable=False),
    ]


def few_values(arrow: Any) -> Any:
    """The type of a column of few texts."""
    return arrow.dictionary(arrow.int8(), arrow.string())


def _fields(arrow: Any) -> list[Any]:
    return [arrow.field("payload", arrow.binary(), nullable=False)]


def _schema(arrow: Any, fields: list[Any]) -> Any:
    few = few_values(arrow)
    return arrow.schema(
        [
            *identity_fields(arrow),
            arrow.field("codec", few),
            arrow.field("magic", arrow.uint8()),  # a flaw's may be any byte
            arrow.field("crc_ok", arrow.bool_(), nullable=False),
            *fields,
            arrow.field("problem", arrow.string()),
            arrow.field("source", few, nullable=False),
        ]
    )

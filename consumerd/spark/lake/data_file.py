"""Arrow batches -> one Parquet file, and what a commit says of it.

Strategy: rows are collected until they fill a row group, which is written at once and by itself, so memory holds one
row group whatever the file's size. The file gets its random name at the start. Until a commit names it no reader looks
at it, so there is no second name and no rename; after an error it is removed, and after a kill `vacuum` does that. It
is on the disk, and so is its name, before it is described.

Least and greatest values and numbers of nulls are those that the Parquet writer counted. The ranges of identities are
collected batch by batch: for each source partition the offsets from the first up to, and without, the end of the last.
Rows of one source that ascend strictly cannot have one identity twice, which saves looking for duplicates.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from consumerd.spark.lake.arrays import is_constant, repeated
from consumerd.spark.lake.folders import open_folder
from consumerd.spark.seen import OffsetStretch, SeenPartition
from consumerd.spark.source.columns import arrow_schema

#: Bytes of rows in memory that make a row group, about; a batch is not cut.
GROUP_BYTES: Final = 32 << 20
#: Columns whose values rarely repeat: a dictionary of them takes time to build and is dropped in the end. Of payloads
#: that do repeat, the size of the file would not show how much memory its rows take.
_WITHOUT_DICTIONARY: Final = frozenset({"key", "value", "offset", "next_offset"})
#: Columns that ascend by about the size of a message: stored as differences they take half the space and time.
_ASCENDING: Final = ("offset", "next_offset")
#: Columns of texts of which a file has few. Arrow's dictionaries of them are written as they are; else Parquet's
#: writer would look up, and compare with the bounds, the text of each row.
_FEW_TEXTS: Final = frozenset({"topic", "broker_partition", "topic_id", "codec"})
_DICTIONARY: Final = pa.dictionary(pa.int32(), pa.string())
#: Characters of a text that statistics keep, as other writers of Delta do.
_TEXT: Final = 32
_LAST_CHARACTER: Final = "\U0010ffff"
#: More neighbours of different sources in one batch are sorted first.
_MAX_RUNS: Final = 64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of a table. Values of columns are written as in the statistics of Delta's log."""

    #: Relative to the table's folder.
    path: str
    #: Bytes.
    size: int
    rows: int
    #: Milliseconds since 1970.
    modified: int
    #: Bounds of the values of a column, which may be wider than they are; a column without known bounds is left out.
    minimums: Mapping[str, Any]
    maximums: Mapping[str, Any]
    #: Numbers of nulls; nested columns are left out.
    nulls: Mapping[str, int]
    #: The offsets of each source partition; () where rows have none.
    stretches: tuple[OffsetStretch, ...] = ()
    #: Whether the identities of each source partition ascend strictly, so that none is in the file twice.
    ascending: bool = False
    #: The values of the columns that the table is partitioned by, as its format writes them.
    partition: Mapping[str, str | None] = field(default_factory=dict)

    def on(self, column: str | None, day: date | None) -> DataFile:
        """The file as one of a table that is partitioned by this column, of a day."""
        partition = {} if column is None else {column: None if day is None else day.isoformat()}
        return replace(self, partition=partition)

    def to_json(self) -> str:
        """As one line of JSON."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(found | {"stretches": [[*each.source, each.start, each.end] for each in self.stretches]})

    @classmethod
    def from_json(cls, text: str) -> DataFile:
        """What `to_json` wrote. Raises ValueError."""
        try:
            found = json.loads(text)
            stretches = tuple(
                OffsetStretch(SeenPartition(*source), start, end) for *source, start, end in found["stretches"]
            )
            return cls(**found | {"stretches": stretches})
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{text[:200]!r} does not describe a data file: {error}") from None


class DataFileWriter:
    """Writes one file into `folder`, which is made if it is missing. See the module's text.

    `folder`: a path of this machine, or a URL of an object store, whose `storage_options` are deltalake's. A context
    manager: a file that is not closed by its end is removed. Raises OSError.
    """

    def __init__(self, folder: str, schema: pa.Schema, *, storage_options: Mapping[str, str] | None = None) -> None:
        self._schema = schema
        self._name = f"part-{secrets.token_hex(16)}.parquet"
        self._folder = open_folder(folder, storage_options)
        self._identities = Identities() if has_identities(schema) else None
        self._rows = 0
        self._nulls = {field.name: 0 for field in schema if not pa.types.is_nested(field.type)}
        self._bounded = {field.name for field in schema if _is_bounded(field.type)}
        self._floats = {field.name for field in schema if pa.types.is_floating(field.type)}
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._sink: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._metadata: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._sink is not None:
            for each in (self._writer, self._sink):
                # The first error is the one to report. RuntimeError: the writer failed to close before.
                with contextlib.suppress(OSError, ValueError, RuntimeError, pa.ArrowException):
                    if each is not None:
                        each.close()
            with contextlib.suppress(OSError):
                self._folder.remove(self._name)
            self._sink = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows, whose columns are the writer's. Raises ValueError for others."""
        if rows.schema != self._schema:
            raise ValueError(f"the rows have columns {rows.schema.names}, other than the file's {self._schema.names}")
        if not rows.num_rows:
            return
        if self._identities is not None:
            self._identities.add(rows)
        for name in self._nulls:
            self._nulls[name] += rows.column(name).null_count
        # Parquet's bounds leave out NaN.
        self._bounded -= {name for name in self._floats if pc.any(pc.is_nan(rows.column(name))).as_py()}
        self._rows += rows.num_rows
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= GROUP_BYTES:
            self._write_group()

    @property
    def held_bytes(self) -> int:
        """Bytes of rows in memory."""
        return self._held_bytes

    def flush(self) -> None:
        """Write the rows that are in memory."""
        if self._held:
            self._write_group()

    def close(self) -> DataFile | None:
        """Finish the file, which is durable then; None if there were no rows, and then there is no file."""
        if not self._rows:
            return None
        self.flush()
        assert self._writer is not None
        assert self._sink is not None
        self._writer.close()
        self._sink.close()
        stored = self._folder.sync(self._name)
        self._sink = None
        minimums, maximums = _bounds(self._metadata[0], self._schema, self._bounded)
        return DataFile(
            path=self._name,
            size=stored.size,
            rows=self._rows,
            modified=stored.modified,
            minimums=minimums,
            maximums=maximums,
            nulls=self._nulls,
            stretches=() if self._identities is None else self._identities.stretches(),
            ascending=self._identities is not None and self._identities.ascending,
        )

    def _write_group(self) -> None:
        if self._writer is None:
            self._sink = self._folder.create(self._name)
            self._writer = pq.ParquetWriter(
                self._sink,
                _dictionary_schema(self._schema),
                metadata_collector=self._metadata,
                **_options(self._schema),
            )
        group = _with_dictionaries(pa.Table.from_batches(self._held, schema=self._schema))
        self._held, self._held_bytes = [], 0
        self._writer.write_table(group, row_group_size=group.num_rows)


def _options(schema: pa.Schema) -> dict[str, Any]:
    return {
        "compression": "zstd",  # half the size of snappy at the same speed of reading
        "use_dictionary": [
            field.name
            for field in schema
            if field.name not in _WITHOUT_DICTIONARY and not pa.types.is_nested(field.type)
        ],
        "column_encoding": {
            field.name: "DELTA_BINARY_PACKED"
            for field in schema
            if field.name in _ASCENDING and pa.types.is_integer(field.type)
        },
        "write_statistics": [field.name for field in schema if _is_bounded(field.type)],
        "store_schema": False,  # Arrow's own, which other readers do not know
    }


def _dictionary_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each.with_type(_DICTIONARY) if _has_few_texts(each) else each for each in schema])


def _has_few_texts(column: pa.Field) -> bool:
    return column.name in _FEW_TEXTS and bool(pa.types.is_string(column.type))


def _with_dictionaries(group: pa.Table) -> pa.Table:
    """The row group, whose columns are those of `_dictionary_schema`."""
    for at, each in enumerate(group.schema):
        if _has_few_texts(each):
            found = _as_dictionary(group.column(at).combine_chunks())
            group = group.set_column(at, each.with_type(_DICTIONARY), found)
    return group


def _as_dictionary(texts: pa.Array) -> pa.Array:
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), _DICTIONARY)
    if not is_constant(texts):
        return pc.dictionary_encode(texts)
    zeros = pa.Array.from_buffers(pa.int32(), len(texts), [None, pa.py_buffer(bytes(4 * len(texts)))])
    return pa.DictionaryArray.from_arrays(zeros, texts.slice(0, 1))


# -- bounds


def _is_bounded(kind: pa.DataType) -> bool:
    """Whether the statistics of Delta's log have bounds of such a column that we can write exactly."""
    types = pa.types
    known = (types.is_signed_integer, types.is_floating, types.is_string, types.is_date32, types.is_timestamp)
    return any(is_kind(kind) for is_kind in known)


def _bounds(metadata: Any, schema: pa.Schema, names: set[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Least and greatest values of these columns in all row groups, from the file's metadata."""
    minimums: dict[str, Any] = {}
    maximums: dict[str, Any] = {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        if name not in names:
            continue
        kind = schema.field(name).type
        found = [group.column(index) for group in groups]
        found = [each.statistics for each in found if each.statistics is None or each.statistics.num_values]
        if not found or any(each is None or not each.has_min_max for each in found):
            continue  # only nulls, or a text that is too long for statistics
        low = _lower(min(each.min_raw for each in found), kind)
        high = _upper(max(each.max_raw for each in found), kind)
        if low is not None:
            minimums[name] = low
        if high is not None:
            maximums[name] = high
    return minimums, maximums


def describe(path: str, metadata: Any, *, size: int, modified: int) -> DataFile:
    """A file that another program wrote, by its Parquet metadata. Floats have no bounds: one may be NaN."""
    schema = metadata.schema.to_arrow_schema()
    names = {field.name for field in schema if _is_bounded(field.type) and not pa.types.is_floating(field.type)}
    minimums, maximums = _bounds(metadata, schema, names)
    nulls: dict[str, int] = {}
    for index in range(metadata.num_columns):
        found = [metadata.row_group(number).column(index) for number in range(metadata.num_row_groups)]
        known = all(each.statistics is not None and each.statistics.has_null_count for each in found)
        if known and metadata.schema.column(index).path in names:
            nulls[metadata.schema.column(index).path] = sum(each.statistics.null_count for each in found)
    return DataFile(path, size, metadata.num_rows, modified, minimums, maximums, nulls)


def _lower(value: Any, kind: pa.DataType) -> Any:
    """A bound that is not greater than `value`, as Delta writes it; None if it cannot be written."""
    if pa.types.is_string(kind):
        return value.decode()[:_TEXT]
    return as_written(value, kind, up=False)


def _upper(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        text = value.decode()
        if len(text) <= _TEXT:
            return text
        return None if text[_TEXT] == _LAST_CHARACTER else text[:_TEXT] + _LAST_CHARACTER
    return as_written(value, kind, up=True)


_UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def as_written(value: Any, kind: pa.DataType, *, up: bool) -> Any:
    """A number, day or time, as Parquet stores it, as Delta's log would have it; None for what it cannot have.

    `up`: whether a time is rounded up.
    """
    if pa.types.is_floating(kind):
        return value if math.isfinite(value) else None
    try:
        if pa.types.is_date32(kind):
            return (_EPOCH + timedelta(days=value)).date().isoformat()
        if pa.types.is_timestamp(kind):
            ticks, unit = value * 1_000, _UNITS[kind.unit]
            milliseconds = -(-ticks // unit) if up else ticks // unit
            text = (
                (_EPOCH + timedelta(milliseconds=milliseconds)).replace(tzinfo=None).isoformat(timespec="milliseconds")
            )
            return f"{text}Z" if kind.tz is not None else text
    except OverflowError:
        return None  # beyond the years 1 to 9999
    return value


# -- identities

_SOURCE: Final = SeenPartition._fields
_FALSE: Final = repeated(False, pa.bool_(), 1)[0]
_FIRST: Final = repeated(0, pa.int32(), 1)[0]


#: The columns by which messages are identified, and what follows them. The first three must be there.
_PLACE: Final = arrow_schema(("topic", "partition", "offset", "broker", "topic_id", "index", "next_offset"))
_KINDS: Final[Mapping[str, Any]] = dict(zip(_PLACE.names, _PLACE.types, strict=True))


def has_identities(schema: pa.Schema) -> bool:
    """Whether rows with these columns are messages of a log."""
    found = {name: kind for name, kind in zip(schema.names, schema.types, strict=True) if name in _KINDS}
    same = all(kind.equals(_KINDS[name]) for name, kind in found.items())
    return bool(same and {"topic", "partition", "offset"} <= found.keys())


class Identities:
    """The offsets of each source, and whether they ascend, of the rows so far."""

    def __init__(self) -> None:
        self.ascending = True
        self._ranges: dict[SeenPartition, tuple[int, int]] = {}
        self._last: dict[SeenPartition, tuple[int, int]] = {}

    def stretches(self) -> tuple[OffsetStretch, ...]:
        return tuple(OffsetStretch(source, start, end) for source, (start, end) in self._ranges.items())

    def add(self, rows: pa.RecordBatch) -> None:
        starts = _run_starts(rows)
        if len(starts) > _MAX_RUNS:
            keys = [(name, "ascending") for name in _SOURCE if name in rows.schema.names]
            rows = rows.take(pc.sort_indices(rows, sort_keys=keys))  # stable: the order within a source stays
            starts = _run_starts(rows)
        for start, stop in zip(starts, [*starts[1:], rows.num_rows], strict=True):
            self._add_run(rows.slice(start, stop - start))

    def _add_run(self, rows: pa.RecordBatch) -> None:
        """Add rows of one source."""
        source = SeenPartition(*(_column(rows, name)[0].as_py() for name in _SOURCE))
        offset, following = rows.column("offset"), _column(rows, "next_offset")
        index = pc.fill_null(_column(rows, "index"), _FIRST)
        self.ascending = self.ascending and not offset.null_count
        found = pc.min_max(offset)
        if found["min"].as_py() is None:
            return
        # Leaves of a compressed message but the last end where they start.
        end = max(found["max"].as_py() + 1, pc.max(following).as_py() or 0)
        start, before = found["min"].as_py(), self._ranges.get(source)
        self._ranges[source] = (start, end) if before is None else (min(before[0], start), max(before[1], end))
        if self.ascending:
            first, last = ((offset[at].as_py(), index[at].as_py()) for at in (0, len(offset) - 1))
            self.ascending = self._last.get(source, (-1, -1)) < first and _ascend(offset, index)
            self._last[source] = last


def _column(rows: pa.RecordBatch, name: str) -> pa.Array:
    at = rows.schema.get_field_index(name)
    return pa.nulls(rows.num_rows, _KINDS[name]) if at < 0 else rows.column(at)


def _run_starts(rows: pa.RecordBatch) -> list[int]:
    """The places at which another source begins than the row before has."""
    changed = None
    for name in _SOURCE:
        column = _column(rows, name)
        if is_constant(column):
            continue
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        differ = pc.fill_null(pc.not_equal(before, after), _FALSE)
        if 0 < column.null_count < len(column):
            differ = pc.or_(differ, pc.xor(pc.is_null(before), pc.is_null(after)))
        changed = differ if changed is None else pc.or_(changed, differ)
    return [0] if changed is None else [0, *(place + 1 for place in pc.indices_nonzero(changed).to_pylist())]


def _ascend(offset: pa.Array, index: pa.Array) -> bool:
    """Whether each place is greater than the one before."""
    count = len(offset) - 1
    before, after = offset.slice(0, count), offset.slice(1)
    further = pc.greater(after, before)
    if pc.all(further, min_count=0).as_py():
        return True
    deeper = pc.greater(index.slice(1), index.slice(0, count))
    return bool(pc.all(pc.or_(further, pc.and_(pc.equal(before, after), deeper))).as_py())

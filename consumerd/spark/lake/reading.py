"""Rows of a data file, in pieces of bounded size, with the columns that its table has now.

A column that the file lacks, because it was added to the table later, is null. Of a part of the batches only those row
groups are read that may have them, by the statistics of the column `batch`. Columns of one value in a row group, as
topic and partition often are, are not decoded: its statistics have that value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from consumerd.spark.lake.arrays import repeated
from consumerd.spark.lake.table import BATCH
from consumerd.spark.tables.errors import TableCorruptError, TableError

#: Bytes of one Arrow batch in memory, about, and rows of it at most.
ARROW_BYTES: Final = 4 << 20
ARROW_ROWS: Final = 65_536
#: Types of which a value of a row group's statistics is repeated instead of decoded.
_REPEATED: Final = frozenset({pa.string(), pa.int32(), pa.int64(), pa.bool_()})


class Opener(Protocol):
    """What opens a file by its name: a `DataFolder`, for one."""

    def open(self, name: str) -> Any:
        """The file for reading at any place. Raises FileNotFoundError."""
        ...


def read_file(
    folder: Opener,
    name: str,
    schema: pa.Schema,
    *,
    after: int = -1,
    to: int | None = None,
    share: tuple[int, int] = (0, 1),
) -> Iterator[pa.RecordBatch]:
    """The rows of batches greater than `after` and up to `to`, in the file's order, with the columns `schema`.

    `share`: (2, 3) is the last third of the file's row groups. Raises TableError for a missing file, TableCorruptError
    for a damaged one.
    """
    try:
        with (
            folder.open(name) as source,
            pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=False) as file,
        ):
            present = set(file.schema_arrow.names)
            columns = [field for field in schema.names if field in present]
            groups = range(file.metadata.num_row_groups)
            number, of = share
            for group in groups[number * len(groups) // of : (number + 1) * len(groups) // of]:
                for rows in _rows_of(file, group, columns, after, to):
                    yield fitted(rows, schema, name)
    except FileNotFoundError:
        raise TableError(
            f"{name} was deleted: a vacuum removed it while this reader had not ended. Run the step again, which "
            "continues where it stopped, and vacuum with a longer retention."
        ) from None
    except pa.ArrowInvalid as error:
        raise TableCorruptError(f"{name} is not a valid Parquet file ({error}): restore it from a backup.") from None


def _rows_of(file: Any, group: int, columns: list[str], after: int, to: int | None) -> Iterator[pa.RecordBatch]:
    metadata = file.metadata.row_group(group)
    statistics = {each.path_in_schema: each.statistics for each in map(metadata.column, range(metadata.num_columns))}
    known = _batches_of(statistics.get(BATCH))
    if known is not None and (known[1] <= after or (to is not None and known[0] > to)):
        return
    whole = (after < 0 and to is None) or (known is not None and known[0] > after and (to is None or known[1] <= to))
    per_row = max(1, metadata.total_byte_size // max(1, metadata.num_rows))
    size = max(1, min(ARROW_ROWS, ARROW_BYTES // per_row))
    same: dict[str, pa.Array] = {}
    for name in columns:
        kind = file.schema_arrow.field(name).type
        value = _only_value(statistics.get(name), kind, metadata.num_rows)
        if value is not None and len(same) + 1 < len(columns):  # one column is decoded, for the number of rows
            same[name] = repeated(value, kind, min(size, metadata.num_rows))
    decoded = [name for name in columns if name not in same]
    for rows in file.iter_batches(batch_size=size, row_groups=[group], columns=decoded, use_threads=False):
        repeats = [each.slice(0, rows.num_rows) for each in same.values()]
        rows = pa.RecordBatch.from_arrays([*rows.columns, *repeats], names=[*rows.schema.names, *same])
        if not whole:
            numbers = rows.column(BATCH)
            mask = pc.greater(numbers, after)
            rows = rows.filter(mask if to is None else pc.and_(mask, pc.less_equal(numbers, to)))
        if rows.num_rows:
            yield rows


def _only_value(statistics: Any, kind: pa.DataType, rows: int) -> Any:
    """The value that all rows of a row group have, by the statistics of the column; None if they differ or are null."""
    if kind not in _REPEATED or statistics is None or not statistics.has_min_max or not statistics.has_null_count:
        return None
    # Where a writer cut long texts, it made the greatest one greater: bounds that are equal are exact.
    least, greatest = statistics.min_raw, statistics.max_raw
    if least != greatest or statistics.null_count or statistics.num_values != rows:
        return None
    return least.decode() if kind == pa.string() else least


def _batches_of(statistics: Any) -> tuple[int, int] | None:
    """Least and greatest batch of a row group, from its statistics."""
    if statistics is None or not statistics.has_min_max or statistics.null_count:
        return None
    return int(statistics.min), int(statistics.max)


def fitted(rows: pa.RecordBatch, schema: pa.Schema, name: str) -> pa.RecordBatch:
    """The rows with the columns of `schema`, in their order. `name`: of their file, for TableCorruptError."""
    arrays = []
    for field in schema:
        index = rows.schema.get_field_index(field.name)
        if index < 0:
            arrays.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(index)
        try:
            arrays.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise TableCorruptError(
                f"{name}: column {field.name} does not match the table's declaration: {error}."
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

"""Rows of a table's files as Arrow batches of bounded size, for the stream over a table.

Strategy: one row group after the other, decoded a piece at a time; how many rows make a piece follows from how large
the group's rows are. A part of a folder's batches is found by the column `batch`, first in the statistics of the row
groups. Columns are brought to the types that were declared; a file without one of them, written before it was added,
has nulls there.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from consumerd.spark.tables.batch_stream import ARROW_BYTES, ARROW_ROWS, Part
from consumerd.spark.tables.errors import TableCorruptError, TableError
from consumerd.spark.tables.schema import BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType


def read_part(part: Part, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a part, in the file's order. Raises TableError, TableCorruptError."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(_open(part.path, stack))
        except FileNotFoundError:
            raise TableError(
                f"{part.path} was deleted: a compaction removed the files that it merged while this query read them. "
                "Run the step again, which continues where it stopped, and raise compact.keep."
            ) from None
        except pa.ArrowInvalid as error:
            raise TableCorruptError(f"{part.path} is not a Parquet file: {error}.") from None
        groups = range(file.metadata.num_row_groups)
        groups = groups[part.share * len(groups) // part.of : (part.share + 1) * len(groups) // part.of]
        present = set(file.schema_arrow.names)
        columns = [name for name in wanted.names if name in present]
        for group in groups:
            for rows in _rows_of(file, group, columns, part):
                yield _fitted(rows, wanted, part.path)


def _open(path: str, stack: contextlib.ExitStack) -> Any:
    options = {"coerce_int96_timestamp_unit": "us", "memory_map": False, "pre_buffer": False, "buffer_size": 1 << 20}
    if "://" not in path:
        return pq.ParquetFile(path, **options)
    import fsspec  # noqa: PLC0415 - only where the table has a URL

    return pq.ParquetFile(stack.enter_context(fsspec.open(path, "rb")), **options)


def _rows_of(file: Any, group: int, columns: list[str], part: Part) -> Iterator[pa.RecordBatch]:
    metadata = file.metadata.row_group(group)
    known = _batches_of(metadata)
    if known is not None and (known[0] > part.last or known[1] < part.first):
        return
    whole = known is not None and known[0] >= part.first and known[1] <= part.last
    per_row = max(1, metadata.total_byte_size // max(1, metadata.num_rows))
    size = max(1, min(ARROW_ROWS, ARROW_BYTES // per_row))
    for rows in file.iter_batches(batch_size=size, row_groups=[group], columns=columns, use_threads=False):
        if not whole:
            numbers = rows.column(BATCH)
            mask = pc.and_(pc.greater_equal(numbers, part.first), pc.less_equal(numbers, part.last))
            rows = rows.filter(mask)
        if rows.num_rows:
            yield rows


def _batches_of(metadata: Any) -> tuple[int, int] | None:
    """Least and greatest batch of a row group, where its statistics tell."""
    for index in range(metadata.num_columns):
        column = metadata.column(index)
        if column.path_in_schema == BATCH:
            statistics = column.statistics
            if statistics is not None and statistics.has_min_max and statistics.null_count == 0:
                return int(statistics.min), int(statistics.max)
    return None


def _fitted(rows: pa.RecordBatch, wanted: pa.Schema, path: str) -> pa.RecordBatch:
    arrays = []
    for field in wanted:
        index = rows.schema.get_field_index(field.name)
        if index < 0:
            arrays.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(index)
        try:
            arrays.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise TableCorruptError(
                f"{path}: column {field.name} does not match the table's declaration: {error}."
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)

"""Rows of a data file, in pieces of bounded size, with the columns that its table has now.

A column that the file lacks, because it was added to the table later, is null. Of a part of the batches only those row
groups are read that may have them, by the statistics of the column `batch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from consumerd.spark.lake.table import BATCH
from consumerd.spark.tables.errors import TableCorruptError, TableError

#: Bytes of one Arrow batch in memory, about, and rows of it at most.
ARROW_BYTES: Final = 4 << 20
ARROW_ROWS: Final = 65_536


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
    known = _batches_of(metadata)
    if known is not None and (known[1] <= after or (to is not None and known[0] > to)):
        return
    whole = (after < 0 and to is None) or (known is not None and known[0] > after and (to is None or known[1] <= to))
    per_row = max(1, metadata.total_byte_size // max(1, metadata.num_rows))
    size = max(1, min(ARROW_ROWS, ARROW_BYTES // per_row))
    for rows in file.iter_batches(batch_size=size, row_groups=[group], columns=columns, use_threads=False):
        if not whole:
            numbers = rows.column(BATCH)
            mask = pc.greater(numbers, after)
            rows = rows.filter(mask if to is None else pc.and_(mask, pc.less_equal(numbers, to)))
        if rows.num_rows:
            yield rows


def _batches_of(metadata: Any) -> tuple[int, int] | None:
    """Least and greatest batch of a row group, from its statistics."""
    for index in range(metadata.num_columns):
        column = metadata.column(index)
        if column.path_in_schema == BATCH:
            statistics = column.statistics
            if statistics is not None and statistics.has_min_max and not statistics.null_count:
                return int(statistics.min), int(statistics.max)
    return None


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

"""A Parquet table as a stream whose offsets are batch numbers, so that compaction does not disturb it.

Strategy. The planner lists directories and assigns files; executors read them with pyarrow in pieces of bounded size.
An offset is `{"batch": n}`, the last batch that was read; a directory that covers more than requested is read through a
filter on the column `batch`. Nothing is kept between calls but the target of an AvailableNow query.

Files are opened without a JVM, with fsspec if the path is a URL (its driver for the scheme must be installed).
Executors import this module.

A file is read one row group after the other, a piece at a time; the number of rows in a piece follows from the size of
the group's rows. A part of a directory's batches is found by the column `batch`, first in the statistics of the row
groups. Columns are cast to the declared types; a column that a file lacks, because it was added later, is null.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from consumerd.spark.tables.errors import TableCorruptError, TableError
from consumerd.spark.tables.layout import Slice, cut, has_gap, parse_folders, resolve
from consumerd.spark.tables.schema import BATCH

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Bytes of files that one task reads, about.
TASK_BYTES: Final = 64 << 20
#: Bytes of one Arrow batch in memory, about, and rows of it at most.
ARROW_BYTES: Final = 4 << 20
ARROW_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class FilePart:
    """Some row groups of one file: of `of` equal shares of its groups that with number `share`."""

    path: str
    share: int
    of: int
    first: int
    last: int


class TaskParts(InputPartition):
    """The parts that one task reads, in this order."""

    def __init__(self, parts: tuple[FilePart, ...]) -> None:
        self.parts = parts


class TableStream(DataSource):
    """Format `consumerd-batches`: options `path` (of the table) and `batchesPerTrigger`. The schema has to be given."""

    @classmethod
    def name(cls) -> str:
        return "consumerd-batches"

    def streamReader(self, schema: StructType) -> BatchStreamReader:  # noqa: N802 - pyspark's name
        limit = self.options.get("batchesPerTrigger")
        return BatchStreamReader(self.options["path"], schema, int(limit) if limit is not None else None)


class BatchStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module's text."""

    def __init__(self, path: str, schema: StructType, limit: int | None) -> None:
        self._path = path
        self._schema = schema
        self._limit = limit
        self._target: int | None = None

    # In the planner.

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - pyspark's name
        return {"batch": -1}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - pyspark's name
        # Of the limits that Spark hands on none counts batches; files come nearest.
        return ReadAllAvailable() if self._limit is None else ReadMaxFiles(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - pyspark's name
        self._target = self._last()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - pyspark's name
        after = start["batch"]
        last = self._last() if self._target is None else self._target
        if last <= after:
            return start
        if isinstance(limit, ReadMaxFiles):
            last = min(last, after + limit.max_files)
        return {"batch": last}

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - pyspark's name
        return {"batch": self._last()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[TaskParts]:
        parts = []
        for each in cut(self._slices(), start["batch"], end["batch"]):
            for path, size in _parquet_files(f"{self._path}/{each.folder.name}"):
                shares = max(1, round(size / TASK_BYTES))
                parts += [
                    (FilePart(path, share, shares, each.first, each.last), size // shares) for share in range(shares)
                ]
        return [TaskParts(packed) for packed in pack(parts, TASK_BYTES)]

    def _slices(self) -> list[Slice]:
        slices = resolve(parse_folders(_names(self._path)))
        if has_gap(slices):
            slices = resolve(parse_folders(_names(self._path)))  # see ParquetTable.slices
        return slices

    def _last(self) -> int:
        slices = self._slices()
        return slices[-1].last if slices else -1

    # In a worker.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskParts)
        for part in partition.parts:
            yield from read_part(part, self._schema)


def pack(parts: Iterable[tuple[FilePart, int]], limit: int) -> list[tuple[FilePart, ...]]:
    """Neighbours combined up to `limit` bytes: a task costs more than a small file."""
    packed: list[tuple[FilePart, ...]] = []
    held = limit
    for part, size in parts:
        if held + size > limit:
            packed.append(())
            held = 0
        packed[-1] += (part,)
        held += size
    return packed


def _names(path: str) -> list[str]:
    """Names in a folder."""
    if "://" not in path:
        return [each.name for each in Path(path).iterdir()]
    system, inner = _store(path)
    return [each.rstrip("/").rpartition("/")[2] for each in system.ls(inner, detail=False)]


def _store(url: str) -> tuple[Any, str]:
    """The store of a URL, and the path in it. A driver's cache of listings would hide what is written while we read."""
    import fsspec  # noqa: PLC0415 - only where the table has a URL

    system, inner = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    return system, inner


def _parquet_files(path: str) -> list[tuple[str, int]]:
    """Parquet files in a folder, in the order of their names, with their sizes."""
    if "://" not in path:
        with os.scandir(path) as scan:
            found = [(each.path, each.stat().st_size) for each in scan]
    else:
        system, inner = _store(path)
        found = [
            (f"{path}/{e['name'].rstrip('/').rpartition('/')[2]}", int(e["size"]))
            for e in system.ls(inner, detail=True)
        ]
    return sorted((file, size) for file, size in found if file.rpartition("/")[2][:1] not in "._")


def read_part(part: FilePart, schema: StructType) -> Iterator[pa.RecordBatch]:
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


def _rows_of(file: Any, group: int, columns: list[str], part: FilePart) -> Iterator[pa.RecordBatch]:
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
    """Least and greatest batch of a row group, from its statistics."""
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

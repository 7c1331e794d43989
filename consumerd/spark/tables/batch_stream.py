"""A table as a stream whose offsets are batch numbers, so that compaction does not disturb it.

Strategy. The planner finds the files that may have the requested batches and assigns them; executors read them with
pyarrow in pieces of bounded size. An offset is `{"batch": n}`, the last batch that was read; a file that covers more
than requested is read through a filter on the column `batch`. Nothing is kept between calls but the target of an
AvailableNow query.

A table of the lake names its files (`consumerd.spark.lake`). One in the earlier Parquet layout has a directory for each
batch; where such a table has a URL, its files are opened with fsspec, whose driver for the scheme must be installed.
Executors import this module, and need no JVM to open files.

Delta's own stream, which earlier releases used, has other offsets: the version of the table up to which, and without,
everything was read. They are translated to the last batch before that version.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from consumerd.spark.lake.batch_files import BatchFile, LakeFiles
from consumerd.spark.lake.reading import read_file
from consumerd.spark.lake.tasks import store_of
from consumerd.spark.tables.layout import Slice, cut, has_gap, parse_folders, resolve

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


#: Bytes of files that one task reads, about.
TASK_BYTES: Final = 64 << 20


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
    """Format `consumerd-batches`. The schema has to be given.

    Options: `path` of the table, `tableFormat` (that of a table of the lake; without it the table is in the earlier
    Parquet layout) and `batchesPerTrigger`.
    """

    @classmethod
    def name(cls) -> str:
        return "consumerd-batches"

    def streamReader(self, schema: StructType) -> BatchStreamReader:  # noqa: N802 - pyspark's name
        path, kind, limit = (self.options.get(name) for name in ("path", "tableFormat", "batchesPerTrigger"))
        assert path is not None
        files = FolderFiles(path) if kind is None else LakeFiles(path, kind, store_of(self.options))
        return BatchStreamReader(files, schema, None if limit is None else int(limit))


class BatchFiles(Protocol):
    """The files of a table. A reader of each file is in executors, too."""

    def last(self) -> int:
        """The last batch; -1 without any."""
        ...

    def files(self, after: int, to: int) -> Iterable[BatchFile]:
        """The files with batches greater than `after` and not greater than `to`."""
        ...

    def open(self, name: str) -> Any:
        """The file of that path, for reading."""
        ...

    def reached(self, offset: dict[str, Any]) -> int:
        """The last batch that was read, from an offset of Spark's checkpoint."""
        ...


class BatchStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module's text."""

    def __init__(self, files: BatchFiles, schema: StructType, limit: int | None) -> None:
        self._files = files
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
        self._target = self._files.last()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - pyspark's name
        after = self._files.reached(start)
        last = self._files.last() if self._target is None else self._target
        if last <= after:
            return start
        if isinstance(limit, ReadMaxFiles):
            last = min(last, after + limit.max_files)
        return {"batch": last}

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - pyspark's name
        return {"batch": self._files.last()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[TaskParts]:
        parts = []
        for file in self._files.files(self._files.reached(start), self._files.reached(end)):
            shares = max(1, round(file.size / TASK_BYTES))
            parts += [
                (FilePart(file.path, share, shares, file.first, file.last), file.size // shares)
                for share in range(shares)
            ]
        return [TaskParts(packed) for packed in pack(parts, TASK_BYTES)]

    # In a worker.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskParts)
        for part in partition.parts:
            yield from read_part(part, self._schema, self._files)


class FolderFiles:
    """The files of a table in the earlier Parquet layout, whose directories have the numbers of their batches."""

    def __init__(self, path: str) -> None:
        self._path = path

    def last(self) -> int:
        slices = self._slices()
        return slices[-1].last if slices else -1

    def files(self, after: int, to: int) -> Iterator[BatchFile]:
        for each in cut(self._slices(), after, to):
            for path, size in _parquet_files(f"{self._path}/{each.folder.name}"):
                yield BatchFile(path, size, each.first, each.last)

    def _slices(self) -> list[Slice]:
        slices = resolve(parse_folders(_names(self._path)))
        if has_gap(slices):
            slices = resolve(parse_folders(_names(self._path)))  # see ParquetTable.slices
        return slices

    def open(self, name: str) -> Any:
        if "://" not in name:
            return pa.OSFile(name, "rb")
        import fsspec  # noqa: PLC0415 - only where the table has a URL

        return fsspec.open(name, "rb")

    def reached(self, offset: dict[str, Any]) -> int:
        return int(offset["batch"])


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


def read_part(part: FilePart, schema: StructType, files: BatchFiles) -> Iterator[pa.RecordBatch]:
    """The rows of a part, in the file's order. Raises TableError, TableCorruptError."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    batches = {"after": part.first - 1, "to": part.last}
    return read_file(files, part.path, wanted, **batches, share=(part.share, part.of))

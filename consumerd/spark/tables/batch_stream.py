"""A Parquet table as a stream whose offsets are batch numbers, so that compaction does not disturb it.

Strategy. The planner lists folders and hands files out; executors read them with pyarrow in pieces of bounded size. An
offset is `{"batch": n}`, the last batch that was read; a folder that covers more than was asked for is read through a
filter on the column `batch`. Nothing is kept between calls but the target of an AvailableNow query.

Only files are opened here, with fsspec where the path is a URL (its driver for the scheme has to be installed); no JVM
is within reach of these processes. Executors import this module: it pulls in pyarrow only where rows are read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from consumerd.spark.tables.layout import Slice, cut, has_gap, parse_folders, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

#: Bytes of files that one task reads, about.
TASK_BYTES: Final = 64 << 20
#: Bytes of one Arrow batch in memory, about, and rows of it at most.
ARROW_BYTES: Final = 4 << 20
ARROW_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Part:
    """Some row groups of one file: of `of` equal shares of its groups that with number `share`."""

    path: str
    share: int
    of: int
    first: int
    last: int


class Parts(InputPartition):
    """What one task reads, in this order."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.parts = parts


class BatchStream(DataSource):
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

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Parts]:
        parts = []
        for each in cut(self._slices(), start["batch"], end["batch"]):
            for path, size in _parquet_files(f"{self._path}/{each.folder.name}"):
                shares = max(1, round(size / TASK_BYTES))
                parts += [(Part(path, share, shares, each.first, each.last), size // shares) for share in range(shares)]
        return [Parts(packed) for packed in pack(parts, TASK_BYTES)]

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
        assert isinstance(partition, Parts)
        from consumerd.spark.tables.batch_reading import read_part  # noqa: PLC0415 - the planner reads no rows

        for part in partition.parts:
            yield from read_part(part, self._schema)


def pack(parts: Iterable[tuple[Part, int]], limit: int) -> list[tuple[Part, ...]]:
    """Neighbours put together up to `limit` bytes: a task costs more than a small file."""
    packed: list[tuple[Part, ...]] = []
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
    import fsspec  # noqa: PLC0415 - only where the table has a URL

    system, inner = fsspec.core.url_to_fs(path)
    return [each.rstrip("/").rpartition("/")[2] for each in system.ls(inner, detail=False)]


def _parquet_files(path: str) -> list[tuple[str, int]]:
    """Parquet files in a folder, in the order of their names, with their sizes."""
    if "://" not in path:
        with os.scandir(path) as scan:
            found = [(each.path, each.stat().st_size) for each in scan]
    else:
        import fsspec  # noqa: PLC0415 - as above

        system, inner = fsspec.core.url_to_fs(path)
        found = [(f"{path}/{e['name'].rstrip('/').rpartition('/')[2]}", int(e["size"])) for e in system.ls(inner)]
    return sorted((file, size) for file, size in found if file.rpartition("/")[2][:1] not in "._")

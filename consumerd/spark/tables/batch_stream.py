"""A table as a stream whose offsets are batch numbers, so that compaction does not disturb it.

Strategy. The planner finds the files that may have the requested batches and assigns them; executors read them with
pyarrow in pieces of bounded size. An offset is `{"batch": n}`, the last batch that was read; a file that covers more
than requested is read through a filter on the column `batch`. Nothing is kept between calls but the target of an
AvailableNow query.

Executors import this module, and need no JVM to open files.

Delta's own stream, which earlier releases used, has other offsets: the version of the table up to which, and without,
everything was read. They are translated to the last batch before that version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from consumerd.spark.lake.batch_files import LakeFiles
from consumerd.spark.lake.reading import read_file
from consumerd.spark.lake.tasks import store_of

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

    Options: `path` and `tableFormat` of the table, `batchesPerTrigger`, `lastBatch`, and those of its store.
    """

    @classmethod
    def name(cls) -> str:
        return "consumerd-batches"

    def streamReader(self, schema: StructType) -> BatchStreamReader:  # noqa: N802 - pyspark's name
        files = files_of(self.options)
        limit = self.options.get("batchesPerTrigger")
        return BatchStreamReader(files, schema, None if limit is None else int(limit))


def files_of(options: Mapping[str, str]) -> LakeFiles:
    """The files that a stream with these options reads."""
    most = options.get("lastBatch")
    return LakeFiles(
        options["path"], options["tableFormat"], store_of(options), most=None if most is None else int(most)
    )


class BatchStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module's text."""

    def __init__(self, files: LakeFiles, schema: StructType, limit: int | None) -> None:
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


def read_part(part: FilePart, schema: StructType, files: LakeFiles) -> Iterator[pa.RecordBatch]:
    """The rows of a part, in the file's order. Raises TableError, TableCorruptError."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    batches = {"after": part.first - 1, "to": part.last}
    return read_file(files, part.path, wanted, **batches, share=(part.share, part.of))

"""The stream of `spark refine`: as that of a table's batches, but its tasks write files of silver and quarantine.

Strategy: a task decodes whole files of bronze, and Spark gets one row that describes what it wrote, so that no message
passes through the JVM. Files are not divided among tasks: the messages of a compressed set share an offset, and two
tasks with a part of one would seem to have the same messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from consumerd.spark.lake.batch_files import LakeFiles
from consumerd.spark.lake.reading import read_file
from consumerd.spark.lake.refine import RefineTarget, refine_rows
from consumerd.spark.lake.tasks import store_of
from consumerd.spark.tables.batch_stream import TASK_BYTES, BatchStreamReader, FilePart, TaskParts, files_of, pack

#: The option with the target, `RefineTarget.to_json`. The others are those of TableStream.
TARGET: Final = "target"
#: What a task returns: `RefinedFiles.to_json`, and the batches of bronze that it has read.
REFINED_DDL: Final = "files string, first bigint, last bigint"
#: The local property with the number of the batch that a task of a streaming query computes.
_BATCH_PROPERTY: Final = "streaming.sql.batchId"
_REFINED: Final = pa.schema([("files", pa.string()), ("first", pa.int64()), ("last", pa.int64())])


class RefiningSource(DataSource):
    """Format `consumerd-refining`, for streams only."""

    @classmethod
    def name(cls) -> str:
        return "consumerd-refining"

    def schema(self) -> str:
        return REFINED_DDL

    def streamReader(self, schema: StructType) -> RefiningReader:  # noqa: N802 - Spark's name
        target = replace(RefineTarget.from_json(self.options[TARGET]), storage_options=store_of(self.options))
        return RefiningReader(files_of(self.options), schema, int(self.options["batchesPerTrigger"]), target)


class RefiningReader(BatchStreamReader):
    """Plans as the stream of a table, and writes in executors."""

    def __init__(self, files: LakeFiles, schema: StructType, limit: int, target: RefineTarget) -> None:
        super().__init__(files, schema, limit)
        self._target_files = target

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[TaskParts]:
        files = self._files.files(self._files.reached(start), self._files.reached(end))
        parts = [(FilePart(file.path, 0, 1, file.first, file.last), file.size) for file in files]
        return [TaskParts(packed) for packed in pack(parts, TASK_BYTES)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskParts)
        target = self._target_files
        rows = chain.from_iterable(
            read_file(self._files, part.path, target.bronze, after=part.first - 1, to=part.last)
            for part in partition.parts
        )
        written = refine_rows(rows, target, batch_of_task(), datetime.now(UTC))
        first, last = partition.parts[0].first, partition.parts[0].last
        found = [{"files": each.to_json(), "first": first, "last": last} for each in written]
        yield pa.RecordBatch.from_pylist(found, schema=_REFINED)


def batch_of_task() -> int:
    """The number of the batch that this task of a streaming query computes."""
    context = TaskContext.get()
    batch = None if context is None else context.getLocalProperty(_BATCH_PROPERTY)
    if batch is None:
        raise RuntimeError("not in a task of a streaming query")
    return int(batch)

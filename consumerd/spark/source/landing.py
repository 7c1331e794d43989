"""The stream of `spark land`: as the data source `consumerd`, but its tasks write the files of a table themselves.

Strategy: a task reads its split and writes one file, and Spark gets one row that describes it, so that no message
passes through the JVM. The driver commits the files of a batch together. Files hold the source's columns, the time at
which they were landed and the number of the batch, which Spark gives to each task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from consumerd.base.errors import ConsumerdError
from consumerd.spark.lake.table import BATCH
from consumerd.spark.lake.tasks import (
    FILE_DDL,
    FOLDER_OPTION,
    LANDED_AT,
    STORE_OPTION,
    FileTarget,
    landed_schema,
    store_of,
)
from consumerd.spark.source.datasource import ConsumerdDataSource, RejectedStreamReader, StreamReader
from consumerd.spark.source.options import BATCH_ONLY, SourceOptions, read_options, refuse_options
from consumerd.spark.source.request import ReadRequest

#: The local property with the number of the batch that a task of a streaming query computes.
_BATCH_PROPERTY: Final = "streaming.sql.batchId"


class LandingSource(ConsumerdDataSource):
    """Format `consumerd-landing`, for streams only. Options: the source's, FOLDER_OPTION and STORE_OPTION."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._folder, self._store = options.get(FOLDER_OPTION, ""), store_of(options)
        super().__init__({name: each for name, each in options.items() if name not in (FOLDER_OPTION, STORE_OPTION)})

    @classmethod
    def name(cls) -> str:
        return "consumerd-landing"

    def schema(self) -> str:
        return FILE_DDL

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        try:
            refuse_options(self._given, BATCH_ONLY, "a stream")
            read = read_options(self._given)
        except ConsumerdError as error:
            return RejectedStreamReader(error)
        return LandingReader(read, self._folder, self._store)


class LandingReader(StreamReader):
    """Plans as the source's stream, and writes in executors."""

    def __init__(self, options: SourceOptions, folder: str, store: Mapping[str, str]) -> None:
        super().__init__(options, ReadRequest.of(options))
        self._folder = folder
        self._store = store

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        constants = {LANDED_AT: datetime.now(UTC), BATCH: batch_of_task()}
        target = FileTarget(self._folder, landed_schema(self._options), constants, self._store)
        return target.write(super().read(partition))


def batch_of_task() -> int:
    """The number of the batch that this task of a streaming query computes."""
    context = TaskContext.get()
    batch = None if context is None else context.getLocalProperty(_BATCH_PROPERTY)
    if batch is None:
        raise RuntimeError("not in a task of a streaming query")
    return int(batch)

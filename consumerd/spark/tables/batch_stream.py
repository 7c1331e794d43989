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

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from consumerd.spark.lake.batch_files import LakeFiles, TableBatches
from consumerd.spark.lake.parts import file_tasks
from consumerd.spark.lake.tasks import store_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TableStream(DataSource):
    """Format `consumerd-batches`. The schema has to be given.

    Options: `path` and `tableFormat` of the table, `batchesPerTrigger`, and those of its store.
    """

    @classmethod
    def name(cls) -> str:
        return "consumerd-batches"

    def streamReader(self, schema: StructType) -> BatchStreamReader:  # noqa: N802 - pyspark's name
        files = LakeFiles(self.options["path"], self.options["tableFormat"], store_of(self.options))
        limit = self.options.get("batchesPerTrigger")
        return BatchStreamReader(files, schema, None if limit is None else int(limit))


class BatchStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module's text."""

    def __init__(self, files: LakeFiles, schema: StructType, limit: int | None) -> None:
        self._files = files
        self._schema = schema
        self._limit = limit
        self._batches = TableBatches(files)

    # In the planner.

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - pyspark's name
        return self._batches.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - pyspark's name
        # Of the limits that Spark hands on none counts batches; files come nearest.
        return ReadAllAvailable() if self._limit is None else ReadMaxFiles(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - pyspark's name
        self._batches.stop_at_present()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - pyspark's name
        return self._batches.latest(start, limit.max_files if isinstance(limit, ReadMaxFiles) else None)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - pyspark's name
        return self._batches.reported()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        found = self._files.files(self._files.reached(start), self._files.reached(end))
        return [InputPartition(parts) for parts in file_tasks(self._files, found)]

    # In a worker.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for part in partition.value:
            yield from part.read(schema)

"""The land step: messages from the source into bronze, unchanged.

Strategy: one streaming query. Its checkpoint defines the offsets of a batch before the batch is read, so after any kill
batch N has the same messages again, and the table knows whether it has batch N. Tasks write the files of the table, and
the driver commits those of a batch together. Nothing is parsed and nothing is left out: bytes that cannot be read
become a row with the reason. A new pipeline starts at the earliest offset, not at the latest as streams do by default,
because it is to land everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.spark.beginning import begin, note_new, source_options
from consumerd.spark.checkpoints import Checkpoint, OffsetLog
from consumerd.spark.failures import declared_errors
from consumerd.spark.lake.checkpoint import WritableCheckpoint
from consumerd.spark.lake.handover import catch_up, must_have, planned_offsets
from consumerd.spark.lake.tasks import LANDED_AT, landed_schema
from consumerd.spark.queries import run_query
from consumerd.spark.results import LandResult
from consumerd.spark.source.discovery import committer_of
from consumerd.spark.source.landing import LandingSource
from consumerd.spark.source.options import read_options
from consumerd.spark.tables.lake import LakeBatchTable

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec


def land(spark: SparkSession, pipeline: PipelineSpec, *, available_now: bool = True) -> LandResult:
    """Land all available messages; with `available_now=False`, repeat at the pipeline's `trigger` until a signal.

    Raises ConsumerdError: of the source (options, brokers, data loss), of the table (owned by another checkpoint,
    behind this one) and of Spark.
    """
    with declared_errors():
        landing = _Landing(spark, pipeline)
        options = begin(spark, pipeline, source_options(pipeline))
        spark.dataSource.register(LandingSource)
        options_of_tasks = {**options, **landing.table.landing_options}
        stream = spark.readStream.format(LandingSource.name()).options(**options_of_tasks).load()
        store = partial(landing.store_files, landed_schema(read_options(options)))
    interval = None if available_now or not pipeline.is_continuous else pipeline.trigger
    result = landing.run(stream, store, interval)
    return replace(result, committed=_commit(spark, pipeline))


def land_stream(
    spark: SparkSession, pipeline: PipelineSpec, stream: DataFrame, *, interval: str | None = None
) -> LandResult:
    """As `land`, from any stream: its columns become bronze's. Raises ConsumerdError."""
    with declared_errors():
        landing = _Landing(spark, pipeline)
    return landing.run(stream, landing.store_rows, interval)


class _Landing:
    """One run. Raises what opening bronze and comparing it with the checkpoint raises."""

    def __init__(self, spark: SparkSession, pipeline: PipelineSpec) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self.table = LakeBatchTable(spark, pipeline.bronze, pipeline.format)
        self._checkpoint = Checkpoint(spark, pipeline.checkpoint("land"))
        catch_up(pipeline, WritableCheckpoint(self._checkpoint.path, spark), self.table.lake, spark)
        self._checkpoint.must_match(self.table)
        self._before = self.table.last_batch
        #: Rows that tasks wrote; None while only the table knows.
        self._rows: int | None = None

    def store_files(self, schema: pa.Schema, files: DataFrame, batch: int) -> None:
        """Commit the files that the tasks of a batch write."""
        note_new(self._spark, self._pipeline, batch)
        end = OffsetLog(self._spark, self._checkpoint.path).end(batch)
        offsets = planned_offsets(self._spark, self._pipeline, batch, end)
        writer = self._checkpoint.query_id()
        rows = self.table.append_files(files, schema=schema, writer=writer, batch=batch, offsets=offsets)
        if rows is None:
            must_have(self.table.lake, batch, end)
        self._rows = (self._rows or 0) + (rows or 0)

    def store_rows(self, rows: DataFrame, batch: int) -> None:
        """Append the rows of a batch."""
        note_new(self._spark, self._pipeline, batch)
        rows = rows.withColumn(LANDED_AT, F.current_timestamp())
        self.table.append(rows, writer=self._checkpoint.query_id(), batch=batch)

    def run(self, stream: DataFrame, store: Callable[[DataFrame, int], None], interval: str | None) -> LandResult:
        """Pass the batches of `stream` to `store`. Raises ConsumerdError."""
        run = run_query(self._spark, self._pipeline, "land", stream, store, interval=interval)
        with declared_errors():
            last = self.table.last_batch
            return LandResult(
                pipeline=self._pipeline.name,
                table=self.table.path,
                rows=self._count(last) if self._rows is None else self._rows,
                batches=run.batches,
                last_batch=last,
                seconds=run.seconds,
                stopped=run.stopped,
            )

    def _count(self, last: int | None) -> int:
        if last in (None, self._before):
            return 0
        return self.table.read(after=-1 if self._before is None else self._before).count()


def _commit(spark: SparkSession, pipeline: PipelineSpec) -> int:
    """Write how far the table is for lag tools, if the pipeline asks for it; how many offsets changed.

    While a query runs its source does that after every batch but the last, of which Spark does not tell it.
    """
    committer = committer_of(read_options(pipeline.source))
    if committer is None:
        return 0
    checkpoint = Checkpoint(spark, pipeline.checkpoint("land"))
    last = checkpoint.last_committed()
    reached = None if last is None else OffsetLog(spark, checkpoint.path).end(last)
    return 0 if reached is None else committer.commit(reached)

"""The land step in tasks of Spark: messages from the source into bronze, unchanged.

What a batch is, and how it is stored once, is `consumerd.spark.lake.land`'s. It is planned in this process, and no
streaming query runs for it: that would need a second Python process to plan, and waits by the machine's clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.spark.beginning import note_new
from consumerd.spark.failures import declared_errors
from consumerd.spark.jobs import SparkTasks
from consumerd.spark.lake.batches import BatchDisplay
from consumerd.spark.lake.checkpoint import WritableCheckpoint
from consumerd.spark.lake.handover import catch_up
from consumerd.spark.lake.land import land_by_tasks
from consumerd.spark.lake.tasks import LANDED_AT
from consumerd.spark.queries import run_query
from consumerd.spark.results import LandResult
from consumerd.spark.tables.lake import LakeBatchTable

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec


def land(
    spark: SparkSession,
    pipeline: PipelineSpec,
    *,
    available_now: bool = True,
    display: BatchDisplay | None = None,
) -> LandResult:
    """Land all available messages; with `available_now=False`, repeat at the pipeline's `trigger` until a signal.

    Raises ConsumerdError: of the source (options, brokers, data loss), of the table (owned by another checkpoint,
    behind this one) and of Spark.
    """
    with declared_errors(pipeline.base):
        bronze = LakeBatchTable(spark, pipeline.bronze, pipeline.format)
        return land_by_tasks(
            pipeline,
            bronze.lake,
            SparkTasks(spark),
            spark=spark,
            storage_options=bronze.store,
            available_now=available_now,
            display=display,
        )


def land_stream(
    spark: SparkSession, pipeline: PipelineSpec, stream: DataFrame, *, interval: str | None = None
) -> LandResult:
    """Land the rows of any stream: its columns become bronze's. `interval`: until a signal. Raises ConsumerdError."""
    with declared_errors():
        table = LakeBatchTable(spark, pipeline.bronze, pipeline.format)
        checkpoint = WritableCheckpoint(pipeline.checkpoint("land"), spark)
        catch_up(pipeline, checkpoint, table.lake, spark)
        checkpoint.must_match(table)
        before = table.last_batch

    def store(rows: DataFrame, batch: int) -> None:
        note_new(spark, pipeline, batch)
        rows = rows.withColumn(LANDED_AT, F.current_timestamp())
        table.append(rows, writer=checkpoint.query_id(), batch=batch)

    run = run_query(spark, pipeline, "land", stream, store, interval=interval)
    with declared_errors():
        last = table.last_batch
        new = last not in (None, before)
        return LandResult(
            pipeline=pipeline.name,
            table=table.path,
            rows=table.read(after=-1 if before is None else before).count() if new else 0,
            batches=run.batches,
            last_batch=last,
            seconds=run.seconds,
            stopped=run.stopped,
        )

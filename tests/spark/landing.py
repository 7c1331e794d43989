"""Rows of any stream as batches of bronze, as earlier releases landed: for tests of what reads bronze."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.spark.checkpoints import Checkpoint
from consumerd.spark.lake.tasks import LANDED_AT
from consumerd.spark.queries import run_query
from consumerd.spark.tables.lake import LakeBatchTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from consumerd.spark.spec import PipelineSpec


def land_stream(
    spark: SparkSession, pipeline: PipelineSpec, stream: DataFrame, kind: type[LakeBatchTable] = LakeBatchTable
) -> int:
    """Land the rows of a stream; returns how many are new in the table."""
    table = kind(spark, pipeline.bronze, pipeline.format)
    checkpoint = Checkpoint(spark, pipeline.checkpoint("land"))
    before = table.last_batch

    def store(rows: DataFrame, batch: int) -> None:
        table.append(rows.withColumn(LANDED_AT, F.current_timestamp()), writer=checkpoint.query_id(), batch=batch)

    run_query(spark, pipeline, "land", stream, store)
    return 0 if table.last_batch in (None, before) else table.read(after=-1 if before is None else before).count()

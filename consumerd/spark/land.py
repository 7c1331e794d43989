"""The land step in tasks of Spark: messages from the source into bronze, unchanged.

What a batch is, and how it is stored once, is `consumerd.spark.lake.land`'s. It is planned in this process, and no
streaming query runs for it: that would need a second Python process to plan, and waits by the machine's clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from consumerd.spark.failures import declared_errors
from consumerd.spark.jobs import SparkTasks
from consumerd.spark.lake.batches import BatchDisplay
from consumerd.spark.lake.land import LandStep
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
        step = LandStep(pipeline, bronze.lake, SparkTasks(spark), spark=spark, display=display)
        return step.run(available_now=available_now)

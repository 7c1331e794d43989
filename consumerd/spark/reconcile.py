"""The reconcile step: whether every message has landed once and unaltered, in tasks of Spark.

What is compared is `consumerd.spark.reconciliation`'s. Tasks read files and splits with Arrow, so that no row passes
through the JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from consumerd.spark.failures import declared_errors
from consumerd.spark.jobs import SparkTasks
from consumerd.spark.lake.reconcile_runs import TABLES
from consumerd.spark.reconcile_result import ReconcileResult
from consumerd.spark.reconciliation import Reconciliation
from consumerd.spark.tables.lake import LakeBatchTable

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec


def reconcile(spark: SparkSession, pipeline: PipelineSpec, *, shallow: bool = False) -> ReconcileResult:
    """Compare the messages to be landed with the rows of the pipeline's tables.

    `shallow`: do not read the source again but where bronze has gaps; then nothing is counted there, and altered values
    are not noticed. Raises NotFoundError where nothing was landed yet, and what reading the source raises.
    """
    with declared_errors():
        tables = {name: LakeBatchTable(spark, getattr(pipeline, name), pipeline.format) for name in TABLES}
        read = {name: each.in_tasks for name, each in tables.items()}
        return Reconciliation(spark, pipeline, read, SparkTasks(spark).run).result(shallow=shallow)

"""`reconcile` of tables of the lake, in worker processes. What is compared is `consumerd.spark.reconciliation`'s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.batches import BatchDisplay, SilentDisplay, run_shown
from consumerd.spark.lake.parts import ReadTable, size_of
from consumerd.spark.lake.reconcile_runs import TABLES
from consumerd.spark.lake.worker import WorkFunction
from consumerd.spark.lake.workers import WorkerPool, available_processors
from consumerd.spark.reconcile_result import ReconcileResult
from consumerd.spark.reconciliation import Reconciliation
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec


def reconcile(
    pipeline: PipelineSpec, *, shallow: bool = False, workers: int | None = None, display: BatchDisplay | None = None
) -> ReconcileResult:
    """Compare the messages to be landed with the rows of the pipeline's tables, in worker processes.

    `shallow`: do not read the source again but where bronze has gaps; then nothing is counted there, and altered values
    are not noticed. Raises NotFoundError where nothing was landed yet, and what reading the source raises.
    """
    tables = {
        name: ReadTable(open_lake_table(locate(None, getattr(pipeline, name))[0], pipeline.format), pipeline.format)
        for name in TABLES
    }
    shown = display or SilentDisplay()
    with WorkerPool(workers or available_processors()) as pool:

        def run(function: WorkFunction, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
            shown.batch(None, sum(size_of(part) for parts, *_ in tasks for part in parts))
            return run_shown(pool, shown, function, tasks)

        return Reconciliation(None, pipeline, tables, run).result(shallow=shallow)

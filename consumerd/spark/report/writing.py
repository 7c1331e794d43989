"""Write a pipeline's report: measure its tables, render the page, replace the file atomically."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from consumerd.spark.failures import declared_errors
from consumerd.spark.progress import open_log
from consumerd.spark.reconcile_result import ReconcileResult
from consumerd.spark.report.facts import LandedFacts, QuarantineFacts, ReportFacts, StepResult, TablePreview
from consumerd.spark.report.measure import measure_landed, measure_quarantine, preview
from consumerd.spark.report.page import render
from consumerd.spark.source.options import SECRET, read_options
from consumerd.spark.tables import open_table
from consumerd.spark.tables.files import locate
from consumerd.spark.tables.table import BatchTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.spec import PipelineSpec


@dataclass(frozen=True, slots=True)
class ReportResult:
    """The place to which the page was written: a path or a URL."""

    pipeline: str
    page: str

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def write_report(spark: SparkSession, pipeline: PipelineSpec, results: Mapping[str, StepResult]) -> ReportResult:
    """Write the page of a pipeline, replacing the last one.

    `results`: the results of the steps of this run, by their names. Without one of `reconcile` the page says that it is
    unknown whether everything landed. Tables that do not exist yet are not an error. Raises ConsumerdError.
    """
    reconciled = results.get("reconcile")
    with declared_errors():
        path, files = locate(spark, pipeline.report, renames=False)
        text = render(
            ReportFacts(
                pipeline=pipeline.name,
                made=datetime.now(UTC),
                source=tuple((name, _shown(name, value)) for name, value in pipeline.source.items()),
                counts_messages=read_options(pipeline.source).counts_messages,
                landed=_landed(_table(spark, pipeline, pipeline.bronze)),
                progress=open_log(spark, pipeline, "land").read(),
                refined=_count(_table(spark, pipeline, pipeline.silver)),
                quarantine=_quarantine(spark, pipeline),
                aggregate=_preview(_table(spark, pipeline, pipeline.aggregate)),
                reconciled=reconciled if isinstance(reconciled, ReconcileResult) else None,
                steps={name: result.as_json() for name, result in results.items() if name != "reconcile"},
            )
        )
        files.make_directory(path.rpartition("/")[0])
        files.replace(path, text.encode())
    return ReportResult(pipeline.name, path)


def _shown(option: str, value: str) -> str:
    return "(not shown)" if option.lower() in SECRET else value


def _table(spark: SparkSession, pipeline: PipelineSpec, path: str) -> BatchTable | None:
    """The table, if anything was ever written to it."""
    table = open_table(spark, path, pipeline.format)
    return table if table.exists else None


def _landed(bronze: BatchTable | None) -> LandedFacts:
    return LandedFacts() if bronze is None else measure_landed(bronze.read())


def _count(table: BatchTable | None) -> int | None:
    return None if table is None else table.read().count()


def _quarantine(spark: SparkSession, pipeline: PipelineSpec) -> QuarantineFacts | None:
    """None before the first refinement, which silver tells: quarantine may have no rows."""
    table = _table(spark, pipeline, pipeline.quarantine)
    if table is not None:
        return measure_quarantine(table.read())
    return None if _table(spark, pipeline, pipeline.silver) is None else QuarantineFacts()


def _preview(table: BatchTable | None) -> TablePreview | None:
    if table is None:
        return None
    rows = table.read().drop("batch")
    return preview(rows, rows.columns)

"""Write a pipeline's report: measure its tables, render the page, replace the file atomically."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from consumerd.spark.failures import declared_errors
from consumerd.spark.jobs import SparkTasks
from consumerd.spark.lake.parts import RowScan, TableScan
from consumerd.spark.progress import open_log
from consumerd.spark.reconcile_result import ReconcileResult
from consumerd.spark.report.facts import (
    EventFacts,
    GroupFacts,
    LandedFacts,
    QuarantineFacts,
    ReportFacts,
    StepResult,
    TableFacts,
    WindowFacts,
    window_facts,
)
from consumerd.spark.report.groups import measure_groups
from consumerd.spark.report.measure import (
    measure_events,
    measure_landed,
    measure_quarantine,
    measure_trend,
)
from consumerd.spark.report.page import render
from consumerd.spark.source.options import SECRET, read_options
from consumerd.spark.step_history import StepRun, read_runs
from consumerd.spark.tables.files import locate
from consumerd.spark.tables.lake import LakeBatchTable
from consumerd.spark.tables.table import FlatResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.spec import PipelineSpec


@dataclass(frozen=True, slots=True)
class ReportResult(FlatResult):
    """The place to which the page was written: a path or a URL."""

    pipeline: str
    page: str


def write_report(spark: SparkSession, pipeline: PipelineSpec, results: Mapping[str, StepResult]) -> ReportResult:
    """Write the page of a pipeline, replacing the last one.

    `results`: the results of the steps of this run, by their names. Without one of `reconcile` the page says that it is
    unknown whether everything landed. Tables that do not exist yet are not an error. Raises ConsumerdError.
    """
    reconciled = results.get("reconcile")
    with declared_errors():
        path, files = locate(spark, pipeline.report)
        tables = {
            name: table
            for name in ("bronze", "silver", "quarantine", "aggregate")
            if (table := LakeBatchTable(spark, getattr(pipeline, name), pipeline.format)).exists
        }
        rows = {name: TableScan(table.in_tasks, SparkTasks(spark).run) for name, table in tables.items()}
        facts = tuple(_table(name, table) for name, table in tables.items())
        landed = measure_landed(rows["bronze"]) if "bronze" in rows else LandedFacts()
        quarantine = None
        if "quarantine" in rows:
            quarantine = measure_quarantine(rows["quarantine"])
            landed = measure_trend(rows["quarantine"], landed)
        elif "silver" in rows:
            quarantine = QuarantineFacts()
        history = read_runs(spark, pipeline)
        text = render(
            ReportFacts(
                pipeline=pipeline.name,
                made=datetime.now(UTC),
                source=tuple((name, _shown(name, value)) for name, value in pipeline.source.items()),
                counts_messages=read_options(pipeline.source).counts_messages,
                landed=landed,
                progress=open_log(spark, pipeline).read(),
                refined=next((each.rows for each in facts if each.name == "silver"), None),
                quarantine=quarantine,
                events=_events(pipeline, rows.get("silver")),
                windows=_windows(pipeline, results, history),
                groups=_groups(pipeline, tables.get("aggregate")),
                tables=facts,
                history=history,
                reconciled=reconciled if isinstance(reconciled, ReconcileResult) else None,
                steps={name: result.as_json() for name, result in results.items() if name != "reconcile"},
            )
        )
        files.make_directory(path.rpartition("/")[0])
        files.replace(path, text.encode())
    return ReportResult(pipeline.name, path)


def _shown(option: str, value: str) -> str:
    return "(not shown)" if option.lower() in SECRET else value


def _table(name: str, table: LakeBatchTable) -> TableFacts:
    files = table.lake.files()
    rows = sum(file.rows for file in files)
    return TableFacts(name, rows, sum(map(len, table.batches())), len(files), sum(file.size for file in files))


def _events(pipeline: PipelineSpec, silver: RowScan | None) -> EventFacts | None:
    name = None if pipeline.refine is None else pipeline.refine.event_time
    return None if silver is None or name is None else measure_events(silver, name)


def _groups(pipeline: PipelineSpec, aggregate: LakeBatchTable | None) -> GroupFacts | None:
    spec = pipeline.aggregate_spec
    if spec is None:
        return None
    if aggregate is None:
        return GroupFacts(tuple(spec.group_by), tuple(spec.sums), (), 0, 0, 0)
    return measure_groups(aggregate.read(), spec.group_by, spec.sums)


def _windows(
    pipeline: PipelineSpec, results: Mapping[str, StepResult], history: Sequence[StepRun]
) -> WindowFacts | None:
    """What the last runs of the aggregate say, the one of this run last."""
    if pipeline.aggregate_spec is None:
        return None
    runs = [run.figures for run in history if run.step == "aggregate"]
    if (now := results.get("aggregate")) is not None and (figures := now.as_json()) not in runs:
        runs.append(figures)
    return window_facts(runs)

"""All steps of a pipeline, one after the other, and compaction of its tables.

Strategy: each step continues where it stopped, so a run may be repeated at any time and keeps what a killed run did. A
signal ends the current step gracefully and skips those that follow, as are steps that the pipeline does not declare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from consumerd.base.errors import ConfigError
from consumerd.spark.aggregate import aggregate
from consumerd.spark.failures import declared_errors
from consumerd.spark.land import land
from consumerd.spark.reconcile import reconcile
from consumerd.spark.refine import refine
from consumerd.spark.report.facts import StepResult
from consumerd.spark.spec_model import interval_seconds
from consumerd.spark.tables import open_table
from consumerd.spark.tables.table import CompactResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.spec import PipelineSpec

#: All steps in their order; `compact` is not part of a run by default.
STEPS: Final = ("land", "refine", "aggregate", "compact", "reconcile", "report")
DEFAULT_STEPS: Final = tuple(step for step in STEPS if step != "compact")


@dataclass(frozen=True, slots=True)
class RunResult:
    """Results of the steps that ran, in their order."""

    pipeline: str
    results: Mapping[str, StepResult]
    #: Whether a signal ended the run early.
    stopped: bool

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        found = {name: result.as_json() for name, result in self.results.items()}
        return {"pipeline": self.pipeline, **found, "stopped": self.stopped}


def declared_steps(pipeline: PipelineSpec) -> tuple[str, ...]:
    """The default steps of a run: all that the pipeline declares."""
    left_out = set()
    if pipeline.refine is None:
        left_out |= {"refine", "aggregate"}
    if pipeline.aggregate_spec is None:
        left_out.add("aggregate")
    return tuple(step for step in DEFAULT_STEPS if step not in left_out)


def perform(
    step: str,
    spark: SparkSession,
    pipeline: PipelineSpec,
    results: Mapping[str, StepResult],
    *,
    available_now: bool = True,
    shallow: bool = False,
) -> StepResult:
    """Do one step of `STEPS`. `results`: those of the steps before it, for the report. Raises ConsumerdError."""
    match step:
        case "land":
            return land(spark, pipeline, available_now=available_now)
        case "refine":
            return refine(spark, pipeline)
        case "aggregate":
            return aggregate(spark, pipeline)
        case "compact":
            return compact(spark, pipeline)
        case "reconcile":
            return reconcile(spark, pipeline, shallow=shallow)
        case "report":
            from consumerd.spark.report.writing import write_report  # noqa: PLC0415 - matplotlib takes a while to load

            return write_report(spark, pipeline, results)
        case _:
            raise ConfigError(f"{step!r} is not a step of a pipeline; steps: {', '.join(STEPS)}.")


def run_pipeline(spark: SparkSession, pipeline: PipelineSpec, steps: Iterable[str] = DEFAULT_STEPS) -> RunResult:
    """Run those of these steps that the pipeline declares, in the order of `STEPS`. Raises ConsumerdError."""
    wanted = set(steps)
    unknown = sorted(wanted - set(STEPS))
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is not a step of a pipeline; steps: {', '.join(STEPS)}.")
    declared = {*declared_steps(pipeline), "compact"}
    results: dict[str, StepResult] = {}
    for step in STEPS:
        if step in wanted & declared:
            results[step] = perform(step, spark, pipeline, results)
            if getattr(results[step], "stopped", False):
                return RunResult(pipeline.name, results, stopped=True)
    return RunResult(pipeline.name, results, stopped=False)


@dataclass(frozen=True, slots=True)
class PipelineCompactResult:
    """The compaction of each existing table of a pipeline."""

    pipeline: str
    tables: tuple[CompactResult, ...]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"pipeline": self.pipeline, "tables": [each.as_json() for each in self.tables]}


def compact(spark: SparkSession, pipeline: PipelineSpec) -> PipelineCompactResult:
    """Compact the existing ones of bronze, silver, quarantine and aggregate. Raises ConsumerdError.

    Steps of the pipeline may run meanwhile: they go by the numbers of batches, which stay.
    """
    spec = pipeline.compact_spec
    results = []
    with declared_errors():
        for path in (pipeline.bronze, pipeline.silver, pipeline.quarantine, pipeline.aggregate):
            table = open_table(spark, path, pipeline.format)
            if table.exists:
                results.append(table.compact(spec.target_bytes, keep_seconds=interval_seconds(spec.keep)))
    return PipelineCompactResult(pipeline.name, tuple(results))

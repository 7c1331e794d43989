"""All steps of a pipeline, one after the other, and compaction of its tables.

Strategy: each step continues where it stopped, so a run may be repeated at any time and keeps what a killed run did. A
signal ends the current step gracefully and skips those that follow, as are steps that the pipeline does not declare.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from consumerd.base.errors import ConfigError
from consumerd.spark.aggregate import aggregate
from consumerd.spark.failures import declared_errors
from consumerd.spark.land import land
from consumerd.spark.owners import STEP_TABLES
from consumerd.spark.reconcile import reconcile
from consumerd.spark.refine import refine
from consumerd.spark.report.facts import StepResult
from consumerd.spark.results import LandResult, PipelineCompactResult
from consumerd.spark.step_history import StepRun, note_run, step_run
from consumerd.spark.tables.lake import LakeBatchTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.lake.batches import BatchDisplay
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
    display: BatchDisplay | None = None,
) -> tuple[StepResult, StepRun]:
    """Do one step of `STEPS`; its result, and how long it took.

    `results`: those of the steps before it, for the report. `display`: shows the batches of `land`. The run is recorded
    for the report if it had rows and ended by itself. Raises ConsumerdError.
    """
    with declared_errors():
        before = {path: LakeBatchTable(spark, path, pipeline.format).last_batch for path in _written_by(pipeline, step)}
    started, clock = datetime.now(UTC), time.monotonic()
    result = _perform(step, spark, pipeline, results, available_now=available_now, shallow=shallow, display=display)
    seconds = time.monotonic() - clock
    written = None
    if before:
        with declared_errors():
            written = sum(_size_after(spark, pipeline, path, last) for path, last in before.items())
    run = step_run(step, started, seconds, result.as_json(), written)
    if run.rows and available_now:
        note_run(spark, pipeline, run)
    return result, run


def _written_by(pipeline: PipelineSpec, step: str) -> tuple[str, ...]:
    return tuple(getattr(pipeline, name) for name in STEP_TABLES.get(step, ()))


def _size_after(spark: SparkSession, pipeline: PipelineSpec, path: str, last: int | None) -> int:
    """Bytes of the files with batches after `last`."""
    table = LakeBatchTable(spark, path, pipeline.format)
    files = [] if table.last_batch in (None, last) else table.lake.files(-1 if last is None else last)
    return sum(file.size for file in files)


def _perform(
    step: str,
    spark: SparkSession,
    pipeline: PipelineSpec,
    results: Mapping[str, StepResult],
    *,
    available_now: bool,
    shallow: bool,
    display: BatchDisplay | None,
) -> StepResult:
    match step:
        case "land":
            return land(spark, pipeline, available_now=available_now, display=display)
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


def nothing_landed(results: Mapping[str, StepResult]) -> bool:
    """Whether `land` of this run found topics without any message so far: there is nothing for the steps behind it."""
    landed = results.get("land")
    return isinstance(landed, LandResult) and landed.last_batch is None


def run_pipeline(spark: SparkSession, pipeline: PipelineSpec, steps: Iterable[str] = DEFAULT_STEPS) -> RunResult:
    """Run those of these steps that the pipeline declares, in the order of `STEPS`. Raises ConsumerdError.

    After `land` none runs while there are no messages yet.
    """
    wanted = set(steps)
    unknown = sorted(wanted - set(STEPS))
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is not a step of a pipeline; steps: {', '.join(STEPS)}.")
    declared = {*declared_steps(pipeline), "compact"}
    results: dict[str, StepResult] = {}
    for step in STEPS:
        if step in wanted & declared:
            results[step], _ = perform(step, spark, pipeline, results)
            if nothing_landed(results):
                break
            if getattr(results[step], "stopped", False):
                return RunResult(pipeline.name, results, stopped=True)
    return RunResult(pipeline.name, results, stopped=False)


def compact(spark: SparkSession, pipeline: PipelineSpec) -> PipelineCompactResult:
    """Compact the existing ones of bronze, silver, quarantine and aggregate. Raises ConsumerdError.

    Steps of the pipeline may run meanwhile: they go by the numbers of batches, which stay.
    """
    spec = pipeline.compact_spec
    results = []
    with declared_errors():
        for path in (pipeline.bronze, pipeline.silver, pipeline.quarantine, pipeline.aggregate):
            table = LakeBatchTable(spark, path, pipeline.format)
            if table.exists:
                results.append(table.compact(spec.target_bytes))
    return PipelineCompactResult(pipeline.name, tuple(results))

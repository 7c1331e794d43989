"""All steps of a pipeline, one after the other.

Strategy: each step goes on where it was, so the whole may be repeated at any time, and what a killed run did is kept. A
signal ends the step at work gracefully and leaves out those that follow. Steps that the pipeline does not declare are
left out, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from consumerd.errors import ConfigError
from consumerd.spark.aggregate import aggregate
from consumerd.spark.compact import compact
from consumerd.spark.land import land
from consumerd.spark.reconcile import reconcile
from consumerd.spark.refine import refine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from consumerd.spark.spec import PipelineSpec

#: All steps in their order; `compact` is none of a run's own, it is done when asked for.
STEPS: Final = ("land", "refine", "aggregate", "compact", "reconcile", "report")
DEFAULT_STEPS: Final = tuple(step for step in STEPS if step != "compact")


class StepResult(Protocol):
    """What every step returns."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        ...


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
    """What a run does unless it is told otherwise: all that the pipeline declares."""
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
            from consumerd.spark.report import write_report  # noqa: PLC0415 - matplotlib takes a while to load

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

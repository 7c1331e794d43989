"""The steps of a pipeline; tests with Spark run them."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.base.errors import ConfigError
from consumerd.spark import run
from consumerd.spark.results import LandResult
from consumerd.spark.run import DEFAULT_STEPS, STEPS, declared_steps, perform, run_pipeline
from consumerd.spark.spec import PipelineSpec, parse_spark

REFINE = {"fields": {"at": "timestamp"}, "event_time": "at"}


def pipeline(**tables: Any) -> PipelineSpec:
    document = {"root": "/lake", "pipelines": {"p": {"source": {"path": "/archive"}, **tables}}}
    return parse_spark({"spark": document}, "test").pipeline()


def test_skips_undeclared_steps() -> None:
    assert declared_steps(pipeline()) == ("land", "reconcile", "report")
    assert declared_steps(pipeline(refine=REFINE)) == ("land", "refine", "reconcile", "report")
    assert declared_steps(pipeline(refine=REFINE, aggregate={})) == DEFAULT_STEPS
    assert [step for step in STEPS if step not in DEFAULT_STEPS] == ["compact"]


def test_rejects_an_unknown_step_before_anything_runs() -> None:
    nothing: Any = None
    with pytest.raises(ConfigError, match="'polish' is not a step of a pipeline; steps: land, refine"):
        run_pipeline(nothing, pipeline(), ("land", "polish"))
    with pytest.raises(ConfigError, match="'polish' is not a step of a pipeline; steps: land, refine"):
        perform("polish", nothing, pipeline(), {})


def test_runs_no_step_behind_land_while_there_is_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even `refine`, whose table would be missing: a new topic must not fail every run until its first message."""
    last: list[int | None] = [None]
    ran: list[str] = []

    def performed(step: str, *_: Any) -> tuple[Any, None]:
        ran.append(step)
        return LandResult("p", "/lake/p/bronze", 0, 0, last[0], 0.1, stopped=False, committed=0), None

    monkeypatch.setattr(run, "perform", performed)
    nothing: Any = None
    assert list(run_pipeline(nothing, pipeline(refine=REFINE)).results) == ran == ["land"]
    last[0] = 0
    assert list(run_pipeline(nothing, pipeline(refine=REFINE)).results) == ["land", "refine", "reconcile", "report"]


def test_runs_only_declared_steps() -> None:
    nothing: Any = None
    assert run_pipeline(nothing, pipeline(), ("aggregate", "refine")).as_json() == {"pipeline": "p", "stopped": False}

"""The steps of a pipeline; tests with Spark run them."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.base.errors import ConfigError
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


def test_runs_only_declared_steps() -> None:
    nothing: Any = None
    assert run_pipeline(nothing, pipeline(), ("aggregate", "refine")).as_json() == {"pipeline": "p", "stopped": False}

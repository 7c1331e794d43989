"""Functions that run in tasks of a session: their results, what they yield, their errors, and a job that is ended."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from consumerd.base.errors import ConfigError
from consumerd.spark.failures import declared_errors
from consumerd.spark.jobs import SparkTasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_returns_results_in_the_order_of_the_tasks_and_passes_on_what_they_yield(spark: SparkSession) -> None:
    def count_down(number: int) -> Generator[int, None, str]:
        yield from range(number, 0, -1)
        return f"{number} done"

    yielded: list[int] = []
    found = SparkTasks(spark).run(count_down, [(2,), (0,), (3,)], on_progress=yielded.append)
    assert (found, yielded) == (["2 done", "0 done", "3 done"], [2, 1, 3, 2, 1])
    assert SparkTasks(spark).run(count_down, []) == []


def test_raises_the_declared_error_of_a_task(spark: SparkSession) -> None:
    def refuse(name: str) -> Generator[int, None, None]:
        yield 1
        raise ConfigError(f"{name} is not there")

    with pytest.raises(ConfigError, match=r"^that is not there$"), declared_errors():
        SparkTasks(spark).run(refuse, [("that",)])


def test_ends_the_job_when_the_caller_wants_no_more(spark: SparkSession) -> None:
    def work_for_hours() -> Generator[int, None, None]:
        yield 1
        time.sleep(10_000)

    def end() -> None:
        if spark.sparkContext.statusTracker().getActiveStageIds():
            raise TimeoutError("the grace is over")

    with pytest.raises(TimeoutError, match="the grace is over"):
        SparkTasks(spark).run(work_for_hours, [(), ()], tick=end)
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()

"""Tasks of ours as jobs of a Spark session: each is a plain function, and no row passes through the JVM.

Strategy: a job is an RDD of the tasks' arguments with one task in each partition, so retries, stages and executors are
Spark's, and so is the error of a task that failed too often. The thread that submits a job waits for it; the caller
looks at it several times per second meanwhile, and may end it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final, TypeVar

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from consumerd.spark.lake.worker import WorkFunction, followed

_T = TypeVar("_T")
#: Seconds between two calls of `tick`.
_TURN: Final = 0.2


class SparkTasks:
    """Runs tasks in executors, as `WorkerPool` does in processes of its own. `count`: those that run at a time."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self.count: int = self._context.defaultParallelism

    def run(
        self,
        function: WorkFunction,
        tasks: Sequence[tuple[Any, ...]],
        *,
        on_progress: Callable[[Any], None] = lambda _: None,
        tick: Callable[[], None] = lambda: None,
    ) -> list[Any]:
        """`function(*task)` in a task of Spark's for each; results in their order.

        `on_progress` gets what functions yield, when all are done; `tick` is called several times per second, and may
        raise to end the job. Raises what Spark raises.
        """
        if not tasks:
            return []
        rows = self._context.parallelize(tasks, len(tasks)).map(partial(followed, function))
        found = self.call(rows.collect, tick)
        for yielded, _ in found:
            for each in yielded:
                on_progress(each)
        return [result for _, result in found]

    def call(self, work: Callable[[], _T], tick: Callable[[], None]) -> _T:
        """What `work` returns, which runs jobs in a thread. `tick`: as of `run`. Raises what it raises."""
        tag, job = f"consumerd-{uuid.uuid4()}", Future[_T]()

        def submit() -> None:
            try:
                self._context.addJobTag(tag)
                job.set_result(work())
            except BaseException as error:
                job.set_exception(error)

        thread = InheritableThread(target=submit)
        thread.start()
        try:
            while not wait([job], _TURN).done:
                tick()
        except BaseException:
            while not wait([job], _TURN).done:
                self._context.cancelJobsWithTag(tag)
            raise
        finally:
            thread.join()
        return job.result()

    def check(self) -> None:
        """Raise what Spark raises where the session has ended."""
        self._context.defaultParallelism  # noqa: B018 - a question to the JVM

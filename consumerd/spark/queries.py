"""Running one streaming query to its end, or until a signal.

Strategy: Spark's `foreachBatch` hands each micro-batch to a function, which writes it to tables under its number, so
that a retried batch is not written again. While the query runs, the main thread waits in short intervals, and checks
for a signal. A stop lets the current batch finish within some seconds; a batch that is cut short is retried at the next
start. Errors from the JVM become declared ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from consumerd.spark.checkpoints import locked
from consumerd.spark.failures import declared_errors
from consumerd.spark.owners import owned_tables
from consumerd.spark.stopping import GRACE, QueryRun, stop_on_signals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from consumerd.spark.spec import PipelineSpec

#: Seconds between looks at a running query.
_TURN: Final = 0.5


def run_query(
    spark: SparkSession,
    pipeline: PipelineSpec,
    step: str,
    stream: DataFrame,
    on_batch: Callable[[DataFrame, int], None],
) -> QueryRun:
    """Pass every batch of `stream` to `on_batch(frame, number)` until all available rows are done, or until a signal.

    The checkpoint is the pipeline's for `step`. Raises ConsumerdError.
    """
    done = 0

    def counted(frame: DataFrame, batch: int) -> None:
        nonlocal done
        # Here, where Java's causes are at hand; Spark passes on a text.
        with declared_errors(pipeline.base), owned_tables(pipeline, step):
            on_batch(frame, batch)
        done += 1

    began = time.monotonic()
    checkpoint = pipeline.checkpoint(step)
    writer = stream.writeStream.queryName(f"{pipeline.name}.{step}").foreachBatch(counted)
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    with stop_on_signals() as stop, declared_errors(checkpoint), locked(spark, checkpoint):
        stopped = _wait(writer.start(), stop)
    return QueryRun(done, time.monotonic() - began, stopped)


def _wait(query: StreamingQuery, stop: threading.Event) -> bool:
    """Wait for the end; returns whether a signal asked for it."""
    try:
        while not stop.is_set():
            if query.awaitTermination(_TURN):  # type: ignore[arg-type]  # takes floats, says int
                return False
        end = time.monotonic() + GRACE
        at_work = _ended(query)
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < end:
            if _ended(query) != at_work:
                break  # between two batches; while there is more to do, the trigger itself never rests
            query.awaitTermination(_TURN / 5)  # type: ignore[arg-type]  # as above
        return True
    finally:
        query.stop()


def _ended(query: StreamingQuery) -> int | None:
    """The number of the last batch that ended."""
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])

"""Batches of one step without Spark, in the order in which Spark's streaming has them.

Strategy: a batch is planned, which fixes its end in the checkpoint; it is stored, which is one commit of a table that
has its number; and it is completed. A run begins with the batch that the last one planned and did not complete, with
the same end: so a kill at any line repeats a batch, and the table knows whether it has it. A signal lets the current
batch end; after `GRACE` seconds it is cut short, and repeated by the next run.

One process plans and commits. The rows are read and written by worker processes, of which one batch at a time keeps
all busy.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from consumerd.spark.lake.checkpoint import WritableCheckpoint
from consumerd.spark.lake.worker import WorkFunction
from consumerd.spark.lake.workers import TaskPool
from consumerd.spark.progress import BatchProgress, ProgressLog, lag
from consumerd.spark.stopping import GRACE, QueryRun


class BatchSource(Protocol):
    """Where a step's rows are. Ends are JSON, as in the checkpoint. Methods raise ConsumerdError."""

    def initial(self) -> Any:
        """Where the first batch begins."""
        ...

    def stop_at_present(self) -> None:
        """Plan only what exists now."""
        ...

    def latest(self, start: Any) -> Any:
        """Where the batch ends that begins at `start`; `start` if there is nothing new."""
        ...

    def reported(self) -> Any:
        """The end of the source when it was looked at last; None if that is unknown."""
        ...

    def commit(self, end: Any) -> None:
        """Everything up to there is in the table."""
        ...


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A planned batch: all between two ends of the source."""

    number: int
    start: Any
    end: Any


class BatchDisplay(Protocol):
    """Shows how far a run is. Sizes are in any unit, such as bytes of the log."""

    def batch(self, number: int | None, size: int) -> None:
        """A batch begins, or a pass of a step without batches."""
        ...

    def advance(self, size: int, rows: int) -> None:
        """More of it was read, and so many rows were written."""
        ...

    def tick(self) -> None:
        """Some time has passed."""
        ...


class SilentDisplay:
    """Shows nothing."""

    def batch(self, number: int | None, size: int) -> None: ...

    def advance(self, size: int, rows: int) -> None: ...

    def tick(self) -> None: ...


def run_shown(
    pool: TaskPool,
    display: BatchDisplay,
    function: WorkFunction,
    tasks: Sequence[tuple[Any, ...]],
    tick: Callable[[], None] = lambda: None,
) -> list[Any]:
    """As `TaskPool.run`, and shows what the tasks yield: sizes, and numbers of rows."""

    def look() -> None:
        display.tick()
        tick()

    return pool.run(function, tasks, on_progress=lambda each: display.advance(*each), tick=look)


#: Seconds between two calls of `watch` in a pause.
_LOOK: Final = 1.0


class _CutShortError(Exception):
    """The grace after a signal is over; the batch is not stored."""


class BatchRunner:
    """Runs the batches of one step on its checkpoint, which the caller has locked."""

    def __init__(
        self,
        checkpoint: WritableCheckpoint,
        source: BatchSource,
        store: Callable[[PlannedBatch, Callable[[], None]], None],
        *,
        progress: ProgressLog | None = None,
        stop: threading.Event,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """`store` writes a batch, and calls its second argument several times per second meanwhile.

        `progress`: where the lag of each batch is kept, for reports.
        `watch` is called in pauses between batches; what it raises ends the run.
        """
        self._checkpoint = checkpoint
        self._source = source
        self._store = store
        self._progress = progress
        self._stop = stop
        self._watch = watch
        self._stopped_at: float | None = None
        self._query = ""
        self._run = str(uuid.uuid4())

    def run(self, interval: float | None = None) -> QueryRun:
        """Do all batches that there are now; with `interval` (seconds) look again after it, until a signal."""
        began = time.monotonic()
        done = 0
        self._query = self._checkpoint.begin()
        if interval is None:
            self._source.stop_at_present()
        try:
            while not self._stop.is_set():
                round_began = time.monotonic()
                while not self._stop.is_set() and (batch := self._next()) is not None:
                    self._do(batch)
                    done += 1
                if interval is None:
                    break
                self._pause(round_began + interval)
        except _CutShortError:
            pass
        return QueryRun(done, time.monotonic() - began, self._stop.is_set())

    def _pause(self, end: float) -> None:
        while True:
            self._watch()
            left = end - time.monotonic()
            if left <= 0 or self._stop.wait(min(left, _LOOK)):
                return

    def _next(self) -> PlannedBatch | None:
        """The batch to do now: one that was interrupted, or a new one, which is planned then; None: nothing is new."""
        done, planned = self._checkpoint.last_committed(), self._checkpoint.last_planned()
        number = 0 if done is None else done + 1
        start = None if done is None else self._checkpoint.end(done)
        if start is None:
            start = self._source.initial()
        if planned is not None and planned >= number:
            end = self._checkpoint.end(number)
            return PlannedBatch(number, start, start if end is None else end)
        end = self._source.latest(start)
        if json.dumps(end) == json.dumps(start):
            return None
        self._checkpoint.plan(number, end)
        return PlannedBatch(number, start, end)

    def _do(self, batch: PlannedBatch) -> None:
        started, began = datetime.now(UTC), time.monotonic()
        self._store(batch, self._tick)
        self._checkpoint.complete(batch.number)
        self._source.commit(batch.end)
        seconds = time.monotonic() - began
        if self._progress is not None:
            lags = lag(json.dumps(batch.end), json.dumps(self._source.reported()))
            self._progress.note(BatchProgress.of(self._query, self._run, batch.number, started, seconds, lags))

    def _tick(self) -> None:
        """Raise once the grace is over."""
        if not self._stop.is_set():
            return
        now = time.monotonic()
        self._stopped_at = now if self._stopped_at is None else self._stopped_at
        if now - self._stopped_at > GRACE:
            raise _CutShortError

"""Progress of the steps of `consumerd lake`: a bar on a terminal, a line now and then elsewhere, on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from consumerd.base.clock import SystemClock
from consumerd.cli.spark_progress import SECONDS_PER_LINE

if TYPE_CHECKING:
    from consumerd.spark.lake.batches import BatchDisplay


class BatchLines:
    """For a log: every some seconds how far the step is."""

    def __init__(self, step: str, stream: IO[str], monotonic: Callable[[], float]) -> None:
        self._step = step
        self._stream = stream
        self._monotonic = monotonic
        self._began = monotonic()
        self._next = self._began + SECONDS_PER_LINE
        self._size = self._done = self._rows = 0
        self._batch: int | None = None

    def batch(self, number: int | None, size: int) -> None:
        self._batch, self._size, self._done = number, size, 0

    def advance(self, size: int, rows: int) -> None:
        self._done += size
        self._rows += rows

    def tick(self) -> None:
        now = self._monotonic()
        if now < self._next:
            return
        self._next = now + SECONDS_PER_LINE
        seconds = now - self._began
        parts = ["" if self._batch is None else f"batch {self._batch}"]
        if self._size:
            parts.append(f"{100 * self._done / self._size:.0f} %")
        share = " ".join(filter(None, parts))
        click.echo(
            f"consumerd: {self._step}: {seconds:.0f} s, {share or 'begun'}, {self._rows:,} rows, "
            f"{self._rows / seconds:,.0f} rows/s",
            file=self._stream,
        )


class BatchBar:
    """For a terminal: a bar for the current batch. `progress` is rich's."""

    def __init__(self, step: str, progress: Any) -> None:
        self._step = step
        self._progress = progress
        self._task = progress.add_task(step, total=None, rows=0)
        self._rows = 0

    def batch(self, number: int | None, size: int) -> None:
        shown = self._step if number is None else f"{self._step}, batch {number}"
        self._progress.reset(self._task, total=size, description=shown, rows=self._rows)

    def advance(self, size: int, rows: int) -> None:
        self._rows += rows
        self._progress.update(self._task, advance=size, rows=self._rows)

    def tick(self) -> None:
        """Do nothing: the bar is drawn by its own thread."""


@contextlib.contextmanager
def batch_display(step: str, stream: IO[str]) -> Iterator[BatchDisplay]:
    """The display that suits the stream, gone from a terminal when the block ends."""
    if not stream.isatty():
        yield BatchLines(step, stream, SystemClock().monotonic)
        return
    from rich.console import Console  # noqa: PLC0415 - only where a terminal is
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[rows]:,} rows"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(file=stream), transient=True) as progress:
        yield BatchBar(step, progress)

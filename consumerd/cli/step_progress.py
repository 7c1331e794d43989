"""Progress of the steps of pipelines: on a terminal a line that changes, or a bar, elsewhere a line now and then.

Strategy: everything goes to standard error, so that standard output holds results alone. A step has a name and, where
it works in batches, how many rows came so far, and how fast the last ones were.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

import click

from consumerd.base.clock import SystemClock

if TYPE_CHECKING:
    from rich.console import Console

    from consumerd.spark.lake.batches import BatchDisplay

SECONDS_PER_LINE: Final = 10.0


class Display(Protocol):
    """The display of the progress of the commands of `consumerd spark`."""

    def step(self, name: str) -> None:
        """A step begins."""
        ...

    def batch(self, query: str, number: int, rows: int, rows_per_second: float) -> None:
        """The last batch of a query: its number, its rows so far. The same batch may be reported repeatedly."""
        ...

    def tick(self) -> None:
        """Some time has passed."""
        ...


class Counter:
    """The words for one step: rows are summed over its batches, each counted once."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._began = monotonic()
        self._step = ""
        #: The rows of each batch.
        self._seen: dict[tuple[str, int], int] = {}
        self._speed = 0.0

    def step(self, name: str) -> None:
        self._step, self._began = name, self._monotonic()
        self._seen.clear()
        self._speed = 0.0

    def batch(self, query: str, number: int, rows: int, rows_per_second: float) -> None:
        if self._seen.get((query, number)) != rows:
            self._seen[query, number] = rows
            self._speed = rows_per_second

    def text(self) -> str:
        """`land: 12 s, 3 batches, 1,234,567 rows, 90,000 rows/s`."""
        parts = [f"{self._monotonic() - self._began:.0f} s"]
        if self._seen:
            batches = len(self._seen)
            rows = sum(self._seen.values())
            parts += [f"{batches:,} batch{'es' * (batches != 1)}", f"{rows:,} rows", f"{self._speed:,.0f} rows/s"]
        return f"{self._step}: {', '.join(parts)}"


class StepLines:
    """For a log: each step's name, and every some seconds how far it is."""

    def __init__(self, stream: IO[str], monotonic: Callable[[], float]) -> None:
        self._stream = stream
        self._monotonic = monotonic
        self._counter = Counter(monotonic)
        self._next = monotonic() + SECONDS_PER_LINE

    def step(self, name: str) -> None:
        self._counter.step(name)
        click.echo(f"consumerd: {name}", file=self._stream)
        self._next = self._monotonic() + SECONDS_PER_LINE

    def batch(self, query: str, number: int, rows: int, rows_per_second: float) -> None:
        self._counter.batch(query, number, rows, rows_per_second)

    def tick(self) -> None:
        if self._monotonic() >= self._next:
            self._next = self._monotonic() + SECONDS_PER_LINE
            click.echo(f"consumerd: {self._counter.text()}", file=self._stream)


class Spinner:
    """For a terminal: one line that changes, drawn by rich's thread, also while nothing else runs."""

    def __init__(self, console: Console, monotonic: Callable[[], float]) -> None:
        self._console = console
        self._counter = Counter(monotonic)
        self._named = False

    def step(self, name: str) -> None:
        if self._named:
            self._console.print(self._counter.text(), style="dim", highlight=False, markup=False)
        self._named = True
        self._counter.step(name)

    def batch(self, query: str, number: int, rows: int, rows_per_second: float) -> None:
        self._counter.batch(query, number, rows, rows_per_second)

    def tick(self) -> None:
        """Do nothing: the line is drawn by its own thread."""

    def __rich__(self) -> str:
        return self._counter.text()


class StepBatches:
    """The batches of a step that plans them itself (`BatchDisplay`), as those of a query."""

    def __init__(self, step: str, shown: Display, monotonic: Callable[[], float]) -> None:
        self._step = step
        self._shown = shown
        self._monotonic = monotonic
        self._number = self._rows = 0
        self._began = monotonic()

    def batch(self, number: int | None, size: int) -> None:
        self._number, self._rows, self._began = number or 0, 0, self._monotonic()

    def advance(self, size: int, rows: int) -> None:
        self._rows += rows
        seconds = self._monotonic() - self._began
        self._shown.batch(self._step, self._number, self._rows, self._rows / seconds if seconds > 0 else 0.0)

    def tick(self) -> None:
        """Do nothing: the thread that looks after the session shows the time."""


@contextlib.contextmanager
def display(stream: IO[str]) -> Iterator[Display]:
    """The display that suits the stream, gone from a terminal when the block ends."""
    monotonic = SystemClock().monotonic
    if not stream.isatty():
        yield StepLines(stream, monotonic)
        return
    from rich.console import Console  # noqa: PLC0415 - only where a terminal is
    from rich.status import Status  # noqa: PLC0415

    console = Console(file=stream)
    shown = Spinner(console, monotonic)
    with Status(shown, console=console):
        yield shown


class BatchLines:
    """For a log: every some seconds how far a step of `consumerd lake` is."""

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
    """For a terminal: a bar for the current batch of a step of `consumerd lake`. `progress` is rich's."""

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
    """The display of a step of `consumerd lake`, gone from a terminal when the block ends."""
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

"""Tasks here or over worker processes, with events on the way, and what shows their progress.

Strategy: with one worker everything runs in the calling process, which is spared the imports of those of several
(`consumerd.storage.archives.worker_processes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from consumerd.storage.archives.errors import InterruptedWorkError

Emit = Callable[[object], None]
T = TypeVar("T")
#: A worker reports after this number of bytes.
_STEP = 8 << 20


class StopFlag:
    """A flag that ends the work early; set by signal handlers."""

    requested = False


def run_tasks(
    work: Callable[[T, Emit], None],
    tasks: Sequence[T],
    *,
    workers: int,
    on_event: Callable[[object], None],
    stop: StopFlag,
) -> None:
    """Do `work(task, emit)` for every task; emitted events are passed to `on_event` here.

    `work`, tasks and events must be picklable. The first error of either ends everything and is raised. Raises
    InterruptedWorkError when asked to stop, ArchiveWorkerDiedError.
    """
    workers = min(workers, len(tasks))
    if workers > 1:
        from consumerd.storage.archives.worker_processes import WorkerProcesses  # noqa: PLC0415 - one needs none

        WorkerProcesses(on_event, lambda: stop.requested).run(work, tasks, workers)
    else:

        def emit(event: object) -> None:
            if stop.requested:
                raise InterruptedWorkError("interrupted")
            on_event(event)

        for task in tasks:
            if stop.requested:
                break
            work(task, emit)
    if stop.requested:
        raise InterruptedWorkError("interrupted")


class BytesRead(NamedTuple):
    """Event: this number of bytes of the sources was processed."""

    size: int


class Progress(Protocol):
    """Shows progress. Bytes are those of the sources, before decompression."""

    def begin(self, total_bytes: int, segments: int | None) -> None:
        """The work begins. `segments` is None where it is known only after tars have been read."""

    def advance(self, count: int) -> None:
        """Add processed bytes."""

    def segment(self, rows: int) -> None:
        """One segment was processed, with this number of messages or rows."""


class NoProgress:
    """Shows nothing."""

    def begin(self, total_bytes: int, segments: int | None) -> None: ...

    def advance(self, count: int) -> None: ...

    def segment(self, rows: int) -> None: ...


class ReadMeter:
    """Counts the bytes read of one source and emits them in steps."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._unreported = 0
        self._reported = 0

    def add(self, count: int) -> None:
        """Add bytes that were read."""
        self._unreported += count
        if self._unreported >= _STEP:
            self._tell()

    def finish(self, size: int | None) -> None:
        """The source was processed; emits its unread rest, too."""
        if size is not None:
            self._unreported = max(self._unreported, size - self._reported)
        self._tell()

    def _tell(self) -> None:
        self._reported += self._unreported
        self._emit(BytesRead(self._unreported))
        self._unreported = 0

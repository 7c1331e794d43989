"""Tasks here or over worker processes, with events on the way.

Strategy: with one worker everything runs in the calling process, which is spared the imports of those of several
(`consumerd.storage.archives.worker_processes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from consumerd.storage.archives.errors import InterruptedWorkError

Emit = Callable[[object], None]


T = TypeVar("T")


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
        _run_here(work, tasks, on_event, stop)
    if stop.requested:
        raise InterruptedWorkError("interrupted")


def _run_here(
    work: Callable[[T, Emit], None], tasks: Sequence[T], on_event: Callable[[object], None], stop: StopFlag
) -> None:
    def emit(event: object) -> None:
        if stop.requested:
            raise InterruptedWorkError("interrupted")
        on_event(event)

    for task in tasks:
        if stop.requested:
            return
        work(task, emit)

"""Worker processes: tasks are divided, errors keep their sentence, and a killed worker is named."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import NotFoundError
from consumerd.spark.lake.workers import WorkerEndedError, WorkerPool


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find the functions of this file."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))


def doubled(number: int) -> Generator[int, None, int]:
    yield number
    return 2 * number


def process(_: int) -> Generator[None, None, int]:
    yield
    return os.getpid()


def imported() -> Generator[None, None, list[str]]:
    yield
    import consumerd.spark.lake.land_tasks
    import consumerd.spark.lake.reconcile_tasks
    import consumerd.spark.lake.refine_tasks  # noqa: F401

    return [name for name in ("numpy", "pandas", "pydantic", "structlog") if sys.modules.get(name) is not None]


def missing() -> Generator[None, None, None]:
    yield
    raise NotFoundError("topic t does not exist")


def broken() -> Generator[None, None, None]:
    yield
    raise ZeroDivisionError


def killed() -> Generator[None, None, None]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield


def signalled() -> Generator[None, None, str]:
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    yield
    return "done"


def endless() -> Generator[int, None, None]:
    while True:
        yield os.getpid()


def test_divides_tasks_among_a_bounded_number_of_processes() -> None:
    seen: list[int] = []
    with WorkerPool(2) as pool:
        assert pool.run(doubled, [(number,) for number in range(9)], on_progress=seen.append) == list(range(0, 18, 2))
        assert sorted(seen) == list(range(9))
        assert len(pool.processes) == 2
        assert set(pool.run(process, [(1,), (2,), (3,)])) <= set(pool.processes)
        with pytest.raises(NotFoundError, match=r"^topic t does not exist$"):
            pool.run(missing, [()])


def test_workers_use_arrow_without_numpy() -> None:
    with WorkerPool(1) as pool:
        assert pool.run(imported, [()]) == [[]]


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (killed, WorkerEndedError, r"^worker process \d+ was killed by SIGKILL: .* the same command repeats it\.$"),
        (broken, RuntimeError, r"in worker process \d+:\nTraceback[^$]*ZeroDivisionError"),
    ],
)
def test_ends_with_the_first_error(function: Any, error: type[Exception], words: str) -> None:
    with WorkerPool(2) as pool:
        with pytest.raises(error, match=words):
            pool.run(function, [()])
        assert pool.processes == ()
        assert pool.run(doubled, [(4,)]) == [8]  # with a fresh process


def test_replaces_a_worker_that_was_killed_while_idle() -> None:
    with WorkerPool(1) as pool:
        assert pool.run(doubled, [(1,)]) == [2]
        (first,) = pool.processes
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        assert pool.run(doubled, [(2,)]) == [4]
        assert pool.processes != (first,)


def test_signals_that_stop_the_parent_do_not_reach_workers() -> None:
    with WorkerPool(1) as pool:
        assert pool.run(signalled, [()]) == ["done"]


def test_tick_ends_work_that_would_go_on() -> None:
    class Stop(Exception):  # noqa: N818 - as StopIteration
        pass

    seen: set[int] = set()

    def tick() -> None:
        if seen:
            raise Stop

    with WorkerPool(1) as pool, pytest.raises(Stop):
        pool.run(endless, [()], on_progress=seen.add, tick=tick)
    (worker,) = seen
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)

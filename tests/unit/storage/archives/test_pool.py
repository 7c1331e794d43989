from __future__ import annotations

import importlib
import os
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest

from consumerd.base.errors import NotFoundError
from consumerd.storage.archives.errors import ArchiveWorkerDiedError, InterruptedWorkError
from consumerd.storage.archives.pool import StopFlag, run_tasks

WORK = """
import os, signal, time
from consumerd.base.errors import NotFoundError

def echo(task, emit):
    for number in range(3):
        emit((task, number))

def whoami(task, emit):
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    emit((os.getpid(), signal.SIGINT in blocked))

def fail(task, emit):
    emit(("began", task))
    if task == 3:
        raise NotFoundError("task 3 found nothing")
    time.sleep(0.01)

def die(task, emit):
    emit("about to")
    os._exit(7)

def talk(task, emit):
    while True:
        emit(b"x" * 100_000)
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Functions that new processes can import."""
    (tmp_path / "pool_work.py").write_text(textwrap.dedent(WORK))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield importlib.import_module("pool_work")
    import sys

    del sys.modules["pool_work"]


@pytest.mark.parametrize("workers", [1, 2])
def test_delivers_all_events_of_a_task_in_order(work: Any, workers: int) -> None:
    events: list[Any] = []
    run_tasks(work.echo, range(5), workers=workers, on_event=events.append, stop=StopFlag())
    assert sorted(events) == [(task, number) for task in range(5) for number in range(3)]
    for wanted in range(5):
        assert [number for task, number in events if task == wanted] == [0, 1, 2]


def test_workers_are_processes_that_ignore_ctrl_c(work: Any) -> None:
    events: list[Any] = []
    before = {child.pid for child in psutil.Process().children()}  # servers of other tests
    run_tasks(work.whoami, range(4), workers=2, on_event=events.append, stop=StopFlag())
    assert all(pid != os.getpid() and blocked for pid, blocked in events)
    left = {child.pid for child in psutil.Process().children()} - before
    assert len(left) <= 1  # the tracker of resources stays
    assert not left & {pid for pid, _ in events}


@pytest.mark.parametrize("workers", [1, 2])
def test_first_error_ends_all_tasks(work: Any, workers: int) -> None:
    events: list[Any] = []
    with pytest.raises(NotFoundError, match="task 3 found nothing"):
        run_tasks(work.fail, range(10_000), workers=workers, on_event=events.append, stop=StopFlag())
    assert len(events) < 1000


@pytest.mark.parametrize("workers", [1, 2])
def test_error_of_the_listener_ends_all_tasks(work: Any, workers: int) -> None:
    def listen(event: object) -> None:
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        run_tasks(work.talk, range(4), workers=workers, on_event=listen, stop=StopFlag())


@pytest.mark.parametrize("workers", [1, 2])
def test_stop_request_ends_all_tasks(work: Any, workers: int) -> None:
    stop = StopFlag()
    events: list[Any] = []

    def listen(event: object) -> None:
        events.append(event)
        stop.requested = len(events) > 5

    with pytest.raises(InterruptedWorkError):
        run_tasks(work.talk, range(4), workers=workers, on_event=listen, stop=stop)


def test_raises_when_a_worker_dies(work: Any) -> None:
    with pytest.raises(ArchiveWorkerDiedError, match="a worker process died"):
        run_tasks(work.die, range(4), workers=2, on_event=lambda event: None, stop=StopFlag())


def test_starts_nothing_without_tasks() -> None:
    run_tasks(lambda task, emit: None, [], workers=4, on_event=lambda event: None, stop=StopFlag())

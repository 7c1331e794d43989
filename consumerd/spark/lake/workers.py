"""A bounded number of worker processes, and tasks that are shared among them.

Strategy: processes of our own, not those of `multiprocessing`, since how one of them ended is what its user has to
know. A worker is started with the first task that finds none idle, has one task at a time, and ends when its socket is
closed; signals that stop the parent are blocked in it, so that a terminal or a supervisor that signals the whole group
does not tear a batch. The first error ends all others: nothing of their work is committed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Final, Protocol, Self

from consumerd.base.errors import ConsumerdError, ExitCode
from consumerd.spark.lake.worker import Reply, WorkFunction

_STOPPING: Final = frozenset({signal.SIGINT, signal.SIGTERM})
#: Seconds after which `tick` is called, whether or not anything has come.
_TURN: Final = 0.2
#: Not `-m`: then the module's classes would have other names there. pyarrow imports numpy where it is installed, which
#: takes half of its time to import and which no task uses.
_MAIN: Final = "import sys; sys.modules['numpy'] = None; from consumerd.spark.lake.worker import main; main({})"


class TaskPool(Protocol):
    """What runs tasks: worker processes, or executors of Spark."""

    #: Tasks that run at a time.
    count: int

    def run(
        self,
        function: WorkFunction,
        tasks: Sequence[tuple[Any, ...]],
        *,
        on_progress: Callable[[Any], None] = ...,
        tick: Callable[[], None] = ...,
    ) -> list[Any]:
        """See `WorkerPool.run`. Raises what the tasks raise, and errors of the pool's own."""
        ...

    def check(self) -> None:
        """Raise if no task can be run any more."""
        ...


class WorkerEndedError(ConsumerdError):
    """A worker process was killed, or ended by itself; nothing of its task was committed."""

    exit_code = ExitCode.SPARK


def available_processors() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


class _Worker:
    """One process and our end of its socket."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        with theirs, _signals_blocked():
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _MAIN.format(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                pass_fds=[theirs.fileno()],
            )

    def end(self) -> None:
        """Kill it, whatever it does: a task that is done has sent its result."""
        self.process.kill()
        self.process.wait()
        self.connection.close()

    def how_it_ended(self) -> str:
        code = self.process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return (
            f"worker process {self.process.pid} {how}: check the kernel's log and free memory, which fewer --workers "
            "need less of; its batch was not committed, and the same command repeats it."
        )


class WorkerPool:
    """Runs tasks in at most `count` processes. A context manager: they are gone at its end."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._workers:
            self._workers.pop().end()

    def check(self) -> None:
        """Do nothing: processes are started when there are tasks."""

    @property
    def processes(self) -> tuple[int, ...]:
        """Their ids."""
        return tuple(each.process.pid for each in self._workers)

    def run(
        self,
        function: WorkFunction,
        tasks: Sequence[tuple[Any, ...]],
        *,
        on_progress: Callable[[Any], None] = lambda _: None,
        tick: Callable[[], None] = lambda: None,
    ) -> list[Any]:
        """`function(*task)` for each task, in any order; returns results in the order of the tasks.

        `on_progress` gets what functions yield; `tick` is called several times per second, and may raise to end the
        work. Raises what functions raise if it is a ConsumerdError, WorkerEndedError, and RuntimeError for a defect.
        """
        waiting = deque(enumerate(tasks))
        results: list[Any] = [None] * len(tasks)
        for worker in [each for each in self._workers if each.process.poll() is not None]:
            self._workers.remove(worker)  # killed while it was idle: nothing is lost
            worker.end()
        idle = list(self._workers)
        busy: dict[Connection, tuple[_Worker, int]] = {}
        try:
            while waiting or busy:
                while waiting and (idle or len(self._workers) < self.count):
                    worker = idle.pop() if idle else self._started()
                    number, task = waiting.popleft()
                    busy[worker.connection] = worker, number
                    self._send(worker, (function, task))
                for ready in wait(list(busy), _TURN):
                    assert isinstance(ready, Connection)
                    worker, number = busy[ready]
                    match self._received(worker):
                        case Reply.PROGRESS, value:
                            on_progress(value)
                        case Reply.RESULT, value:
                            results[number] = value
                            del busy[ready]
                            idle.append(worker)
                tick()
        except BaseException:
            self.__exit__(None, None, None)  # others may be in the middle of a task
            raise
        return results

    def _started(self) -> _Worker:
        worker = _Worker()
        self._workers.append(worker)
        return worker

    def _send(self, worker: _Worker, task: tuple[WorkFunction, tuple[Any, ...]]) -> None:
        try:
            worker.connection.send(task)
        except (BrokenPipeError, ConnectionResetError):
            raise WorkerEndedError(worker.how_it_ended()) from None

    def _received(self, worker: _Worker) -> tuple[Reply, Any]:
        try:
            reply: tuple[Reply, Any] = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            raise WorkerEndedError(worker.how_it_ended()) from None
        if reply[0] is Reply.ERROR:
            if isinstance(reply[1], ConsumerdError):
                raise reply[1]
            raise RuntimeError(f"in worker process {worker.process.pid}:\n{reply[1]}")
        return reply


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """What is started meanwhile never gets the signals that stop us; ours wait until the block ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

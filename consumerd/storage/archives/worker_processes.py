"""Worker processes, with their events on the way: what `consumerd.storage.archives.pool` runs with several workers.

Strategy: `ProcessPoolExecutor` with fresh interpreters; the events of all workers come through one pipe, in the order
in which each sent them, and all events of a task before its end. Nothing outlives its time: workers watch for the death
of their parent, Ctrl-C reaches the parent alone, and workers end at their next event once a stop is requested.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from consumerd.storage.archives.errors import ArchiveWorkerDiedError, InterruptedWorkError

Emit = Callable[[object], None]
T = TypeVar("T")
#: Seconds that the parent waits for an event before it checks the workers and the stop request.
_LOOK = 0.1
_DIED = "a worker process died, perhaps because it ran out of memory; run the same again, perhaps with fewer workers"
#: The number of events after which it checks them, too.
_EVENTS = 1000


class WorkerProcesses:
    """One run in processes. `on_event` is called in this one, and so is `stop_requested`, now and then."""

    def __init__(self, on_event: Emit, stop_requested: Callable[[], bool]) -> None:
        self._on_event = on_event
        self._stop_requested = stop_requested
        self._context = multiprocessing.get_context("spawn")
        self._halt = self._context.Event()
        self._ended: queue.SimpleQueue[Future[None]] = queue.SimpleQueue()
        self._error: BaseException | None = None

    def run(self, work: Callable[[T, Emit], None], tasks: Sequence[T], workers: int) -> None:
        """Do all tasks. Raises their first error, what `on_event` raises, ArchiveWorkerDiedError."""
        reader, writer = self._context.Pipe(duplex=False)
        executor = ProcessPoolExecutor(
            workers, self._context, initializer=_begin, initargs=(writer, self._context.Lock(), self._halt)
        )
        try:
            with _no_interrupts():
                futures = [executor.submit(_work_there, work, task) for task in tasks]
            for future in futures:
                future.add_done_callback(self._ended.put)
            writer.close()  # then a half-written event of a dying worker ends the read, instead of blocking it
            self._follow(reader, futures)
        except BrokenProcessPool:  # before all tasks were submitted
            self._error = self._error or ArchiveWorkerDiedError(_DIED)
        finally:
            self._halt.set()
            reader.close()  # a worker that still writes gets an error instead of waiting for us
            executor.shutdown(cancel_futures=True)
        if self._error is not None:
            raise self._error

    def _follow(self, reader: Connection[Any, Any], futures: list[Future[None]]) -> None:
        left = len(futures)
        while left:
            if (self._stop_requested() or self._error is not None) and not self._halt.is_set():
                self._halt.set()
                for future in futures:
                    future.cancel()
            self._take_events(reader, _LOOK)
            while not self._ended.empty():
                self._note_end(self._ended.get())
                left -= 1
        while self._take_events(reader, 0):
            pass

    def _take_events(self, reader: Connection[Any, Any], patience: float) -> bool:
        """Whether more events may come."""
        for _ in range(_EVENTS):
            event = _received(reader, patience)
            if event is None:
                return False
            patience = 0
            if self._error is None:
                try:
                    self._on_event(event)
                except BaseException as error:  # kept until the workers have ended
                    self._error = error
        return True

    def _note_end(self, future: Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, BrokenProcessPool):
            error = ArchiveWorkerDiedError(_DIED)
        if not isinstance(error, InterruptedWorkError):
            self._error = self._error or error


def _received(reader: Connection[Any, Any], patience: float) -> object | None:
    try:
        return reader.recv() if reader.poll(patience) else None
    except (EOFError, OSError):  # all workers are gone: their futures say why
        threading.Event().wait(patience)
        return None


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Processes that are started in the block ignore Ctrl-C; this one handles it after the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Channel:
    """A worker's pipe to the parent."""

    def __init__(self, writer: Connection[Any, Any], lock: Any, halt: Any) -> None:
        self._writer = writer
        self._lock = lock
        self._halt = halt

    def check(self) -> None:
        """Send an event. Raises InterruptedWorkError after a stop request."""
        if self._halt.is_set():
            raise InterruptedWorkError("interrupted")

    def emit(self, event: object) -> None:
        self.check()
        with self._lock:
            self._writer.send(event)


#: Set once in each worker: a pool gives its initializer no other way to tell the tasks anything.
_channel: _Channel | None = None


def _begin(writer: Connection[Any, Any], lock: Any, halt: Any) -> None:
    global _channel  # noqa: PLW0603
    _channel = _Channel(writer, lock, halt)
    threading.Thread(target=_die_with_parent, name="parent-watch", daemon=True).start()


def _die_with_parent() -> None:
    """A pool's workers would wait for tasks for ever after their parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _work_there(work: Callable[[Any, Emit], None], task: Any) -> None:
    assert _channel is not None
    _channel.check()
    work(task, _channel.emit)

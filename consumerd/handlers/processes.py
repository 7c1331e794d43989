"""A synchronous handler in worker processes, for work that keeps a processor busy.

Strategy: each worker is an executor of one process, so a worker that dies or has to be killed fails the one call that
it had, and no other. A call takes an idle worker; calls of one partition follow one another as with any handler, so its
order is kept. After the cancellation of a call (drain, timeout) its work must have ended: the process is killed, and
its end awaited. A worker that has ended is started again with the next call.

Workers are fresh interpreters (`spawn`): a fork of a process with threads and an event loop would not be safe. They
ignore SIGINT and SIGTERM, which reach a whole process group, and end when the daemon dies: a thread waits for that, and
on Linux the kernel kills them, also while C code holds the interpreter's lock and the thread cannot run.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import inspect
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, Final

from consumerd.base.errors import HandlerFailedError, HandlerLoadError, reason_of
from consumerd.base.plugins import HANDLER, call, find
from consumerd.handlers.api import Handler
from consumerd.handlers.chunks import in_chunks
from consumerd.handlers.context import HandlerContext
from consumerd.handlers.messages import Batch, Message, payload_size
from consumerd.handlers.threads import in_thread
from consumerd.handlers.tracebacks import TRACEBACK, short_traceback

#: Messages, and bytes of their payloads, that a worker gets at once.
_MESSAGES: Final = 10_000
_BYTES: Final = 8 << 20
#: An option of prctl in Linux's sys/prctl.h.
_PR_SET_PDEATHSIG: Final = 1


class WorkerDiedError(Exception):
    """The process that worked on a call has ended: killed from outside, out of memory, or crashed in native code."""


class ProcessHandler(Handler):
    """Runs the synchronous handler `name` in up to `processes` processes at once.

    `name` is a `def` of a list of messages, or a class with a method `def handle(self, messages)`, which is called with
    `options` once in each process. Messages and options must be picklable. Raises HandlerLoadError.
    """

    def __init__(self, name: str, options: Mapping[str, Any], processes: int) -> None:
        found = find(HANDLER, name)
        handle = getattr(found, "handle", None) if isinstance(found, type) else found
        if not callable(handle) or inspect.iscoroutinefunction(handle) or hasattr(handle, "handle"):
            raise HandlerLoadError(
                f"handler {name!r} cannot run in processes: it must be a `def` of a list of messages, or a class with "
                "a method `def handle(self, messages)`, and not `async`; or remove handler.processes."
            )
        if options and not isinstance(found, type):
            raise HandlerLoadError(f"handler {name!r} takes no options, because it is not a class.")
        self._workers = [_Worker(name, dict(options)) for _ in range(processes)]
        self._idle: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()

    async def start(self, context: HandlerContext) -> None:
        """Start all workers, so that wrong options are found before the group is joined. Raises HandlerFailedError."""
        self._idle = asyncio.LifoQueue()
        for worker in self._workers:
            await worker.open()
            self._idle.put_nowait(worker)

    async def stop(self) -> None:
        """End the workers. No call is under way any more."""
        for worker in self._workers:
            await worker.close()

    async def handle(self, batch: Batch) -> None:
        """Have a worker handle the messages. Raises what the handler raises, and WorkerDiedError."""
        handled = batch.handled
        pieces = in_chunks(batch.rest(handled).messages(), _MESSAGES, _BYTES, payload_size)
        for piece in pieces:
            worker = await self._idle.get()
            try:
                await worker.run(piece)
            finally:
                self._idle.put_nowait(worker)
            handled += len(piece)
            if handled < len(batch):
                batch.mark(handled)  # a batch of one piece is not counted: it fails as a whole


class _Worker:
    """One process, or none while it is not needed."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._made_of = name, options
        self._executor: ProcessPoolExecutor | None = None

    async def open(self) -> None:
        """Start the process, if there is none, and make the handler in it. Raises HandlerFailedError."""
        if self._executor is not None:
            return
        self._executor = ProcessPoolExecutor(
            1, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker
        )
        try:
            problem = await self._call(_make, *self._made_of)
        except WorkerDiedError as error:
            raise HandlerFailedError(f"handler {self._made_of[0]!r}: its worker process died at its start.") from error
        if problem is not None:
            await self.close()
            raise HandlerFailedError(problem)

    async def run(self, messages: Sequence[Message]) -> None:
        """Handle `messages`. Raises what the handler raises, and WorkerDiedError."""
        await self.open()
        await self._call(_handle, messages)

    async def close(self) -> None:
        """End the process and return when it has ended."""
        executor, self._executor = self._executor, None
        if executor is not None:
            await in_thread(executor.shutdown)

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        executor = self._executor
        assert executor is not None
        try:
            # In a thread, because the first call starts the process.
            future = await in_thread(lambda: executor.submit(function, *arguments))
            return await asyncio.wrap_future(future)
        except BrokenProcessPool as error:
            await self.close()
            raise WorkerDiedError("the worker process died, perhaps because it ran out of memory") from error
        except asyncio.CancelledError:
            self._kill(executor)
            await self.close()
            raise

    def _kill(self, executor: ProcessPoolExecutor) -> None:
        for process in list((executor._processes or {}).values()):  # noqa: SLF001 - kill_workers() is of Python 3.14
            with contextlib.suppress(ProcessLookupError):
                process.kill()


# -- in the worker

_handler: Callable[[Sequence[Message]], object] | None = None


def _begin_worker() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    if sys.platform == "linux":
        # The signal comes at the end of the thread that started this process (prctl(2)), which is one of `in_thread`:
        # those live as long as the daemon.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if wait([parent.sentinel], 0):  # it died before that
        os._exit(1)
    threading.Thread(target=_end_with_parent, args=(parent.sentinel,), daemon=True).start()


def _end_with_parent(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _make(name: str, options: dict[str, Any]) -> str | None:
    """Make the handler of this process. Return the error, if it could not be made."""
    global _handler  # noqa: PLW0603 - a worker has one handler
    try:
        found: Any = find(HANDLER, name)
        if isinstance(found, type):
            made: Any = call(HANDLER, name, found, options)
            found = made.handle
    except HandlerLoadError as error:
        return str(error)
    _handler = found
    return None


def _handle(messages: Sequence[Message]) -> None:
    assert _handler is not None
    try:
        _handler(messages)
    except SystemExit as error:
        raise _reported(
            RuntimeError(f"it called sys.exit({'' if error.code is None else repr(error.code)})"), error
        ) from None
    except Exception as error:
        _reported(error, error)
        try:
            pickle.loads(pickle.dumps(error))  # nosec B301  # noqa: S301 - our own bytes
        except Exception:
            # The parent could not read it, and would take the process for broken.
            raise _reported(RuntimeError(reason_of(error)), error) from None
        raise


def _reported(raised: Exception, error: BaseException) -> Exception:
    """Give `raised` the short traceback of `error`: the frames stay in this process."""
    with contextlib.suppress(AttributeError):
        setattr(raised, TRACEBACK, short_traceback(error))
    return raised

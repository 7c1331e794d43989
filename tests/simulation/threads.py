"""Threads of simulated processes: work that blocks takes virtual time, and can be interrupted at each of its steps.

Strategy: the work runs in a real thread, but never beside anything else: the kernel gives it its turn and waits until
it ends or pauses. It pauses before each operation that blocks (`pause`), and continues at a later event, so that other
processes do something in between, or the process is killed or stopped there. A thread of a dead process gets no turn
until the world ends; then its next step raises.

The loop of such a process runs one callback in each turn, so that it can be killed at each `await` of its tasks.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.kernel import Kernel
from tests.simulation.network import Network
from tests.simulation.process import THREAD_TIME, ProcessLoop

if TYPE_CHECKING:
    import asyncio

_current = threading.local()


class ProcessKilledError(BaseException):
    """The thread belongs to a dead process. Not an `Exception`: no code may continue after it."""


def current_work() -> Work | None:
    """The work of the thread that calls; None outside of simulated threads."""
    return getattr(_current, "work", None)


class Work:
    """One call in a thread of a process."""

    def __init__(self, loop: ThreadedLoop, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.loop = loop
        self._call = call
        self._future = future
        self._thread: threading.Thread | None = None
        self._next = "thread"
        self._ended = False
        self._turn = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._deliver: Callable[[], None] = lambda: None

    # -- the kernel's side

    def go_on(self) -> None:
        """Run until the next pause or the end, unless the process is dead; a stopped one continues later."""
        loop = self.loop
        if loop.stopped and not loop.dead:
            loop.held.append(self)
            return
        loop.watcher(self._next)
        if loop.dead or loop.stopped:
            if not loop.dead:
                loop.held.append(self)
            return
        if self._thread is None and self._future.cancelled():
            loop.works.pop(self, None)
            return
        self._resume()
        if self._ended:
            loop.works.pop(self, None)
            loop.submit(self._deliver)

    def abandon(self) -> None:
        """End the thread of a dead process: its next step raises."""
        assert self.loop.dead
        if self._thread is not None and not self._ended:
            self._resume()
            assert self._ended, "a thread continues although its process is dead"
        if not self._future.done():
            self._future.set_exception(ProcessKilledError())

    def _resume(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"{self.loop.name} works", daemon=True)
            self._thread.start()
        else:
            self._turn.release()
        self._back.acquire()
        if self._ended:
            self._thread.join()

    # -- the thread's side

    def _run(self) -> None:
        _current.work = self
        try:
            result = self._call()
        except BaseException as error:
            self._deliver = functools.partial(self._set_error, error)
        else:
            self._deliver = functools.partial(self._set_result, result)
        self._ended = True
        self._back.release()

    def pause(self, operation: str, seconds: float) -> None:
        """Let others have their turns. Raises ProcessKilledError when the process is dead by then."""
        if not self.loop.dead:
            self._next = operation
            self.loop.kernel.after(seconds, self.go_on)
            self._back.release()
            self._turn.acquire()
        if self.loop.dead:
            raise ProcessKilledError

    # -- the loop's side

    def _set_result(self, result: Any) -> None:
        if not self._future.cancelled():
            self._future.set_result(result)

    def _set_error(self, error: BaseException) -> None:
        if not self._future.cancelled():
            self._future.set_exception(error)


class ThreadedLoop(ProcessLoop):
    """A process with threads. `watcher` is called with the name of each step before it, and may end the process."""

    def __init__(self, kernel: Kernel, network: Network, name: str, watcher: Callable[[str], None]) -> None:
        super().__init__(kernel, network, name)
        self.watcher = watcher
        #: Threads that have not ended.
        self.works: dict[Work, None] = {}
        #: Those that wait for the process to continue.
        self.held: list[Work] = []

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()
        if self.dead:
            future.set_exception(ProcessKilledError())
            return future
        work = Work(self, functools.partial(func, *args), future)
        self.works[work] = None
        self.kernel.after(THREAD_TIME, work.go_on)
        return future

    def turn(self) -> None:
        if not (self.stopped or self.dead):
            self.watcher("turn")
        super().turn()

    def _run_once(self) -> None:
        ready = self._ready
        rest = [] if self.dead else list(ready)[1:]
        for _ in rest:
            ready.pop()
        super()._run_once()  # type: ignore[misc]
        ready.extendleft(reversed(rest))

    def continue_process(self) -> None:
        super().continue_process()
        held, self.held = self.held, []
        for work in held:
            self.kernel.after(0.0, work.go_on)

    def unwind(self) -> None:
        self.dead = True
        works, self.works = list(self.works), {}
        for work in works:
            work.abandon()
        super().unwind()

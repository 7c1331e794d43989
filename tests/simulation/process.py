"""A simulated process: an asyncio event loop whose turns and time come from the kernel.

Strategy: asyncio's own `BaseEventLoop` runs the callbacks and timers; its selector never waits. What a loop does for
the world outside is replaced: connections go to the simulated network, names are looked up there, an executor's work is
done a little later in the same thread, and signal handlers are called when the simulation says so. Tasks and futures
have hashes that do not hang on their addresses, since asyncio keeps them in sets.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from asyncio import events as asyncio_events
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from tests.simulation.kernel import Event, Kernel, SimulationError

if TYPE_CHECKING:
    from tests.simulation.base_world import BaseWorld
    from tests.simulation.network import Network, Transport

_Result = TypeVar("_Result")

#: The duration of work in a thread, in seconds.
THREAD_TIME = 0.001
#: Turns that a loop of a dead process gets to unwind its tasks.
_LAST_TURNS = 10_000
#: Turns after which they are cancelled although they still have something to do.
_TURNS_UNASKED = 200


class _Task(asyncio.Task[Any]):
    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, loop: ProcessLoop, **options: Any) -> None:
        self._number = loop.next_number()
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    def __init__(self, *, loop: ProcessLoop) -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Selector:
    """There is nothing to select from: the kernel knows when a loop has to continue."""

    def select(self, timeout: float | None) -> list[Any]:
        return []


class ProcessLoop(asyncio.BaseEventLoop):
    """The event loop of one process called `name`."""

    _ready: Any
    _scheduled: Any

    def __init__(self, kernel: Kernel, network: Network, name: str) -> None:
        super().__init__()
        self.kernel = kernel
        self.network = network
        self.name = name
        self.stopped = False
        self.dead = False
        #: Seconds for which the machine was suspended: `time` did not advance, as CLOCK_MONOTONIC does not.
        self.suspended = 0.0
        #: Open connections, closed when the process ends.
        self.transports: dict[Transport, None] = {}
        self._selector = _Selector()
        self._thread_id = threading.get_ident()  # it counts as running, also between its turns
        self._number = 0
        self._queued = False
        self._alarm: Event | None = None
        self._alarm_at = 0.0
        self._handlers: dict[int, Callable[[], None]] = {}
        self.set_task_factory(lambda loop, coroutine, **options: _Task(coroutine, loop=self, **options))
        self.set_exception_handler(self._unhandled)
        kernel.loops.append(self)

    # -- turns

    def next_number(self) -> int:
        """A number that identifies a task or future of this loop."""
        self._number += 1
        return self._number

    def time(self) -> float:
        return self.kernel.now - self.suspended

    def submit(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call `callback` on this loop at its next turn: the way in from outside."""
        if not self.dead:
            self.call_soon(callback, *arguments)
            self._wake()

    def play(self, coroutine: Coroutine[Any, Any, _Result], seconds: float = 60.0) -> _Result:
        """Run a coroutine as a task of this process, let time pass until it has ended, and return its result."""
        tasks: list[asyncio.Task[_Result]] = []
        late: list[bool] = []
        self.submit(lambda: tasks.append(self.create_task(coroutine)))
        alarm = self.kernel.after(seconds, lambda: late.append(True))
        while not (tasks and tasks[0].done()):
            if late:
                raise SimulationError(f"the coroutine has not ended within {seconds:g} s:\n{self.kernel.waiting()}")
            self.kernel.step()
        alarm.cancel()
        return tasks[0].result()

    def turn(self) -> None:
        """Run what is due, once around. For the kernel."""
        self._queued = False
        if self.stopped or self.dead:
            return
        asyncio_events._set_running_loop(self)
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            asyncio_events._set_running_loop(None)
        self._arrange()

    def _wake(self) -> None:
        if not self._queued and not self.stopped:
            self._queued = True
            self.kernel.wake(self)

    def _arrange(self) -> None:
        if self._ready:
            self._wake()
            return
        if not self._scheduled:
            return
        due = self._scheduled[0].when() + self.suspended
        if self._alarm is not None:
            if self.kernel.now < self._alarm_at <= due:
                return  # it comes early enough, and then we look again
            self._alarm.cancel()
        self._alarm_at = due
        self._alarm = self.kernel.at(due, self._wake)

    def stop_process(self) -> None:
        """SIGSTOP: no turn until `continue_process`."""
        self.stopped = True

    def continue_process(self) -> None:
        """SIGCONT."""
        self.stopped = False
        self._wake()

    def kill(self) -> None:
        """SIGKILL: no turn any more."""
        self.dead = True

    def unwind(self) -> None:
        """End the tasks of a dead process so that nothing of it is left. Time stops meanwhile for others."""
        self._thread_id = threading.get_ident()
        asyncio_events._set_running_loop(self)
        self.dead = True
        for transport in list(self.transports):
            transport.close()
        try:
            if self._ready:  # protocols see their connections end, also where no task is left
                self._run_once()  # type: ignore[attr-defined]
            for turn in range(1, _LAST_TURNS + 1):
                tasks = asyncio.all_tasks(self)
                if not tasks:
                    break
                if not self._ready or turn % _TURNS_UNASKED == 0:  # a task that never waits must be cancelled, too
                    for task in sorted(tasks, key=hash):
                        task.cancel()
                if not self._ready and self._scheduled:
                    self.suspended = self.kernel.now - self._scheduled[0].when()
                self._run_once()  # type: ignore[attr-defined]
        finally:
            asyncio_events._set_running_loop(None)
            self._thread_id = None  # type: ignore[assignment]
        self.close()

    def describe(self) -> list[str]:
        """The tasks, and where each waits."""
        lines = []
        for task in sorted(asyncio.all_tasks(self), key=hash):
            stack = task.get_stack(limit=1)
            where = f"{stack[0].f_code.co_qualname} line {stack[0].f_lineno}" if stack else "nowhere"
            lines.append(f"  {self.name}: {task.get_name()} waits in {where}")
        return lines

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.dead:
            error = context.get("exception")
            self.kernel.failures.append(f"{self.kernel.now:.6f} {self.name}: {context.get('message')}: {error!r}")

    # -- what asyncio asks of a loop

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """There is one thread."""

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        handle = self.call_soon(callback, *args, context=context)
        self._wake()
        return handle

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """The work is done at its end; nothing runs beside the loop."""
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(THREAD_TIME, work)
        return future

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        return self.network.resolve(host, port)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """One address after the other, as asyncio's; without TLS."""
        assert options.get("ssl") is None, "simulated connections know no TLS"
        problem: OSError | None = None
        for _, _, _, _, (address, *_) in await self.getaddrinfo(host, port):
            try:
                return await self.network.connect(self, address, port, protocol_factory)
            except OSError as error:
                problem = error
        raise problem or OSError(f"{host} has no address")

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:  # type: ignore[override]
        self._handlers[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self._handlers.pop(sig, None) is not None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal: its handler is called at the next turn. Without one the process dies of it."""

        def receive() -> None:
            handler = self._handlers.get(number)
            if handler is None:
                self.kill()
            else:
                handler()

        self.submit(receive)


class SimulatedProcess:
    """The faults that any process of a world may have."""

    world: BaseWorld
    name: str
    loop: ProcessLoop
    #: Whether it has ended by itself.
    ended = False

    @property
    def alive(self) -> bool:
        """Whether the process is there."""
        return not (self.ended or self.loop.dead)

    def terminate(self) -> None:
        """SIGTERM: leave in order."""
        self.world.kernel.note(self.name, "SIGTERM")
        self.loop.signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: its sockets close, its session is left to expire."""
        self.world.kernel.note(self.name, "SIGKILL")
        self.loop.kill()
        self.world.network.close_all_of(self.name)
        self.world.account.died(self.name)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.world.kernel.note(self.name, "SIGSTOP")
        self.loop.stop_process()

    def thaw(self) -> None:
        """SIGCONT."""
        self.world.kernel.note(self.name, "SIGCONT")
        self.loop.continue_process()

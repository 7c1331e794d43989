"""The signals of the process, noticed also while the event loop is blocked.

Strategy: the interpreter writes the number of a signal to a pipe at the moment at which it comes, and a thread of
ours reads it, decides what it means, and asks the loop for it. So nothing that holds the loop keeps a signal from being
noticed: not a handler that computes or sleeps, not C code that waits without the GIL. C code that keeps the GIL stops
this thread as well; what looks for signals now and then, as the module `re` does, lets it in then.

    SIGTERM, SIGINT, SIGQUIT   the first one stops in order; the second one forces the end, the third one at once
    SIGHUP                     reloads the configuration of `consumerd run`. Else, and where the terminal of the process
                               was closed, it stops in order, and is ignored after that: a terminal may send two
    SIGUSR1                    writes the stacks of all threads and tasks to the log
    SIGUSR2                    is ignored, with a line

Before anything listens (while modules are imported and the handler is built) a stop ends the process at once: nothing
has been joined. Once a stop is under way the thread ends the process where the loop does not, after its own deadline.

Two things end the process where C code keeps the GIL for ever. While a stop is under way, the thread postpones a
deadline of faulthandler again and again, whose own thread needs no GIL. And the kernel restores the default action of
SIGTERM and SIGINT as soon as one comes: until this thread has noticed the first one, the second one ends the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol, Self

from consumerd.base.errors import ConsumerdError, ExitCode

if TYPE_CHECKING:  # a signal that comes while it is imported would end the process before it can be noticed
    import asyncio

#: A cancelled handler that still runs this long after a second signal cannot be waited for any more.
FORCE_SECONDS: Final = 2.0
#: How much longer than the loop, which ends the process in better order, this thread waits.
_MARGIN: Final = 1.0
#: A loop that did not come round for so long does not get that time at the second signal.
_HELD: Final = 1.0
#: Seconds that the last log lines may take: the log may be without a reader.
_LAST_WORDS: Final = 1.0
#: How long the thread sleeps at most while a deadline runs. It counts by these: a stopped process uses up no time.
_SLICE: Final = 0.25
#: How much longer than this thread faulthandler waits, whose exit code is 1: the last words and the GIL take time.
_LOCKED_OUT: Final = 5.0
#: How long the main thread leaves the GIL to ours when a signal came, at most, and how it waits.
_LET_IN: Final = 3.0
_LOOK_EVERY: Final = 0.001

_STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
_HANDLED: Final = (*_STOPS, signal.SIGUSR1, signal.SIGUSR2)
#: Signals that end the process the second time, if the first one was not noticed. SIGQUIT would write a core file.
_LETHAL: Final = (signal.SIGTERM, signal.SIGINT)
#: What else is written to the pipe, numbers that no signal has: that the thread is to end, that a deadline was set.
_CLOSE: Final = 0
_DEADLINE: Final = 255
_STDERR: Final = 2


#: Of Linux's `struct sigaction`, in the C libraries: its size at most, where its flags are, and the flag that
#: restores the default action when the signal comes (sigaction(2)).
_ACTION_SIZE: Final = 256
_FLAGS_AT: Final = ctypes.sizeof(ctypes.c_void_p) + 128
_RESETHAND: Final = 0x80000000


class _OneTime:
    """Has the kernel restore a signal's default action when the signal comes, on Linux; elsewhere it does nothing.

    Made when the handler is in place. Any thread may call it, which the module `signal` does not allow.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._action = ctypes.create_string_buffer(_ACTION_SIZE)
        if sys.platform == "linux":
            self._sigaction = ctypes.CDLL(None).sigaction
            if self._sigaction(number, None, self._action) == 0:
                ctypes.c_uint.from_buffer(self._action, _FLAGS_AT).value |= _RESETHAND
                self._sigaction(number, self._action, None)

    def again(self) -> None:
        """Put the handler in place again, if the signal has come and nothing else has taken it over."""
        if sys.platform == "linux":
            present = ctypes.create_string_buffer(_ACTION_SIZE)
            if self._sigaction(self._number, None, present) == 0 and not ctypes.c_void_p.from_buffer(present).value:
                self._sigaction(self._number, self._action, None)


class StopForcedError(ConsumerdError):
    """The stop was not graceful: the current batch is delivered again, to the partition's next owner."""

    exit_code = ExitCode.FORCED

    def __init__(self, reason: str) -> None:
        super().__init__(f"the stop was forced ({reason}); unfinished messages are delivered again.")


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A request to end the process."""

    #: The signal's name, or what else it was.
    reason: str
    #: The number of requests so far. The first one asks for a stop in order, later ones force it.
    times: int
    #: The error of the process, if the cause was not a signal.
    failure: ConsumerdError | None = None


class Stoppable(Protocol):
    """The work that ends when a signal arrives."""

    #: Seconds that a stop in order may take.
    stop_timeout: float

    def request(self, request: StopRequest) -> None:
        """Called on the loop, once for each request."""
        ...

    def held_for(self) -> float:
        """Seconds for which the loop has not come round. Called from a thread."""
        ...

    def outcome(self, reason: str) -> ConsumerdError:
        """Return the error of the process if its end is forced for `reason`. Called from a thread."""
        ...


class ProcessSignals:
    """Takes the process's signals over, from `__enter__` to `__exit__`, in the main thread.

    A SIGHUP that the process was started to ignore (by `nohup`) stays ignored. `reloads`: SIGHUP asks for a reload,
    which waits until there is something that reloads.
    """

    def __init__(self, *, reloads: bool = False) -> None:
        self._reloads = reloads
        self._reload: tuple[asyncio.AbstractEventLoop, Callable[[], None]] | None = None
        self._reload_waits = False
        #: The streams that were a terminal at the start.
        self._terminal = [number for number in range(3) if os.isatty(number)]
        self._lock = threading.Lock()
        self._receiver: tuple[asyncio.AbstractEventLoop, Stoppable] | None = None
        #: Requests that came while nothing listened.
        self._waiting: list[StopRequest] = []
        self._listened = False
        self._requests = 0
        self._reason = ""
        self._stop_timeout = 0.0
        self._reading = False
        #: Seconds after which the thread ends the process, once a stop is under way.
        self._left: float | None = None
        #: Whether faulthandler ends the process if this thread does not postpone that.
        self._deadline_set = False
        self._one_time: dict[int, _OneTime] = {}

    def __enter__(self) -> Self:
        self._nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
        self._thread.start()
        self._former_descriptor = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._former = {}
        for number in _HANDLED:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._former[number] = signal.signal(number, self._caught)
                signal.siginterrupt(number, False)  # libraries in C may not expect it
        self._one_time = {number: _OneTime(number) for number in _LETHAL}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_descriptor)
        os.write(self._writer, bytes([_CLOSE]))
        self._thread.join()
        if self._deadline_set:
            faulthandler.cancel_dump_traceback_later()
        os.close(self._nowhere)
        os.close(self._reader)
        os.close(self._writer)

    def forget(self) -> None:
        """Restore the handlers in a process that was forked from this one: it shares the pipe, but not our signals."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal in the main thread, between two of its instructions; the number is in the pipe already."""
        descriptor = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        if descriptor != self._writer:  # a loop has put its own in place, and the number went there
            os.write(self._writer, bytes([number]))
            with contextlib.suppress(OSError, ValueError):
                signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
        until = time.monotonic() + _LET_IN  # this may interrupt C code that releases the lock only here
        while (self._reading or select.select([self._reader], [], [], 0)[0]) and time.monotonic() < until:
            time.sleep(_LOOK_EVERY)

    # -- in the main thread

    def reclaim(self) -> None:
        """Have the numbers of signals written to our pipe again: a loop that starts may have put its own in place."""
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    @contextmanager
    def sent_to(
        self, receiver: Stoppable, loop: asyncio.AbstractEventLoop, reload: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Pass stop requests to `receiver`, on `loop`; also those that arrived while there was no receiver.

        `reload` is called there for each SIGHUP, if it asks for that.
        """
        self.reclaim()
        with self._lock:
            self._receiver, self._listened = (loop, receiver), True
            if reload is not None:
                self._reload = loop, reload
                waits, self._reload_waits = self._reload_waits, False
                if waits:
                    loop.call_soon(reload)
            self._stop_timeout = receiver.stop_timeout
            waiting, self._waiting = self._waiting, []
        for request in waiting:
            loop.call_soon(receiver.request, request)
        try:
            yield
        finally:
            with self._lock:
                self._receiver = self._reload = None

    def stop(self, reason: str, failure: ConsumerdError) -> bool:
        """Ask for a stop in order because of `failure`; whether anything listens."""
        with self._lock:
            if self._receiver is None:
                return False
            self._ask(StopRequest(reason, 1, failure))
            return True

    def expect_end(self) -> None:
        """A stop has begun: end the process if the loop does not, some time after the loop's own deadline."""
        if self._left is None:
            self._left = self._stop_timeout + FORCE_SECONDS + _MARGIN
            os.write(self._writer, bytes([_DEADLINE]))

    def keep_from_loop(self) -> None:
        """In a forked process: end it when it comes to the loop, which would use the daemon's connections twice."""
        if self._receiver is not None:
            with contextlib.suppress(RuntimeError):  # in debug mode, of a fork in another thread: no loop runs there
                self._receiver[0].call_soon(_end_child)

    # -- in the thread

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        while True:
            began, pause = time.monotonic(), None
            if self._left is not None:
                self._postpone_end(self._left + _LOCKED_OUT)
                pause = max(0.0, min(self._left, _SLICE))
            ready = poll.poll(None if pause is None else pause * 1000)
            if self._left is not None:
                self._left -= min(time.monotonic() - began, _SLICE)
                if self._left <= 0:
                    self._force()
            if ready and not self._read():
                return

    def _postpone_end(self, seconds: float) -> None:
        """Have faulthandler end the process in `seconds`, with all stacks, unless this is called again in time."""
        stream = self._nowhere  # where standard error is closed, or is a log without a reader, which would block
        with contextlib.suppress(OSError):
            if select.select([], [_STDERR], [], 0)[1]:
                stream = _STDERR
        self._deadline_set = True
        faulthandler.dump_traceback_later(seconds, exit=True, file=stream)

    def _read(self) -> bool:
        """Read the pipe; return False at its end."""
        self._reading = True
        try:
            for number in os.read(self._reader, 1024):
                if number == _CLOSE:
                    return False
                if number in self._one_time:
                    self._one_time[number].again()
                if number in _HANDLED:  # a plugin may have handlers for others
                    self._noticed(signal.Signals(number))
            return True
        finally:
            self._reading = False

    def _noticed(self, number: signal.Signals) -> None:
        name = number.name
        if number == signal.SIGHUP and self._reloads and not self._requests and not self._terminal_closed():
            self._ask_reload()
        elif not self._listened:
            stops = number in _STOPS
            what = "stopped by" if stops else "ignored"
            _aside(lambda: _say(f"{what} {name} before it had started; nothing was joined."), wait=True)
            if stops:
                os._exit(ExitCode.OK)
        elif number == signal.SIGUSR1:
            _aside(self._show_stacks)
        elif number == signal.SIGUSR2 or (number == signal.SIGHUP and self._requests):
            _aside(lambda: _log("warning", "signal_ignored", signal=name))
        else:
            self._stop_requested(name)

    def _terminal_closed(self) -> bool:
        return bool(self._terminal) and not any(os.isatty(number) for number in self._terminal)

    def _ask_reload(self) -> None:
        with self._lock:
            if self._reload is None:
                self._reload_waits = True
                return
            loop, reload = self._reload
            with contextlib.suppress(RuntimeError):  # the loop is closed: the end is near
                loop.call_soon_threadsafe(reload)

    def _stop_requested(self, name: str) -> None:
        with self._lock:
            self._requests += 1
            self._ask(StopRequest(name, self._requests))
            held = self._held()
        if self._requests == 1:
            self._left = self._stop_timeout + FORCE_SECONDS + _MARGIN
            return
        self._reason = f"second signal, {name}"
        if held or self._requests > 2:
            self._force()
        else:
            self._left = FORCE_SECONDS + _MARGIN

    def _held(self) -> bool:
        return self._receiver is not None and self._receiver[1].held_for() > _HELD

    def _ask(self, request: StopRequest) -> None:
        if self._receiver is None:
            self._waiting.append(request)
            return
        loop, receiver = self._receiver
        with contextlib.suppress(RuntimeError):  # the loop is closed: the end is near
            loop.call_soon_threadsafe(receiver.request, request)

    def _force(self) -> None:
        """End the process without the loop."""
        self._left = None
        reason = self._reason or f"no end within {self._stop_timeout:g} s"
        from consumerd.service.daemon.stacks import as_lines, main_thread_frames, user_place  # noqa: PLC0415 - imports asyncio

        frames = main_thread_frames(without=__file__)
        if frames and self._held():
            reason += f", with the event loop held at {user_place(frames)}"
        outcome = StopForcedError(reason) if self._receiver is None else self._receiver[1].outcome(reason)
        _aside(lambda: _log("error", "exit_forced", reason=reason, stack=as_lines(frames)), wait=True)
        _aside(lambda: _say(str(outcome)), wait=True)
        os._exit(outcome.exit_code)

    def _show_stacks(self) -> None:
        from consumerd.service.daemon.stacks import task_stacks, thread_stacks  # noqa: PLC0415

        for stack in thread_stacks():
            _log("info", "thread_stack", **stack)
        receiver = self._receiver
        for tasks in task_stacks(receiver[0]) if receiver is not None else ():
            _log("info", "task_stack", **tasks)


def _aside(work: Callable[[], None], *, wait: bool = False) -> None:
    """Do what may block, as a log without a reader does, and continue to notice signals."""
    thread = threading.Thread(target=work, name="signal", daemon=True)
    thread.start()
    if wait:
        thread.join(_LAST_WORDS)


def _log(level: str, event: str, **fields: object) -> None:
    import structlog  # noqa: PLC0415 - the first thing that a process does is to listen to its signals

    getattr(structlog.get_logger(__name__), level)(event, **fields)


def _say(sentence: str) -> None:
    """One line on standard error, past the locks and buffers that the interpreter has for it."""
    with contextlib.suppress(OSError):
        os.write(2, f"consumerd: {sentence}\n".encode())


_current: ProcessSignals | None = None


@contextmanager
def process_signals(*, reloads: bool = False) -> Iterator[ProcessSignals]:
    """The process's signals, taken over until the end; within another such block they are the same.

    `reloads`: as of `ProcessSignals`.
    """
    global _current  # noqa: PLW0603 - signals belong to the process
    if _current is not None:
        yield _current
        return
    with ProcessSignals(reloads=reloads) as _current:
        try:
            yield _current
        finally:
            _current = None


@contextmanager
def signals_held() -> Iterator[None]:
    """Have signals wait until the end: what takes the process's signals over begins within this block."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


# -- forks, as pools of processes do: a child has the pipe, too, and must not tell of its signals in it

_masks = threading.local()


def _before_fork() -> None:
    _masks.former = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.former)


def _in_forked_child() -> None:
    if _current is not None:
        _current.forget()
        _current.keep_from_loop()
    _after_fork()


def _end_child() -> None:
    _say(
        "a process that a handler forked came back to the daemon's event loop, and was ended there: it must end with "
        "os._exit(), or use multiprocessing or handler.processes."
    )
    os._exit(ExitCode.HANDLER_FAILED)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_forked_child)

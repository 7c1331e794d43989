"""Running a coroutine on the configured event loop, as the work of a whole process.

A call of `sys.exit` in a task or a callback of its own, or of the loop's `stop`, ends the loop, and with it everything
that is under way. A daemon continues with its loop then, to stop in order: its handlers are its users' code.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, closing, contextmanager
from types import FrameType
from typing import Any, Final, Literal, TypeVar

from consumerd.base.errors import ConfigError, HandlerFailedError
from consumerd.service.daemon.memory import tune_malloc
from consumerd.service.daemon.signals import ProcessSignals

_T = TypeVar("_T")

#: Files that a loop, and what is imported after its start, open at once.
_LEAST_FILES: Final = 11
#: The limit of open files that a daemon should have: its own files, and a connection to each of many brokers.
ENOUGH_FILES: Final = 256


def _uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not there on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop


def too_few_files(limit: int) -> ConfigError:
    """The error of a process that may open `limit` files only."""
    return ConfigError(f"only {limit} open files are allowed (ulimit -n, LimitNOFILE): raise it to {ENOUGH_FILES}")


def _require_files() -> None:
    """Raise ConfigError where too few files can be opened: uvloop does not end in order when its start fails."""
    try:
        with ExitStack() as opened:
            for _ in range(_LEAST_FILES):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise too_few_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) from error


@contextmanager
def sigterm_interrupts(work: Coroutine[Any, Any, Any]) -> Iterator[None]:
    """SIGTERM ends what a tool does as Ctrl-C does: cancelled, so that it undoes or says what it has begun.

    `work` is closed at the end, since an interrupt may come before its first step.
    """

    def interrupt(_: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, frame)
        else:  # a shell starts what is in the background without it
            raise KeyboardInterrupt

    with closing(work):
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = signal.signal(signal.SIGTERM, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, former)


def run_on_loop(
    main: Coroutine[None, None, _T],
    loop: Literal["auto", "uvloop", "asyncio"] = "auto",
    *,
    signals: ProcessSignals | None = None,
    budget: int = 0,
) -> _T:
    """Run `main` to its end; `auto` takes uvloop where it is installed.

    `budget`: bytes of messages that may be held in memory. Without `signals`, SIGTERM interrupts it as Ctrl-C does.
    With them, a call of `sys.exit` in any task asks for a stop in order, as a signal does, and is a failure of the
    handler. Raises ConfigError where uvloop is missing or too few files can be opened, and HandlerFailedError.
    """
    factory = None if loop == "asyncio" else _uvloop_factory()
    try:
        if loop == "uvloop" and factory is None:
            raise ConfigError("daemon.loop is uvloop, which is not installed; install it or set auto.")
        _require_files()
    except ConfigError:
        main.close()
        raise
    tune_malloc(budget)
    with asyncio.Runner(loop_factory=factory) as runner:
        if signals is None:
            with sigterm_interrupts(main):
                return runner.run(main)
        event_loop = runner.get_loop()
        event_loop.call_soon(signals.reclaim)  # before anything else runs there
        task = event_loop.create_task(main)
        cause: BaseException
        while True:
            try:
                return event_loop.run_until_complete(task)
            except SystemExit as error:
                called, cause = f"sys.exit({error.code!r})", error
            except RuntimeError as error:
                if task.done():
                    raise
                called, cause = "stop() of the event loop", error
            failure = HandlerFailedError(
                f"something called {called} in a task or a callback of its own; a handler stops the daemon by raising "
                "HandlerFailedError."
            )
            if task.done() or not signals.stop(called, failure):
                raise failure from cause
            event_loop.call_soon(signals.reclaim)

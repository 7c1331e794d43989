"""Running a coroutine on the configured event loop, as the work of a whole process.

A call of `sys.exit` in a task or a callback of its own ends the loop, and with it everything that is under way. A
daemon continues with its loop then, to stop in order: its handlers are its users' code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Literal, TypeVar

from consumerd.base.errors import ConfigError, HandlerFailedError
from consumerd.service.daemon.memory import tune_malloc
from consumerd.service.daemon.signals import ProcessSignals

_T = TypeVar("_T")


def _uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not there on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop


def run_on_loop(
    main: Coroutine[None, None, _T],
    loop: Literal["auto", "uvloop", "asyncio"] = "auto",
    *,
    signals: ProcessSignals | None = None,
    budget: int = 0,
) -> _T:
    """Run `main` to its end; `auto` takes uvloop where it is installed.

    `budget`: bytes of messages that may be held in memory. With `signals`, a call of `sys.exit` in any task asks for a
    stop in order, as a signal does, and is a failure of the handler. Raises ConfigError where uvloop is missing, and
    HandlerFailedError.
    """
    factory = None if loop == "asyncio" else _uvloop_factory()
    if loop == "uvloop" and factory is None:
        main.close()
        raise ConfigError("daemon.loop is uvloop, which is not installed; install it or set auto.")
    tune_malloc(budget)
    with asyncio.Runner(loop_factory=factory) as runner:
        if signals is None:
            return runner.run(main)
        event_loop = runner.get_loop()
        event_loop.call_soon(signals.reclaim)  # before anything else runs there
        task = event_loop.create_task(main)
        while True:
            try:
                return event_loop.run_until_complete(task)
            except SystemExit as error:
                failure = HandlerFailedError(
                    f"something called sys.exit({error.code!r}) in a task or a callback of its own; a handler stops "
                    "the daemon by raising HandlerFailedError."
                )
                if task.done() or not signals.stop(f"sys.exit({error.code!r})", failure):
                    raise failure from error
                event_loop.call_soon(signals.reclaim)

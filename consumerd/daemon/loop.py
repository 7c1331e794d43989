"""Running a coroutine on the configured event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, TypeVar

from consumerd.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_T = TypeVar("_T")


def _uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not there on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop


def run_on_loop(main: Coroutine[None, None, _T], loop: Literal["auto", "uvloop", "asyncio"] = "auto") -> _T:
    """Run `main` to its end; `auto` takes uvloop where it is installed. Raises ConfigError where it is missing."""
    factory = None if loop == "asyncio" else _uvloop_factory()
    if loop == "uvloop" and factory is None:
        main.close()
        raise ConfigError("daemon.loop is uvloop, which is not installed; install it or set auto.")
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)

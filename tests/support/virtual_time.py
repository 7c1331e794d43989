"""An event loop whose time passes only while all its tasks wait: hours take seconds, and every run is the same."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Moves the time of `loop` on to its next timer."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "every task waits, and none for a time"
        self.loop.turned()
        self.loop.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """For tasks that use no sockets and threads. `turned` is called at each turn."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turned: Callable[[], None] = lambda: None
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


class LoopClock:
    """A `consumerd.base.ports.Clock` with the time of the running loop."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    wall = monotonic

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """The result of `main`, from time 0 on."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)

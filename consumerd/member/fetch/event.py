"""`Flag`: as `asyncio.Event`, for the several that each partition has.

Strategy: those of asyncio hold a deque of waiters from the start, of more than 600 bytes, and nearly all of a member's
thousand partitions are idle. Here a list is made by the first task that has to wait, and `wait` returns what is awaited
instead of being a coroutine, which takes 200 bytes as long as it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Final


class _Done:
    """Awaited without a wait."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


_DONE: Final = _Done()


class Flag:
    """A flag that tasks of one event loop wait for."""

    __slots__ = ("_loop", "_waiters", "state")

    def __init__(self, *, is_set: bool = False) -> None:
        #: Whether the flag is set. To be set by the methods alone; clearing it needs no more than this.
        self.state = is_set
        self._waiters: list[asyncio.Future[None]] | None = None
        #: That of the tasks, once there is one. To ask for it is a system call in Python 3.11.
        self._loop: asyncio.AbstractEventLoop | None = None

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self.state

    def set(self) -> None:
        """Set the flag and wake up all that wait."""
        self.state = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Reset the flag: `wait` waits from now on."""
        self.state = False

    def change(self, state: bool) -> None:
        """Set or clear the flag."""
        if state and not self.state:
            self.set()
        self.state = state

    def wait(self) -> Awaitable[None]:
        """What to await, at once: it returns when the flag was set, which may have been cleared again since."""
        if self.state:
            return _DONE
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        waiter = self._loop.create_future()
        if self._waiters is None:
            self._waiters = [waiter]
        else:
            # Those whose tasks were cancelled are still there.
            self._waiters = [*(each for each in self._waiters if not each.done()), waiter]
        return waiter

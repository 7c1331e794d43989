"""`Flag`: as `asyncio.Event`, for the several that each partition has.

Strategy: those of asyncio hold a deque of waiters from the start, of more than 600 bytes, and nearly all of a member's
thousand partitions are idle. Here a list is made by the first task that has to wait.
"""

from __future__ import annotations

import asyncio


class Flag:
    """A flag that tasks of one event loop wait for."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self, *, is_set: bool = False) -> None:
        self._is_set = is_set
        self._waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag and wake up all that wait."""
        self._is_set = True
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Reset the flag: `wait` waits from now on."""
        self._is_set = False

    def change(self, state: bool) -> None:
        """Set or clear the flag."""
        if state and not self._is_set:
            self.set()
        self._is_set = state

    async def wait(self) -> None:
        """Return once the flag was set, at once if it is. It may have been cleared again since."""
        if self._is_set:
            return
        waiter = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)
            if not self._waiters:
                self._waiters = None

"""Waiting longer each time, by doubling, with jitter; and a sleep that can be cut short."""

from __future__ import annotations

import asyncio
from random import Random

from consumerd.base.ports import Clock


class Backoff:
    """Delays in seconds: from `smallest`, doubling up to `largest`, each shortened by up to a half at random."""

    __slots__ = ("_largest", "_rng", "_smallest", "attempts")

    def __init__(self, smallest: float, largest: float, rng: Random) -> None:
        self._smallest = smallest
        self._largest = largest
        self._rng = rng
        #: Number of delays since the last reset.
        self.attempts = 0

    def reset(self) -> None:
        """Begin with the smallest delay again."""
        self.attempts = 0

    def next(self) -> float:
        """Return the next delay."""
        delay = min(self._largest, self._smallest * 2.0 ** min(self.attempts, 60))
        self.attempts += 1
        return delay * (1 - self._rng.random() / 2)


async def sleep_unless(clock: Clock, seconds: float, event: asyncio.Event) -> None:
    """Sleep, but no longer than until `event` is set."""
    if seconds <= 0 or event.is_set():
        return
    async with asyncio.TaskGroup() as group:
        sleeper = group.create_task(clock.sleep(seconds))
        waiter = group.create_task(event.wait())
        await asyncio.wait((sleeper, waiter), return_when=asyncio.FIRST_COMPLETED)
        sleeper.cancel()
        waiter.cancel()

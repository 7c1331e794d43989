"""A clock whose time a test controls.

Strategy: sleepers wait in a heap by the time at which they are due. `advance` goes from one to the next and lets the
loop turn after each, so that a task that sleeps again within the span is woken again; `jump` moves the time at once.
With `auto`, a sleep itself moves the time: no task waits, and all wake in the order of time.
"""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

#: Iterations of the loop that woken tasks get before time moves on.
_TURNS = 5


class FakeClock:
    """A `consumerd.base.ports.Clock` in seconds. Used from one event loop; `now` may be read from anywhere."""

    def __init__(self, now: float = 1000.0, *, wall: float = 1_700_000_000.0, auto: bool = False) -> None:
        self.now = now
        self.auto = auto
        #: Every sleep that was requested, in order, in seconds.
        self.sleeps: list[float] = []
        self._wall = wall - now
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._stepping = False

    @property
    def sleepers(self) -> int:
        """The number of tasks that sleep now."""
        return sum(not future.done() for *_, future in self._sleepers)

    def monotonic(self) -> float:
        """The clock's time."""
        return self.now

    def wall(self) -> float:
        """The clock's time since the epoch; it goes with `monotonic`."""
        return self._wall + self.now

    async def sleep(self, seconds: float) -> None:
        """Return when the clock has been moved by `seconds`; 0 or less yields once."""
        self.sleeps.append(seconds)
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._numbers), future))
        if self.auto and not self._stepping:
            self._stepping = True
            loop.call_soon(self._step, loop)
        await future

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass: sleepers wake in order, each at its time, and may sleep again within the span."""
        target = self.now + seconds
        while self._next_due() <= target:
            self._wake_next()
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        self.now = max(self.now, target)
        await asyncio.sleep(0)

    def jump(self, seconds: float) -> None:
        """Move the time at once, as a suspended machine sees it: all sleepers that are due wake together."""
        target = self.now + seconds
        while self._next_due() <= target:
            self._wake_next()
        self.now = max(self.now, target)

    def _step(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake one sleeper, and the next one after that one's turn."""
        self._wake_next()
        self._stepping = self.sleepers > 0
        if self._stepping:
            loop.call_soon(self._step, loop)

    def _next_due(self) -> float:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)  # cancelled while it slept
        return self._sleepers[0][0] if self._sleepers else float("inf")

    def _wake_next(self) -> None:
        due = self._next_due()
        if self._sleepers:
            self.now = max(self.now, due)
            heapq.heappop(self._sleepers)[2].set_result(None)


class PassingPauses:
    """`clock` for code that only pauses: each sleep advances the time at once, for all, and is recorded in `pauses`."""

    def __init__(self, clock: FakeClock, pauses: list[float]) -> None:
        self._clock = clock
        self._pauses = pauses

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wall(self) -> float:
        return self._clock.wall()

    async def sleep(self, seconds: float) -> None:
        self._pauses.append(seconds)
        self._clock.jump(seconds)
        await asyncio.sleep(0)

"""Spreads work that thousands of tasks begin together over many turns of the event loop.

Strategy: a fixed number of tasks passes in each turn, in the order in which they came; the others wait for the next
turns. What has to happen meanwhile, above all the heartbeats of the session with ZooKeeper, waits for one turn and not
for all tasks. A single task passes at once.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turnstile:
    """Lets at most `width` tasks pass in a turn of the event loop."""

    def __init__(self, width: int) -> None:
        if width < 1:
            raise ValueError(f"invalid width of a turnstile: {width}; must be positive")
        self._width = width
        self._room = width
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turning = False

    async def enter(self) -> None:
        """Return in a turn that has room."""
        if not self._turning:
            self._turn_later()
        if self._room and not self._waiting:
            self._room -= 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        await place

    def _turn_later(self) -> None:
        self._turning = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        self._room = self._width
        while self._room and self._waiting:
            place = self._waiting.popleft()
            if not place.done():  # else it was cancelled
                place.set_result(None)
                self._room -= 1
        if self._room < self._width:
            self._turn_later()

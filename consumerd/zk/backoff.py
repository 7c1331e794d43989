"""Waiting before the next connection attempt: none after a healthy connection, else longer and longer, with jitter."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

FIRST = 0.05
LARGEST = 1.0
#: A connection that lived this long (and twice the last delay) was healthy.
HEALTHY = 0.25


class Backoff:
    """Delays 0, 0.05, 0.1 ... 1 s, each cut to 50-100 % at random, so that members do not come back in step."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._next = 0.0

    def delay(self) -> float:
        """Seconds to wait now; the next answer will be longer."""
        delay = self._next
        self._next = min(LARGEST, max(FIRST, delay * 2))
        return delay * self._rng.uniform(0.5, 1.0)

    def lived(self, seconds: float) -> None:
        """A connection was up for so long: if it was healthy, the next attempt starts at once."""
        if seconds >= max(HEALTHY, self._next):
            self._next = 0.0

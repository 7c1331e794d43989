"""Virtual time: an event queue, one seeded random generator, a trace, and the way a simulation fails.

Strategy: everything that happens is a callback at a time; equal seeds give equal runs, on every machine. The trace
keeps the last happenings as plain values and is only made text when something is wrong.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_TRACED = 400


class SimulationError(AssertionError):
    """An invariant was violated; the text ends with the events before that."""


class World:
    """Time (seconds from 0), chance and the queue of what is to come."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 0.0
        self.steps = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._sequence = 0
        self._trace: deque[tuple[float, str, object]] = deque(maxlen=_TRACED)

    def at(self, time: float, callback: Callable[..., None], *arguments: object) -> None:
        """Call at `time`, or now when that is past; in order of scheduling where times are equal."""
        self._sequence += 1
        heapq.heappush(self._queue, (max(time, self.now), self._sequence, callback, arguments))

    def after(self, delay: float, callback: Callable[..., None], *arguments: object) -> None:
        """Call `delay` seconds from now."""
        self.at(self.now + delay, callback, *arguments)

    def run_until(self, time: float) -> None:
        """Let everything happen up to `time`."""
        queue = self._queue
        while queue and queue[0][0] <= time:
            self.now, _, callback, arguments = heapq.heappop(queue)
            self.steps += 1
            callback(*arguments)
        self.now = time

    def note(self, who: str, what: object) -> None:
        """Remember a happening for the trace."""
        self._trace.append((self.now, who, what))

    def fail(self, sentence: str) -> NoReturn:
        """Raise SimulationError."""
        lines = "\n".join(f"{time:9.3f}  {who:14} {what}" for time, who, what in self._trace)
        raise SimulationError(f"seed {self.seed}, at {self.now:.3f} s: {sentence}\n{lines}")

"""Virtual time: a heap of events, and the event loops of simulated processes, of which one at a time has its turn.

Strategy: loops that have something to do take turns until none has; then the time jumps to the next event. Events of
one moment happen in the order in which they were scheduled. A loop that is stopped has no turns, however much waits
in it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.process import ProcessLoop

#: Turns of loops without any time passing: more of them are a loop that never ends.
_TURNS_AT_ONCE = 50_000


class SimulationError(AssertionError):
    """The simulation cannot continue, or did not reach its goal."""


class Event:
    """Something that will happen, unless it is cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None] | None) -> None:
        self.action = action

    def cancel(self) -> None:
        """Let it not happen. May be called again, and after it happened."""
        self.action = None


class Kernel:
    """The time, in seconds from the start, and whatever happens in it."""

    def __init__(self) -> None:
        self.now = 0.0
        #: The events so far, for error reports: (time, process, event).
        self.timeline: list[tuple[float, str, str]] = []
        #: Errors that no simulated process may cause, such as an exception that was not handled.
        self.failures: list[str] = []
        self.loops: list[ProcessLoop] = []
        self._events: list[tuple[float, int, Event]] = []
        self._count = 0
        self._ready: deque[ProcessLoop] = deque()
        self._turns = 0

    def note(self, who: str, what: str) -> None:
        """Add a line to the timeline."""
        self.timeline.append((self.now, who, what))

    def at(self, when: float, action: Callable[[], None]) -> Event:
        """Call `action()` at a time, not before now."""
        event = Event(action)
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, event))
        return event

    def after(self, seconds: float, action: Callable[[], None]) -> Event:
        """Call `action()` in so many seconds."""
        return self.at(self.now + seconds, action)

    def wake(self, loop: ProcessLoop) -> None:
        """Give `loop` a turn as soon as it is its turn."""
        self._ready.append(loop)

    def step(self) -> None:
        """One turn of a loop, or one event. Raises SimulationError where nothing is left that could happen."""
        if self._ready:
            self._turns += 1
            if self._turns > _TURNS_AT_ONCE:
                raise SimulationError(f"loops go round without time passing at {self.now:.6f} s:\n{self.waiting()}")
            self._ready.popleft().turn()
            return
        while self._events:
            when, _, event = heapq.heappop(self._events)
            action = event.action
            if action is None:
                continue
            if when > self.now:
                self.now = when
                self._turns = 0
            event.action = None
            action()
            return
        raise SimulationError(f"nothing is scheduled any more at {self.now:.6f} s:\n{self.waiting()}")

    def run(self, seconds: float) -> None:
        """Let time pass."""
        passed = False

        def over() -> None:
            nonlocal passed
            passed = True

        self.after(seconds, over)
        while not passed:
            self.step()

    def run_dry(self) -> None:
        """Run for as long as anything happens. Raises SimulationError then."""
        while True:
            self.step()

    def until(self, condition: Callable[[], bool], seconds: float, *, what: str = "", every: float = 0.05) -> float:
        """Let time pass until `condition()`, looked at `every` so often. The seconds that it took.

        Raises SimulationError when it is not so within `seconds`.
        """
        began = self.now
        while not condition():
            if self.now - began > seconds:
                raise SimulationError(f"not within {seconds:g} s: {what or condition}\n{self.waiting()}")
            self.run(every)
        return self.now - began

    def waiting(self) -> str:
        """The tasks of all processes that live, and where they wait."""
        return "\n".join(line for loop in self.loops if not loop.dead for line in loop.describe())

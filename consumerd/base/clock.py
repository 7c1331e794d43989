"""The system's clock behind the `Clock` port, and intervals that may change.

Strategy: durations are counted by CLOCK_BOOTTIME where there is one. CLOCK_MONOTONIC stands still while the machine is
suspended; the server's clock does not, and expires our session meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from consumerd.base.ports import Clock

if hasattr(time, "CLOCK_BOOTTIME"):
    _elapsed: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)

else:  # pragma: no cover - macOS, whose CLOCK_MONOTONIC continues while the machine sleeps
    _elapsed = time.monotonic


def iso_time(seconds: float) -> str:
    """Seconds since the Unix epoch as ISO 8601 in UTC, to the second: 2026-11-28T03:00:00Z."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


class SystemClock:
    """Real time. See `consumerd.base.ports.Clock`."""

    #: Returns the seconds since the machine was started, including those in which it was suspended. Not a method in
    #: Python, which would double its cost: streams ask for the time before each message.
    monotonic = staticmethod(_elapsed)

    #: Seconds since the Unix epoch. Not a method that calls it: producers ask for each message.
    wall = staticmethod(time.time)

    async def sleep(self, seconds: float) -> None:
        """Suspend the calling task."""
        import asyncio  # noqa: PLC0415 - commands that only ask for the time start without it

        await asyncio.sleep(max(0.0, seconds))


class Interval:
    """The time between two runs of a task, in seconds, which may change while the task waits. None: no further run."""

    def __init__(self, seconds: float | None, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        #: While the task waits: expires when the interval changes.
        self._sleep: asyncio.Timeout | None = None

    def change(self, seconds: float | None) -> None:
        """Set the interval, also of the wait under way: it ends when its beginning is so long ago, or at once."""
        if seconds == self._seconds:
            return
        self._seconds = seconds
        sleep, self._sleep = self._sleep, None
        if sleep is not None:
            import asyncio  # noqa: PLC0415

            sleep.reschedule(asyncio.get_running_loop().time())

    async def wait(self) -> None:
        """Return when the interval has passed. One task waits at a time."""
        import asyncio  # noqa: PLC0415

        began = self._clock.monotonic()
        while (left := self._left(began)) is None or left > 0:
            try:
                async with asyncio.timeout(None) as self._sleep:
                    if left is None:
                        await asyncio.Event().wait()
                    else:
                        await self._clock.sleep(left)
                    return
            except TimeoutError:
                continue
            finally:
                self._sleep = None

    def _left(self, began: float) -> float | None:
        return None if self._seconds is None else began + self._seconds - self._clock.monotonic()

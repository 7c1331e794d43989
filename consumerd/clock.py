"""The system's clock behind the `Clock` port.

Strategy: durations are counted by CLOCK_BOOTTIME where there is one. CLOCK_MONOTONIC stands still while the machine is
suspended; the server's clock does not, and expires our session meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

if hasattr(time, "CLOCK_BOOTTIME"):
    _elapsed: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)

else:  # pragma: no cover - macOS, whose CLOCK_MONOTONIC continues while the machine sleeps
    _elapsed = time.monotonic


class SystemClock:
    """Real time. See `consumerd.ports.Clock`."""

    #: Returns the seconds since the machine was started, including those in which it was suspended. Not a method in
    #: Python, which would double its cost: streams ask for the time before each message.
    monotonic = staticmethod(_elapsed)

    #: Seconds since the Unix epoch. Not a method that calls it: producers ask for each message.
    wall = staticmethod(time.time)

    async def sleep(self, seconds: float) -> None:
        """Suspend the calling task."""
        await asyncio.sleep(max(0.0, seconds))

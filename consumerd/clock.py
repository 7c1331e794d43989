"""The system's clock behind the `Clock` port."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Real time. See `consumerd.ports.Clock`."""

    def monotonic(self) -> float:
        """Seconds of CLOCK_MONOTONIC, the clock that asyncio's loops use too."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Suspend the calling task."""
        await asyncio.sleep(max(0.0, seconds))

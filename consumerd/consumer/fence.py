"""The fence: whether this member may hand messages over at this very moment.

Strategy: a lease, not a state. The server cannot expire the session before `lease_left()` seconds have passed, counted
by a clock that runs on while the process is stopped; so a check right before each hand-over, without an await between,
holds even when the process was paused between two events. A gate on top closes at once when the session is suspended.
`Fence.watch` tells when the lease runs out, for what handlers already hold.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.consumer.seams import Lease
    from consumerd.ports import Clock


class Fence:
    """Guards the hand-over of all partitions of a member. `margin` in seconds."""

    def __init__(self, lease: Lease, clock: Clock, margin: float) -> None:
        self._lease = lease
        self._clock = clock
        self._margin = margin
        self._gate = asyncio.Event()
        self._gate.set()

    @property
    def margin(self) -> float:
        """Seconds of lease that must be left; less than half of the granted session timeout, however short that is."""
        return min(self._margin, self._lease.session_timeout / 4)

    def allows(self, session_id: int) -> bool:
        """Whether partitions claimed on `session_id` may be handed over now."""
        return self._gate.is_set() and self._lease.session_id == session_id and self._lease.lease_left() > self.margin

    @property
    def is_open(self) -> bool:
        """Whether the gate is open; the lease is another matter."""
        return self._gate.is_set()

    def open(self) -> None:
        """Let hand-overs pass, as far as the lease goes."""
        self._gate.set()

    def close(self) -> None:
        """Hold all hand-overs back until `open`."""
        self._gate.clear()

    async def wait(self, session_id: int) -> None:
        """Return when `allows(session_id)`; never, for a session that is over: its owner is cancelled instead."""
        while not self.allows(session_id):
            if self._gate.is_set():
                # The lease is short, or a reconnect's news has not reached us: nothing tells when it grows.
                await self._clock.sleep(0.05)
            else:
                await self._gate.wait()

    async def watch(self, expired: Callable[[], None]) -> None:
        """Call `expired()` each time the lease runs out while something may be in a handler's hands. Runs for ever."""
        ran_out = False
        while True:
            left = self._lease.lease_left() - self.margin
            if left <= 0 and not ran_out:
                expired()
            ran_out = left <= 0
            # Pings renew the lease meanwhile: sleep for what is left now, then look again.
            await self._clock.sleep(0.05 if ran_out else max(left, 0.02))

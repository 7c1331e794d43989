"""The fence: decides whether this member may deliver messages at this moment.

Strategy: a lease, not a state. The server cannot expire the session before `lease_left()` seconds have passed, counted
by a clock that continues while the process is suspended; so a check right before each delivery, without an await
between, holds even when the process was paused between two events. A lost connection alone changes nothing: delivery
continues until the lease ends, and a server that is back before then causes no pause. `Fence.watch` reports the end of
the lease, for messages that handlers hold, and wakes waiting tasks when it is back.

The lease of a member in ZooKeeper is the session's (`consumerd.net.zk`). That of a group that a broker coordinates
comes from the membership machine, which knows when it sent the confirmed request.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from consumerd.base.ports import Clock

if TYPE_CHECKING:
    from consumerd.group.coordinated_base import BrokerMember

log = structlog.get_logger(__name__)

#: The session id of partitions that are assigned by configuration.
FIXED_SESSION: Final = 1
#: Seconds between checks of a lease that has run out: no event reports its renewal.
_LOOK: Final = 0.05
#: Shortest time between checks of a valid lease, in seconds.
_SOONEST: Final = 0.02
#: Longest time between them, in seconds: timers stop while the machine is suspended, and the lease does not. Until a
#: handler holds messages for more than a turn of the loop, and while few are called, it may be longer.
_LATEST: Final = 0.25
_LATEST_IDLE: Final = 1.0
_LOST: Final = (
    "no contact for nearly the session timeout; nothing is delivered, as other members may own the partitions"
)


class Lease(Protocol):
    """The lease on which ownership depends: for how long no other member can have taken over."""

    @property
    def session_id(self) -> int:
        """An id that changes when ownership has to be gained again; 0 while there is none."""
        ...

    @property
    def session_timeout(self) -> float:
        """Seconds without contact after which others take over."""
        ...

    def lease_left(self) -> float:
        """Seconds for which no other member can have taken over; negative when one may have."""
        ...


class Fence:
    """Guards the delivery of all partitions of a member. `margin` in seconds."""

    def __init__(self, lease: Lease, clock: Clock, margin: float) -> None:
        self._lease = lease
        self._clock = clock
        self._margin = margin
        #: The number of handlers that hold messages, and whether one was called since the last check.
        self._held = 0
        self._called = False
        #: While the watch sleeps longer than it may while a handler holds messages.
        self._long_sleep: asyncio.Timeout | None = None
        self._open = asyncio.Event()
        self._open.set()

    @property
    def session_id(self) -> int:
        """The session on which ownership rests now; 0 for none."""
        return self._lease.session_id

    @property
    def margin(self) -> float:
        """Seconds of lease that must be left; less than half of the granted session timeout, however short that is."""
        return min(self._margin, self._lease.session_timeout / 4)

    def allows(self, session_id: int) -> bool:
        """Whether partitions claimed on `session_id` may be delivered now."""
        lease = self._lease
        if lease.session_id != session_id:
            return False
        left = lease.lease_left()
        return left > self._margin or left > self.margin

    async def wait(self, session_id: int) -> None:
        """Return when `allows(session_id)`; never, for a session that is over: its owner is cancelled instead."""
        while not self.allows(session_id):
            if self._open.is_set():
                await self._clock.sleep(_LOOK)  # the watch has not seen it yet, or a new session is not announced
            else:
                await self._open.wait()

    def hold(self) -> None:
        """Watch for a handler that gets messages, until `release`."""
        self._held += 1
        self._called = True
        if self._long_sleep is not None:
            asyncio.get_running_loop().call_soon(self._end_long_sleep)  # the handler is not to wait for that

    def release(self) -> None:
        """Note that a handler holds its messages no more."""
        self._held -= 1

    async def watch(self, expired: Callable[[int], None]) -> None:
        """Call `expired(session_id)` each time the lease of a session runs out. Runs for ever."""
        reported = 0
        while True:
            session_id, left = self._lease.session_id, self._lease.lease_left() - self.margin
            if left > 0:
                if reported:
                    log.info("lease_regained", session_id=f"{session_id:#x}")
                reported = 0
                self._open.set()
            else:
                self._open.clear()
                if session_id not in (0, reported):  # without a session, handlers hold nothing
                    reported = session_id
                    log.warning("lease_lost", session_id=f"{session_id:#x}", reason=_LOST)
                    expired(session_id)
            # Heartbeats renew the lease meanwhile: sleep for its remaining time, then check again.
            latest = _LATEST if self._held or self._called else _LATEST_IDLE
            self._called = False
            await self._sleep(_LOOK if left <= 0 else min(max(left, _SOONEST), latest))

    async def _sleep(self, seconds: float) -> None:
        """Sleep; longer than `_LATEST` only until a handler holds messages for more than a turn of the loop."""
        if seconds <= _LATEST:
            await self._clock.sleep(seconds)
            return
        try:
            async with asyncio.timeout(None) as self._long_sleep:
                await self._clock.sleep(seconds)
        except TimeoutError:
            pass  # a handler holds messages
        finally:
            self._long_sleep = None

    def _end_long_sleep(self) -> None:
        if not self._held:
            return  # it has returned already: nearly each message that comes alone would wake up the watch else
        sleep, self._long_sleep = self._long_sleep, None
        if sleep is not None:
            sleep.reschedule(asyncio.get_running_loop().time())


class GroupLease:
    """The lease of a member whose group a broker coordinates; a new session with every generation, or join."""

    #: A number for the generation; 0 while no partition is ours. Without a call of Python code: each delivery reads it.
    session_id: int = property(attrgetter("_member.session_id"))  # type: ignore[assignment]

    def __init__(self, member: BrokerMember, clock: Clock, session_timeout: float) -> None:
        self._member = member
        self._clock = clock
        self.session_timeout = session_timeout

    def lease_left(self) -> float:
        """Seconds for which the coordinator cannot have given our partitions away."""
        return self._member.lease_until - self._clock.monotonic()


class FixedLease:
    """The lease of partitions that the configuration assigns: it never ends."""

    session_id = FIXED_SESSION
    #: Seconds; without effect on a lease that does not end, but finite, because margins are computed from it.
    session_timeout = 60.0

    def lease_left(self) -> float:
        """Return infinity."""
        return math.inf

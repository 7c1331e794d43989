"""Feeds systemd's watchdog (`WatchdogSec`) while the daemon itself makes progress.

Strategy: a task on the event loop sends `WATCHDOG=1` at a quarter of the interval that systemd sets, so a blocked loop
sends nothing. The task also asks whether the daemon's own main loop is stuck, and then sends nothing either. Handlers,
ZooKeeper and brokers have no part in it: a restart repairs none of them. A process that does not run (stopped, swapped
out) looks the same as one that is stuck, so the interval must be generous.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Final, Self

import structlog

from consumerd.base.ports import Clock
from consumerd.service.daemon.notify import notify

log = structlog.get_logger(__name__)

#: Keeps the watchdog from ending the process.
ALIVE: Final = "WATCHDOG=1"
#: Notifications in one interval: two may come late.
_PER_INTERVAL: Final = 4


def watchdog_interval(environment: Mapping[str, str] = os.environ, *, pid: int | None = None) -> float | None:
    """Seconds after which the service manager ends a silent process; None without a watchdog for this process.

    See sd_watchdog_enabled(3): WATCHDOG_USEC in microseconds, WATCHDOG_PID the process that is to send.
    """
    try:
        microseconds = int(environment.get("WATCHDOG_USEC", "0"))
        watched = int(environment.get("WATCHDOG_PID", "0"))
    except ValueError:
        log.warning("watchdog_ignored", reason="WATCHDOG_USEC and WATCHDOG_PID must be whole numbers")
        return None
    if microseconds <= 0 or watched not in (0, os.getpid() if pid is None else pid):
        return None
    return microseconds / 1e6


class Watchdog:
    """Feeds the watchdog, from `__aenter__` to `__aexit__`. `stuck` is the reason to stop, None while all is well."""

    def __init__(
        self, stuck: Callable[[], str | None], clock: Clock, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._stuck = stuck
        self._clock = clock
        self._environment = environment
        self._interval = watchdog_interval(environment)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._interval is not None:
            self._task = asyncio.create_task(self._feed(self._interval / _PER_INTERVAL), name="watchdog")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _feed(self, pause: float) -> None:
        reported: str | None = None
        while True:
            reason = self._stuck()
            if reason is None:
                notify(ALIVE, environment=self._environment)
            elif reason != reported:
                log.error("watchdog_not_fed", reason=reason)
            reported = reason
            await self._clock.sleep(pause)

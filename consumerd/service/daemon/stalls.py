"""Tells when something holds the event loop, and what: a handler that blocks costs heartbeats, and so partitions.

Strategy: the loop counts up a number now and then, and a thread looks whether it still moves. It counts the time by its
own looks, so that a process that was stopped or swapped out does not count as a stall. A look that comes late says that
the thread could not run. If the process used the processor meanwhile, C code kept the GIL: it is where the main thread
is when it releases the lock to this thread. Otherwise the process did not run, or C code waited with the lock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Final, Self

import structlog

from consumerd.service.daemon.stacks import main_thread_frames, user_place

log = structlog.get_logger(__name__)

_LONGEST_INTERVAL: Final = 0.5
#: The share of a pause for which the process has used the processor at least, if its own code caused the pause: other
#: processes want it, too.
_BUSY: Final = 0.2


class LoopWatch:
    """Watches the running event loop, from `__enter__` to `__exit__`. A stall is logged after `threshold` seconds."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._interval = min(threshold / 4, _LONGEST_INTERVAL)
        self._beats = 0
        self._last_beat = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop watch", daemon=True)

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.join(timeout=1.0)  # it may be writing to a log without a reader

    def held_for(self) -> float:
        """Seconds since the loop should have come round; 0 while it does. From any thread."""
        return max(0.0, time.monotonic() - self._last_beat - self._interval)

    def _beat(self) -> None:
        self._beats += 1
        self._last_beat = time.monotonic()
        self._timer = self._loop.call_later(self._interval, self._beat)

    # -- in the thread

    def _watch(self) -> None:
        seen, held, tell_at = self._beats, 0.0, self._threshold
        while True:
            began, used = time.monotonic(), time.process_time()
            if self._closed.wait(self._interval):
                return
            late = time.monotonic() - began - self._interval
            if late >= self._threshold:
                self._report_pause(late, time.process_time() - used)
            elif self._beats == seen:
                held += self._interval
                if held >= tell_at:
                    tell_at = held * 2
                    log.error("loop_stalled", **_place(), seconds=round(held, 1))
                continue
            elif tell_at > self._threshold:
                log.warning("loop_stall_ended", seconds=round(held, 1))
            seen, held, tell_at = self._beats, 0.0, self._threshold

    def _report_pause(self, seconds: float, used: float) -> None:
        """Log that this thread could not run for `seconds`, while the process used `used` seconds of the processor."""
        if used - self._interval >= _BUSY * seconds:  # the interval before a pause may have been a busy one
            log.error("loop_stalled", **_place(), seconds=round(seconds, 1), reason="C code held the GIL")
        else:
            log.warning("process_paused", seconds=round(seconds, 1))


def _place() -> dict[str, str]:
    """Where the user's code holds the loop, and what it has called there."""
    stack = main_thread_frames()
    place = user_place(stack)
    if place is None:
        return {}
    return {"at": place.short} if place == stack[-1] else {"at": place.short, "innermost": stack[-1].short}

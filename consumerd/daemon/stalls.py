"""Tells when something holds the event loop, and what: a handler that blocks costs heartbeats, and so partitions.

Strategy: the loop counts up a number now and then, and a thread looks whether it still moves. It counts the time by
its own looks, so that a process that was stopped or swapped out is no stall. C code that keeps the interpreter's lock
keeps this thread from looking, too; then faulthandler's own, which needs no lock, writes all stacks to standard error.
"""

from __future__ import annotations

import asyncio
import faulthandler
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

import structlog

from consumerd.daemon.stacks import main_thread_frames

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

log = structlog.get_logger(__name__)

_LONGEST_INTERVAL: Final = 0.5
#: The wait for the interpreter's lock, as a multiple of the limit of a stall.
_LOCK_FACTOR: Final = 5


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
        self._dump_if_locked_out()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.join(timeout=1.0)  # it may be writing to a log without a reader
        faulthandler.cancel_dump_traceback_later()

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
        while not self._closed.wait(self._interval):
            self._dump_if_locked_out()
            if self._beats != seen:
                if tell_at > self._threshold:
                    log.warning("loop_stall_ended", seconds=round(held, 1))
                seen, held, tell_at = self._beats, 0.0, self._threshold
                continue
            held += self._interval
            if held >= tell_at:
                tell_at = held * 2
                log.error("loop_stalled", seconds=round(held, 1), stack="\n".join(main_thread_frames()))

    def _dump_if_locked_out(self) -> None:
        """Have all stacks written unless this is called again in time."""
        if sys.__stderr__ is not None:
            faulthandler.dump_traceback_later(_LOCK_FACTOR * self._threshold, file=sys.__stderr__)

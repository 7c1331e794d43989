"""The middleware `slow_calls`: logs each call of the handler that takes longer than a threshold."""

from __future__ import annotations

import structlog

from consumerd.base.settings.kind import checked
from consumerd.base.settings.setting import Seconds
from consumerd.handlers.context import HandlerContext
from consumerd.handlers.middleware import HandlerCall

log = structlog.get_logger(__name__)


class SlowCalls:
    """Logs `handler_call_slow` when the call ends, however it ends.

    Option: `threshold`, in seconds. A call that has not ended yet shows in `consumerd_handler_busy_seconds`.
    """

    @checked
    def __init__(self, threshold: Seconds = 1.0) -> None:
        self._threshold = threshold

    async def start(self, context: HandlerContext) -> None:
        """Keep the clock, and count beside what the handler counts."""
        self._clock = context.clock
        self._name = context.name
        self._calls = context.metrics.counter("slow_calls", "Calls that took longer than slow_calls.threshold.")

    async def after(self, call: HandlerCall) -> None:
        """Log the call if it was slow."""
        self._look(call, "handled")

    async def error(self, call: HandlerCall, error: BaseException) -> None:
        """Log the call if it was slow."""
        self._look(call, type(error).__name__)

    def _look(self, call: HandlerCall, outcome: str) -> None:
        seconds = self._clock.monotonic() - call.began
        if seconds < self._threshold:
            return
        self._calls.add()
        log.warning(
            "handler_call_slow",
            handler=self._name,
            partition=str(call.batch.partition),
            offset=call.batch.start_offset,
            messages=len(call.batch),
            seconds=round(seconds, 3),
            outcome=outcome,
        )

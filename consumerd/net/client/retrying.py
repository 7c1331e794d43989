"""Retrying attempts that fail with transient errors.

Strategy: connections that end or cannot be made, answers whose error code is retriable, and UnavailableError are
transient; everything else is final. Pauses double and are jittered, and the time for all attempts
together is limited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from types import TracebackType
from typing import TypeVar

from consumerd.base.errors import BrokerError, reason_of
from consumerd.base.ports import Clock
from consumerd.net.client.errors import BrokerRefusedError, UnavailableError
from consumerd.net.client.settings import ClientSettings
from consumerd.net.errors import ConnectError, ConnectionClosedError
from consumerd.wire.v08.error_codes import ErrorCode

_T = TypeVar("_T")
#: Errors of a broker that may have carried the request out: what it waited for did not happen in time.
_UNSURE = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.GROUP_COORDINATOR_NOT_AVAILABLE})


def passes(error: BrokerError) -> bool:
    """Whether a later attempt may succeed."""
    if isinstance(error, BrokerRefusedError):
        return error.retriable
    return isinstance(error, (ConnectError, ConnectionClosedError, UnavailableError))


class UnansweredAttempts:
    """Whether an attempt of a request failed so that a broker may have carried it out nevertheless.

    Each attempt runs within it as a context. A request that is not idempotent is repeated with it: "does not exist", or
    "exists already", after an unanswered attempt is the result of that one.
    """

    def __init__(self) -> None:
        self._any = False

    def __bool__(self) -> bool:
        return self._any

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, ConnectionClosedError) or (
            isinstance(error, BrokerRefusedError) and error.code in _UNSURE
        ):
            self._any = True


def log_retry(what: str, error: BrokerError) -> None:
    """Log, once for each call, that it is repeated."""
    # Spark's executors have no structlog, and use a log of their own.
    import structlog  # noqa: PLC0415

    structlog.get_logger(__name__).info("retrying", what=what, reason=reason_of(error))


async def retry(
    attempt: Callable[[], Awaitable[_T]],
    what: str,
    settings: ClientSettings,
    *,
    timeout: float | None,
    clock: Clock,
    rng: Random,
    passes: Callable[[BrokerError], bool] = passes,
    on_retry: Callable[[str, BrokerError], None] = log_retry,
) -> _T:
    """Repeat `attempt` and return its result. Raises its last error after `timeout` seconds (None: the settings').

    `passes`: whether an error is worth another attempt; `on_retry` is called with the first that is.
    """
    give_up = clock.monotonic() + (settings.retry_timeout if timeout is None else timeout)
    pause = settings.retry_backoff_min
    reported = False
    while True:
        try:
            return await attempt()
        except BrokerError as error:
            wait = pause * (0.5 + rng.random())
            if not passes(error) or clock.monotonic() + wait > give_up:
                raise
            if not reported:
                on_retry(what, error)
                reported = True
        await clock.sleep(wait)
        pause = min(2 * pause, settings.retry_backoff_max)

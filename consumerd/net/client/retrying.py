"""Which errors of attempts are transient, so that `ClusterClient.retrying` repeats them.

Strategy: connections that end or cannot be made, answers whose error code is retriable, and UnavailableError are
transient; everything else is final.
"""

from __future__ import annotations

from types import TracebackType

from consumerd.base.errors import BrokerError, reason_of
from consumerd.net.client.errors import BrokerRefusedError, UnavailableError
from consumerd.net.errors import ConnectError, ConnectionClosedError
from consumerd.wire.v08.error_codes import ErrorCode

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

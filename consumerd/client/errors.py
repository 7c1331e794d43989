"""Errors of the 0.8+ client: each names the broker or topic, and says what to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.errors import BrokerError
from consumerd.wire.v08.error_codes import error_info

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumerd.wire.v08.error_codes import ErrorInfo


class UnavailableError(BrokerError):
    """Something is temporarily unavailable; asking again later is safe and may help."""


class NoBrokerError(UnavailableError):
    """No broker of the cluster could be reached in time. `tried`: what came of each."""

    def __init__(self, message: str, tried: Sequence[BrokerError] = ()) -> None:
        super().__init__(message)
        self.tried = tuple(tried)


class RequestTooLargeError(BrokerError):
    """A request is larger than the settings allow."""


class AuthenticationError(BrokerError):
    """The broker does not accept who we are, or not the way in which we say so."""


class BrokerRefusedError(BrokerError):
    """A broker answered with an error code. `info` has its number, name, text, and whether it passes by itself."""

    def __init__(self, what: str, info: ErrorInfo, said: str | None = None) -> None:
        detail = said or info.text
        super().__init__(f"{what}: {info.name} (error {info.code}): {detail}")
        self.what = what
        self.info = info
        self.said = said

    def __reduce__(self) -> tuple[type[BrokerRefusedError], tuple[str, ErrorInfo, str | None]]:
        return type(self), (self.what, self.info, self.said)

    @property
    def code(self) -> int:
        """The number on the wire."""
        return self.info.code

    @property
    def retriable(self) -> bool:
        """Whether asking again later may help."""
        return self.info.retriable


def error_of(code: int, what: str, said: str | None = None) -> BrokerRefusedError | None:
    """The error that `code` stands for; None for 0. `what` says who refused what, `said` are the broker's words."""
    return None if code == 0 else BrokerRefusedError(what, error_info(code), said)

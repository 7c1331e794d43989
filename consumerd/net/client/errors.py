"""Errors of the 0.8+ client: each names the broker or topic, and what to check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from consumerd.base.errors import BrokerError
from consumerd.base.lazy import lazy_names
from consumerd.wire.v08.error_codes import ErrorCode, ErrorInfo, error_info


class UnavailableError(BrokerError):
    """Something is temporarily unavailable; a later attempt is safe and may succeed."""


class NoBrokerReachedError(UnavailableError):
    """No broker of the cluster could be reached in time. `tried`: the result of each attempt."""

    def __init__(self, message: str, tried: Sequence[BrokerError] = ()) -> None:
        super().__init__(message)
        self.tried = tuple(tried)


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, {}, {"NoBrokerError": "NoBrokerReachedError"})


class V07BrokerError(BrokerError):
    """The broker runs Kafka 0.7, whose protocol is another one."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"broker {address} runs Kafka 0.7, which does not support the protocol of Kafka 0.8 and later; give its "
            "ZooKeeper instead (--zookeeper, zookeeper.connect), or --broker to `consumerd produce`"
        )
        self.address = address

    def __reduce__(self) -> tuple[type[V07BrokerError], tuple[str]]:
        return type(self), (self.address,)


class RequestTooLargeError(BrokerError):
    """A request is larger than the settings allow."""


class AuthenticationError(BrokerError):
    """The broker does not accept the client's principal, or its SASL mechanism."""


class BrokerRefusedError(BrokerError):
    """A broker answered with an error code. `info` has its number, name, text, and whether it is transient."""

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
        """Whether a later attempt may succeed."""
        return self.info.retriable


def error_of(code: int, what: str, said: str | None = None) -> BrokerRefusedError | None:
    """Return the error for `code`; None for 0. `what` names the refused request, `said` is the broker's message."""
    return None if code == 0 else BrokerRefusedError(what, error_info(code), said)


def topic_error(code: int, what: str, topic: str, permission: str = "Describe") -> BrokerRefusedError | None:
    """As `error_of`, for a request about one topic that needs a `permission`: the error names what is missing."""
    missing = f"the client lacks the permission {permission} on the topic {topic!r}"
    return error_of(code, what, missing if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED else None)

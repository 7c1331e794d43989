"""Errors of forwarding, and which of them are permanent."""

from __future__ import annotations

from typing import Final

from consumerd.base.errors import HandlerFailedError
from consumerd.net.client.errors import AuthenticationError, BrokerRefusedError, RequestTooLargeError
from consumerd.producer import MessageSizeTooLargeError, ProducerFencedError, TransactionAbortedError
from consumerd.producer.v08.delivery import DeliveryError
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.errors import UnsupportedApiError


class NoHeadersError(HandlerFailedError):
    """The target does not support headers, and they are configured."""


class NoTopicError(HandlerFailedError):
    """The target has no such topic, and it is not created automatically."""


class OtherLogError(HandlerFailedError):
    """The source's log is not the one that the target's messages came from."""


#: The target found more in one request than it takes; with fewer messages it may.
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
#: Errors that persist until the target's or our configuration is changed.
_FINAL_CODES: Final = frozenset(
    {
        "MESSAGE_TOO_LARGE",
        "INVALID_TOPIC_EXCEPTION",
        "RECORD_LIST_TOO_LARGE",
        "INVALID_REQUIRED_ACKS",
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "INVALID_TRANSACTION_TIMEOUT",
        "INVALID_TIMESTAMP",
        "UNSUPPORTED_SASL_MECHANISM",
        "ILLEGAL_SASL_STATE",
        "INVALID_PARTITIONS",
        "INVALID_REPLICATION_FACTOR",
        "INVALID_CONFIG",
        "INVALID_REQUEST",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "POLICY_VIOLATION",
        "SASL_AUTHENTICATION_FAILED",
        "UNSUPPORTED_COMPRESSION_TYPE",
        "INVALID_RECORD",
    }
)
_FINAL_ERRORS: Final = (
    AuthenticationError,
    DeliveryError,
    MessageSizeTooLargeError,
    ProducerFencedError,
    RequestTooLargeError,
    UnsupportedApiError,
)


def is_too_large(error: Exception) -> bool:
    """Whether sending fewer messages at once may help."""
    return isinstance(error, BrokerRefusedError) and error.code in _TOO_LARGE


def is_hopeless(error: BaseException) -> bool:
    """Whether a retry cannot help."""
    if isinstance(error, TransactionAbortedError) and error.__cause__ is not None:
        return is_hopeless(error.__cause__)
    return isinstance(error, _FINAL_ERRORS) or (
        isinstance(error, BrokerRefusedError) and error.info.name in _FINAL_CODES
    )


def stop_if_hopeless(error: BaseException, what: str) -> None:
    """Raise HandlerFailedError, which begins with `what`, for an error that a retry cannot help."""
    if isinstance(error, Exception) and is_hopeless(error):
        raise HandlerFailedError(f"{what}: {error}") from error

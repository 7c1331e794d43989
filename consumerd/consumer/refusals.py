"""Errors of SimpleConsumer: one class for each error code that a 0.7 broker answers a fetch with."""

from __future__ import annotations

from consumerd.errors import BrokerError
from consumerd.wire.v07 import ErrorCode, FetchRequest


class FetchRefusedError(BrokerError):
    """The broker answered a fetch with an error. `request` is what was asked."""

    def __init__(self, request: FetchRequest, code: ErrorCode) -> None:
        super().__init__(
            f"the broker refused to fetch {request.topic!r}, partition {request.partition}, from offset "
            f"{request.offset}: {_REASONS[code]}"
        )
        self.request = request
        self.code = code


class OffsetOutOfRangeError(FetchRefusedError):
    """There is no such offset (any more, or yet)."""


class WrongPartitionError(FetchRefusedError):
    """The broker has no partition of that number."""


class InvalidMessageError(FetchRefusedError):
    """The broker found a corrupt message. Brokers of 0.7.2 never say so (golden notes, 1)."""


class InvalidFetchSizeError(FetchRefusedError):
    """The size that was asked for cannot be. Brokers of 0.7.2 never say so; we do, before anything is sent."""


class UnknownRefusalError(FetchRefusedError):
    """The broker failed for another reason: an illegal topic name, or something that only its log tells."""


_REASONS: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN: "an unknown error; is the topic's name legal? The broker's log says more",
    ErrorCode.OFFSET_OUT_OF_RANGE: "it has no such offset; get_offsets_before returns the offsets it has",
    ErrorCode.INVALID_MESSAGE: "the message there is corrupt",
    ErrorCode.WRONG_PARTITION: "it has no such partition",
    ErrorCode.INVALID_FETCH_SIZE: "a size to fetch lies between 0 and 2 GiB",
}
_CLASSES: dict[ErrorCode, type[FetchRefusedError]] = {
    ErrorCode.UNKNOWN: UnknownRefusalError,
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRangeError,
    ErrorCode.INVALID_MESSAGE: InvalidMessageError,
    ErrorCode.WRONG_PARTITION: WrongPartitionError,
    ErrorCode.INVALID_FETCH_SIZE: InvalidFetchSizeError,
}


def refusal(request: FetchRequest, code: ErrorCode) -> FetchRefusedError:
    """The error for a code other than NONE."""
    return _CLASSES[code](request, code)

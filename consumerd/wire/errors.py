"""Errors of bytes on the wire or in a segment file, and of values to encode.

Strategy: decoders of hostile bytes raise only classes of this module (and most return a verdict instead, see
`consumerd.wire.v07.decode_batch`); encoders raise `EncodeError` for values that no frame can hold.
"""

from __future__ import annotations

from consumerd.base.errors import ConsumerdError, ExitCode


class WireError(ConsumerdError):
    """The peer breaks the protocol, or we were asked to."""

    exit_code = ExitCode.BROKER


class FrameError(WireError):
    """The body of a request or response is cut, contradicts itself, or is of no known type."""


class EncodeError(WireError):
    """A value does not fit into the field that has to carry it."""


class CorruptMessageError(WireError):
    """A message, or the set inside a compressed one, cannot be what a producer wrote."""

    exit_code = ExitCode.CORRUPT


class DecompressionError(CorruptMessageError):
    """The payload of a compressed message is damaged, or larger than the limit once decompressed."""


class TooLargeError(DecompressionError):
    """The decompressed size of a payload, or the number of its pieces, exceeds a limit."""


def beyond_limit(what: str, limit: int) -> str:
    """The sentence about `what`, which decompresses to more than `limit` bytes, with the keys that raise the limit."""
    return (
        f"the {what} decompresses to more than the limit of {limit} bytes; raise fetch.max_size of the daemon, "
        "max_fetch_size of a ConsumerConfig, or maxDecompressedBytes of a Spark source above it"
    )


class OversizeMessageError(WireError):
    """The payload of an outer message is larger than the broker's max.message.size."""


class InvalidTopicError(WireError):
    """A topic name that brokers refuse."""

    exit_code = ExitCode.USAGE

"""Numbers of the 0.6/0.7 protocol, and the limits that decoders of hostile bytes take as an argument."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class RequestType(IntEnum):
    """The second field of every request (spec 000, Request Header)."""

    PRODUCE = 0
    FETCH = 1
    MULTIFETCH = 2
    MULTIPRODUCE = 3
    OFFSETS = 4


class ErrorCode(IntEnum):
    """The error of a fetch answer. Brokers send -1, 0, 1 and 3; 2 and 4 are made by clients (golden notes, 1)."""

    UNKNOWN = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    INVALID_MESSAGE = 2
    WRONG_PARTITION = 3
    INVALID_FETCH_SIZE = 4


#: `time` of an OffsetsRequest: the offset at which the next message will be written.
LATEST = -1
#: `time` of an OffsetsRequest: the offset of the oldest message that is kept.
EARLIEST = -2

#: Largest size of a request that a broker takes by default (max.socket.request.bytes; golden notes, 8): no message that
#: went through one is larger.
MAX_REQUEST_BYTES = 104857600


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """The limits of a decoder.

    `max_message_bytes`: largest payload of an outer message; a length field beyond it is taken as corruption.
    `max_decompressed_bytes`: what one outer message, with all that is nested in it, may decompress to; a batch takes
    no further compressed message once it holds that much.
    `max_depth`: wrappers within wrappers.
    `max_batch_bytes`: memory after which a batch takes no further compressed message: small leaves cost several times
    their bytes, and a megabyte of well compressed ones unpacks to hundreds.
    `max_pieces`: gzip members and snappy blocks, nested ones among them, of which one outer message may be put
    together; beside these one for every 32 bytes of it.
    `max_leaves_per_byte`: how many leaves an outer message may have for each byte of its payload, once it has more than
    `free_leaves`; None: any number. Messages that differ have different CRCs and compress to more than a byte each:
    only copies of a few messages need less.
    """

    max_message_bytes: int = MAX_REQUEST_BYTES
    max_decompressed_bytes: int = 64 * 1024 * 1024
    max_depth: int = 16
    max_batch_bytes: int = 16 * 1024 * 1024
    max_pieces: int = 16384
    max_leaves_per_byte: int | None = None
    free_leaves: int = 131072


DEFAULT_LIMITS = DecodeLimits()
#: Limits of a broker for a PRODUCE: sets that only serve to keep others busy are refused.
PRODUCE_LIMITS = DecodeLimits(max_depth=8, max_leaves_per_byte=4)

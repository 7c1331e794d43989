"""The messages of a set as the log stores them: outer messages, compressed ones not opened.

Strategy: one reader looks at one position and says what stands there: a whole message (good or not), or the tail (cut
off, or with a length that nothing can have). Everything slower than the plain run of `consumerd.wire.v07.walk` goes
through it. A set is a row of (int32 length, int8 magic, [int8 attributes, if magic is 1], uint32 CRC of the payload,
payload); the length counts what follows it (spec 000, Message; spec 003, 5.4; golden notes, 1).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, cast

from consumerd.wire.compression import Codec
from consumerd.wire.crc import crc32
from consumerd.wire.v07.constants import DEFAULT_LIMITS, DecodeLimits

#: Bytes between a message's length field and its payload, by magic.
HEADER_SIZE = (5, 6)
#: The smallest length field that any message has.
MIN_LENGTH = HEADER_SIZE[0]
#: Codec of the low two bits of the attributes; the other six mean nothing (golden notes, 1).
_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, None)

_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")


class OuterMessage(NamedTuple):
    """One whole message of the outer set, with its CRC checked and nothing decompressed.

    `size` is the length field (without its own 4 bytes), `payload` the raw bytes (empty where the header is
    unreadable), `codec` None where it is unknown. `problem` is one clause when not `valid`.
    """

    offset: int
    next_offset: int
    valid: bool
    magic: int
    codec: Codec | None
    size: int
    crc: int
    payload: bytes
    problem: str | None


class MessageSetTail(NamedTuple):
    """The data after the last readable message. `problem` None: only cut off.

    `needed` counts the bytes from `offset` on that would hold the message, its length field included.
    """

    offset: int
    needed: int | None
    problem: str | None


def read_outer(data: bytes | memoryview, position: int, offset: int, max_payload: int) -> OuterMessage | MessageSetTail:
    """Look at the message at `position`, whose offset in the log is `offset`. Never raises for what it finds.

    Of a memoryview the payload is a part, not a copy.
    """
    left = len(data) - position
    if left < 4:
        return MessageSetTail(offset, None, None)
    (size,) = _LENGTH.unpack_from(data, position)
    if not MIN_LENGTH <= size <= max_payload + HEADER_SIZE[1]:
        return MessageSetTail(offset, None, f"a length of {size}, which no message has")
    if left < 4 + size:
        return MessageSetTail(offset, 4 + size, None)
    end = position + 4 + size
    magic = data[position + 4]
    codec: Codec | None = Codec.NONE
    if magic == 1:
        codec = _CODECS[data[position + 5] & 3]
    if magic > 1 or size < HEADER_SIZE[magic]:
        problem = f"magic {magic}, which 0.7 does not know" if magic > 1 else "less than a header"
        return OuterMessage(offset, offset + 4 + size, False, magic, None, size, 0, b"", problem)
    start = position + 4 + HEADER_SIZE[magic]
    (crc,) = _CRC.unpack_from(data, start - 4)
    payload = cast("bytes", data[start:end])
    actual = crc32(payload)
    wrong = None
    if actual != crc:
        wrong = f"a CRC of {actual:08x} where its header says {crc:08x}"
    elif codec is None:
        wrong = "compression codec 3, which does not exist"
    return OuterMessage(offset, offset + 4 + size, wrong is None, magic, codec, size, crc, payload, wrong)


def iter_outer(data: bytes, offset: int = 0, *, limits: DecodeLimits = DEFAULT_LIMITS) -> Iterator[OuterMessage]:
    """Yield the whole messages in `data`, whose first byte has log offset `offset`, as far as lengths can be followed.

    A message with a wrong CRC, magic or codec is yielded as not valid, and its length is followed. Ends at the tail:
    the end of the data, a cut-off message, or an impossible length; `read_outer` at that place returns which.
    """
    position = 0
    while True:
        item = read_outer(data, position, offset + position, limits.max_message_bytes)
        if isinstance(item, MessageSetTail):
            return
        yield item
        position = item.next_offset - offset


def plausible_after(data: bytes | memoryview, position: int, max_payload: int) -> bool:
    """Whether a message could begin at `position`, as far as the data shows: the end, a cut or a possible length."""
    if len(data) - position < 4:
        return True
    (size,) = _LENGTH.unpack_from(data, position)
    return bool(MIN_LENGTH <= size <= max_payload + HEADER_SIZE[1])

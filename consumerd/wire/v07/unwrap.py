"""What is inside a compressed message: its leaves, however deep.

Strategy: recursion bounded by depth and by one budget of decompressed bytes for the whole outer message. An inner set
obeys the rules of the real consumer (golden notes, 1 and 2): a cut-off message at its end is dropped silently, a set
that only holds a cut-off message is corrupt, an empty set has no leaves, and one bad inner message spoils the whole
wrapper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.compression import Codec, decompress
from consumerd.wire.errors import CorruptMessageError
from consumerd.wire.v07.constants import DEFAULT_LIMITS, Limits
from consumerd.wire.v07.outer import Tail, read_outer
from consumerd.wire.v07.walk import LAYOUTS, walk

if TYPE_CHECKING:
    from consumerd.wire.v07.outer import OuterMessage

#: Inner messages have no size limit of their own (golden notes, 1); what is in memory bounds them.
_ANY_SIZE = 0x7FFFFFFF


def leaf_payloads(message: OuterMessage, *, limits: Limits = DEFAULT_LIMITS) -> list[bytes]:
    """The flattened leaves of a message: of a plain one itself, of a wrapper those of its set.

    Raises CorruptMessageError (DecompressionError among it) when it, or anything inside it, is not valid.
    """
    if not message.valid or message.codec is None:
        raise CorruptMessageError(f"the message at offset {message.offset} has {message.problem}")
    if message.codec is Codec.NONE:
        return [message.payload]
    return unwrap(message.codec, message.payload, limits=limits)[0]


def unwrap(codec: Codec, payload: bytes, *, limits: Limits = DEFAULT_LIMITS) -> tuple[list[bytes], int]:
    """The leaves in a wrapper's payload and the number of bytes that all its decompressed sets had together.

    Raises CorruptMessageError (DecompressionError among it).
    """
    leaves: list[bytes] = []
    left = _open(codec, payload, leaves, 1, limits.max_decompressed_bytes, limits.max_depth)
    return leaves, limits.max_decompressed_bytes - left


def _open(codec: Codec, payload: bytes, leaves: list[bytes], depth: int, left: int, max_depth: int) -> int:
    """Decompress one wrapper's set onto `leaves`; returns what is left of the byte budget."""
    if depth > max_depth:
        raise CorruptMessageError(f"compressed messages are nested deeper than {max_depth}")
    data = decompress(codec, payload, limit=left)
    left -= len(data)
    position, end, append = 0, len(data), leaves.append
    while position < end:
        position = walk(data, position, append, LAYOUTS[1])
        item = read_outer(data, position, position, _ANY_SIZE)
        if isinstance(item, Tail):
            if item.problem is not None:
                raise CorruptMessageError(f"inside a compressed message, at byte {position}, stands {item.problem}")
            if position == 0 and item.needed is not None:
                raise CorruptMessageError("a compressed message holds nothing but a part of a message")
            break
        if not item.valid or item.codec is None:
            raise CorruptMessageError(f"inside a compressed message, that at byte {position} has {item.problem}")
        if item.codec is Codec.NONE:
            append(item.payload)
        else:
            left = _open(item.codec, item.payload, leaves, depth + 1, left, max_depth)
        position = item.next_offset
    return left

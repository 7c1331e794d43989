"""The leaves of a compressed message, at any depth.

Strategy: recursion bounded by depth and by one allowance for the whole outer message, of decompressed bytes and of
compressed pieces. An inner set obeys the rules of the real consumer (golden notes, 1 and 2): a cut-off message at its
end is dropped silently, a set that only holds a cut-off message is corrupt, an empty set has no leaves, and one bad
inner message spoils the whole wrapper.

A few megabytes of well compressed small messages are hundreds of megabytes as a list. With less memory they are read in
pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from consumerd.wire.compression import (
    Codec,
    DecompressionAllowance,
    at_once,
    decompress,
    decompress_steps,
    most_pieces,
)
from consumerd.wire.errors import CorruptMessageError
from consumerd.wire.v07.constants import DEFAULT_LIMITS, DecodeLimits
from consumerd.wire.v07.outer import MessageSetTail, OuterMessage, read_outer
from consumerd.wire.v07.walk import ANY_LENGTH, LAYOUTS, walk


def leaf_payloads(message: OuterMessage, *, limits: DecodeLimits = DEFAULT_LIMITS) -> list[bytes]:
    """The flattened leaves of a message: of a plain one itself, of a wrapper those of its set.

    Raises CorruptMessageError (DecompressionError among it) when it, or anything inside it, is not valid.
    """
    if not message.valid or message.codec is None:
        raise CorruptMessageError(f"the message at offset {message.offset} has {message.problem}")
    if message.codec is Codec.NONE:
        return [message.payload]
    return unwrap(message.codec, message.payload, limits=limits)[0]


def unwrap(codec: Codec, payload: bytes, *, limits: DecodeLimits = DEFAULT_LIMITS) -> tuple[list[bytes], int]:
    """The leaves in a wrapper's payload and the number of bytes that all its decompressed sets had together.

    Raises CorruptMessageError (DecompressionError among it).
    """
    data = decompress(codec, payload, limit=limits.max_decompressed_bytes)
    allowance = allowance_of(payload, limits)
    allowance.take(len(data))
    leaves = list(chain.from_iterable(_pieces(data, 1, allowance, limits.max_depth, len(data))))
    return leaves, allowance.total - allowance.bytes


def inner_message(data: bytes | memoryview, position: int) -> OuterMessage | None:
    """The whole and intact message at `position` of an inner set; None for a cut-off end, which does not count.

    Raises CorruptMessageError.
    """
    # Inner messages have no size limit of their own (golden notes, 1); what is in memory bounds them.
    item = read_outer(data, position, position, ANY_LENGTH)
    if isinstance(item, MessageSetTail):
        if item.problem is not None:
            raise CorruptMessageError(f"inside a compressed message, at byte {position}, stands {item.problem}")
        if position == 0 and item.needed is not None:
            raise CorruptMessageError("a compressed message holds nothing but a part of a message")
        return None
    if not item.valid or item.codec is None:
        raise CorruptMessageError(f"inside a compressed message, that at byte {position} has {item.problem}")
    return item


def unwrap_pieces(
    codec: Codec, payload: bytes, *, limits: DecodeLimits = DEFAULT_LIMITS, piece_bytes: int
) -> tuple[Iterator[list[bytes]], int]:
    """As `unwrap`, but the leaves come as lists of about `piece_bytes` bytes of the set each; at least one list.

    All of them have been checked before the first is yielded: a large set is decompressed twice.
    """
    allowance = allowance_of(payload, limits)
    last: list[bytes] = []
    count = 0
    for piece in _open_pieces(codec, payload, allowance, limits, piece_bytes):
        last = piece
        count += 1
    expanded = allowance.total - allowance.bytes
    if count <= 1:
        return iter((last,)), expanded
    return _open_pieces(codec, payload, allowance_of(payload, limits), limits, piece_bytes), expanded


def allowance_of(payload: bytes, limits: DecodeLimits) -> DecompressionAllowance:
    """Return the allowance of the outer message with this payload."""
    return DecompressionAllowance(limits.max_decompressed_bytes, limits.max_pieces + most_pieces(len(payload)))


def _open_pieces(
    codec: Codec, payload: bytes, allowance: DecompressionAllowance, limits: DecodeLimits, piece_bytes: int
) -> Iterator[list[bytes]]:
    data = _opened(codec, payload, allowance)
    return _pieces(data, 1, allowance, limits.max_depth, piece_bytes)


def _opened(codec: Codec, payload: bytes, allowance: DecompressionAllowance) -> bytes:
    """The set of a wrapper."""
    return bytes(at_once(decompress_steps(codec, payload, allowance)))


def _pieces(
    data: bytes, depth: int, allowance: DecompressionAllowance, max_depth: int, piece_bytes: int
) -> Iterator[list[bytes]]:
    """The leaves of a wrapper's set at `depth`, in lists."""
    position, end, view = 0, len(data), memoryview(data)
    leaves: list[bytes] = []
    handed_out = 0
    while position < end:
        position += walk(view[position : position + piece_bytes], 0, leaves.append, LAYOUTS[1])
        item = inner_message(data, position)
        if item is None:
            break
        if item.codec is Codec.NONE:
            leaves.append(item.payload)
        else:
            assert item.codec is not None
            if depth >= max_depth:
                raise CorruptMessageError(f"compressed messages are nested deeper than {max_depth}")
            if leaves:
                yield leaves
                leaves = []
            yield from _pieces(
                _opened(item.codec, item.payload, allowance), depth + 1, allowance, max_depth, piece_bytes
            )
        position = item.next_offset
        if leaves and position - handed_out >= piece_bytes:
            yield leaves
            leaves, handed_out = [], position
    if leaves:
        yield leaves

"""What is inside a compressed message: its leaves, however deep.

Strategy: recursion bounded by depth and by one budget of decompressed bytes for the whole outer message. An inner set
obeys the rules of the real consumer (golden notes, 1 and 2): a cut-off message at its end is dropped silently, a set
that only holds a cut-off message is corrupt, an empty set has no leaves, and one bad inner message spoils the whole
wrapper.

A few megabytes of well compressed small messages are hundreds of megabytes as a list. Who has to live with less takes
them in pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.compression import Codec, decompress
from consumerd.wire.errors import CorruptMessageError, TooLargeError
from consumerd.wire.v07.constants import DEFAULT_LIMITS, Limits
from consumerd.wire.v07.outer import Tail, read_outer
from consumerd.wire.v07.walk import LAYOUTS, walk

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

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
    try:
        left = _open(codec, payload, leaves, 1, limits.max_decompressed_bytes, limits.max_depth)
    except TooLargeError as error:  # what was left of the limit says nothing to anybody
        raise TooLargeError(error.what, limits.max_decompressed_bytes) from None
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
        item = _inner(data, position)
        if item is None:
            break
        if item.codec is Codec.NONE:
            append(item.payload)
        else:
            assert item.codec is not None
            left = _open(item.codec, item.payload, leaves, depth + 1, left, max_depth)
        position = item.next_offset
    return left


def _inner(data: bytes, position: int) -> OuterMessage | None:
    """The whole and intact message at `position` of an inner set; None for a cut-off end, which does not count."""
    item = read_outer(data, position, position, _ANY_SIZE)
    if isinstance(item, Tail):
        if item.problem is not None:
            raise CorruptMessageError(f"inside a compressed message, at byte {position}, stands {item.problem}")
        if position == 0 and item.needed is not None:
            raise CorruptMessageError("a compressed message holds nothing but a part of a message")
        return None
    if not item.valid or item.codec is None:
        raise CorruptMessageError(f"inside a compressed message, that at byte {position} has {item.problem}")
    return item


def unwrap_pieces(
    codec: Codec, payload: bytes, *, limits: Limits = DEFAULT_LIMITS, piece_bytes: int
) -> tuple[Iterator[list[bytes]], int]:
    """As `unwrap`, but the leaves come as lists of about `piece_bytes` bytes of the set each; at least one list.

    All of them have been checked before the first is handed out: what is large is decompressed twice.
    """
    budget = limits.max_decompressed_bytes
    checked = _Checked(_open_pieces(codec, payload, 1, budget, limits.max_depth, piece_bytes))
    first: list[bytes] = []
    count = 0
    try:
        for piece in checked:
            count += 1
            first = piece if count == 1 else []
    except TooLargeError as error:
        raise TooLargeError(error.what, budget) from None
    expanded = budget - checked.left
    if count <= 1:
        return iter((first,)), expanded
    return _open_pieces(codec, payload, 1, budget, limits.max_depth, piece_bytes), expanded


class _Checked:
    """The pieces of an opened wrapper; `left` is of its budget once all of them were seen."""

    def __init__(self, pieces: Generator[list[bytes], None, int]) -> None:
        self._pieces = pieces
        self.left = 0

    def __iter__(self) -> Generator[list[bytes], None, None]:
        self.left = yield from self._pieces


def _open_pieces(
    codec: Codec, payload: bytes, depth: int, left: int, max_depth: int, piece_bytes: int
) -> Generator[list[bytes], None, int]:
    """`_open`, but the leaves are handed out."""
    if depth > max_depth:
        raise CorruptMessageError(f"compressed messages are nested deeper than {max_depth}")
    data = decompress(codec, payload, limit=left)
    left -= len(data)
    position, end, view = 0, len(data), memoryview(data)
    leaves: list[bytes] = []
    handed_out = 0
    while position < end:
        position += walk(view[position : position + piece_bytes], 0, leaves.append, LAYOUTS[1])
        item = _inner(data, position)
        if item is None:
            break
        if item.codec is Codec.NONE:
            leaves.append(item.payload)
        else:
            assert item.codec is not None
            if leaves:
                yield leaves
                leaves = []
            left = yield from _open_pieces(item.codec, item.payload, depth + 1, left, max_depth, piece_bytes)
        position = item.next_offset
        if leaves and position - handed_out >= piece_bytes:
            yield leaves
            leaves, handed_out = [], position
    if leaves:
        yield leaves
    return left

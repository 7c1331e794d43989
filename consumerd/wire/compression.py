"""Payload compression as 0.7 producers write it: gzip, and snappy in xerial or no framing.

Strategy: sizes that the sender claims are checked against the caller's limit before anything is allocated for them;
inflating stops one byte past the limit. Large data, or data that a hostile sender nested, can be inflated in steps and
within an allowance for all of one message. gzip goes through ISA-L and our own 10-byte header; of snappy we do the
framing and python-snappy the raw blocks. Sources: spec 000 (Message, 0.7); golden notes of 0.7.2, sections 1 and 2.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from enum import IntEnum
from functools import cache
from typing import Any, TypeVar

from isal import isal_zlib

from consumerd.wire.crc import crc32
from consumerd.wire.errors import DecompressionError, FrameError, TooLargeError, beyond_limit
from consumerd.wire.varint import read_uvarint, uvarint


class Codec(IntEnum):
    """The low two bits of a message's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2


#: The header of the JVM's GZIPOutputStream: deflate, no flags, no time, no extra flags, unknown system (JDK 16 and
#: later).
GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
#: One of ISA-L's levels 0 to 3: on text as small as zlib's default, at several times its speed.
GZIP_LEVEL = 2
#: A gzip file may be several members in a row. Producers write one; each costs the receiver a setup, so their
#: number is limited.
MAX_GZIP_MEMBERS = 1024
_MEMBER_START = b"\x1f\x8b\x08"
#: Number of blocks or frames whose sizes are not checked; of more, each must have this many bytes on average. Smaller
#: ones only serve to keep a receiver busy, as each costs a setup.
_FREE_PIECES, _PIECE_BYTES = 1024, 32

XERIAL_MAGIC = b"\x82SNAPPY\x00"
#: Magic, version 1, compatible with version 1.
XERIAL_HEADER = XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
#: Uncompressed bytes per block of the xerial framing, as SnappyOutputStream cuts them.
XERIAL_BLOCK = 32 * 1024
#: No element of the snappy format makes more than 64 bytes out of 3: a larger claim is a lie.
SNAPPY_MAX_RATIO = 22
#: Tags and lengths of a last literal, of one or two bytes, whose length is within the last four bytes of its block.
_LATE_LENGTHS = (b"\xf0\x00", b"\xf0\x01", b"\xf4\x00\x00")

#: Bytes that come out of one call when inflating in steps, and that go in, at most and at first.
_PIECE_OUT, _PIECE_IN, _FIRST_IN = 1 << 20, 1 << 16, 1 << 10
#: Work of one step, a millisecond or two, in bytes of a message set that is read.
STEP = 1 << 16
#: Work of opening a gzip member or snappy block; unpacked bytes count an eighth.
_OPENING = 1 << 10

#: Its stub calls the class an instance.
_IsalError: type[Exception] = isal_zlib.IsalError  # type: ignore[assignment]

_INT32 = struct.Struct(">i")
_GZIP_TRAILER = struct.Struct("<II")


_Result = TypeVar("_Result")


def at_once(steps: Generator[None, None, _Result]) -> _Result:
    """The result of a computation in steps, without a break between them."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: _Result = end.value
        return result


def compress(codec: Codec, data: bytes) -> bytes:
    """Compress the bytes of a message set for the payload of a wrapper. `Codec.NONE` returns them as they are."""
    if codec is Codec.GZIP:
        return _gzip(data)
    if codec is Codec.SNAPPY:
        return _xerial(data)
    return data


def decompress(codec: Codec, data: bytes, *, limit: int) -> bytes:
    """Undo `compress`, or what a JVM producer wrote; at most `limit` bytes come out.

    Raises DecompressionError for damaged data and for data that would grow past the limit.
    """
    if codec is Codec.GZIP:
        return _gunzip(data, limit)
    if codec is Codec.SNAPPY:
        return _unxerial(data, limit)
    if len(data) > limit:
        raise _too_large("payload", limit)
    return data


class DecompressionAllowance:
    """The remaining allowance of one message, nested ones included, and the work of the present step.

    `bytes`: of the decompressed data; `pieces`: gzip members and snappy blocks to be opened for them; `what`: what is
    decompressed, for the error.
    """

    __slots__ = ("bytes", "done", "pieces", "total", "what")

    def __init__(self, limit: int, pieces: int, what: str = "compressed message") -> None:
        self.total = self.bytes = limit
        self.pieces = pieces
        self.done = 0
        self.what = what

    def take(self, size: int) -> None:
        """Spend bytes. Raises TooLargeError."""
        self.bytes -= size
        self.done += size >> 3
        if self.bytes < 0:
            raise _too_large(self.what, self.total)

    def open(self) -> None:
        """Spend a piece. Raises TooLargeError."""
        self.pieces -= 1
        self.done += _OPENING
        if self.pieces < 0:
            raise TooLargeError("a compressed message consists of too many compressed pieces")

    def due(self, work: int = 0) -> bool:
        """Count `work`; whether the step has done enough by now, in which case the next one begins."""
        self.done += work
        if self.done < STEP:
            return False
        self.done = 0
        return True


def decompress_steps(
    codec: Codec, data: bytes, allowance: DecompressionAllowance
) -> Generator[None, None, bytes | bytearray]:
    """As `decompress`, in steps of a millisecond or two, and within an allowance."""
    out = bytearray()
    if codec is Codec.GZIP:
        position, members = 0, 0
        while not members or data.startswith(_MEMBER_START, position):
            members += 1
            if members > MAX_GZIP_MEMBERS:
                raise DecompressionError(f"the gzip payload has more than {MAX_GZIP_MEMBERS} members")
            position = yield from _member_steps(data, position, out, allowance)
        return out
    if codec is Codec.SNAPPY:
        for block in _blocks(data):
            allowance.open()
            piece = _unsnap(block, allowance.bytes, allowance.total)
            allowance.take(len(piece))
            out += piece
            if allowance.due():
                yield
        return out
    allowance.take(len(data))
    return data


def _member_steps(
    data: bytes, position: int, out: bytearray, allowance: DecompressionAllowance
) -> Generator[None, None, int]:
    """Inflate the member at `position` onto `out`; returns where it ends."""
    allowance.open()
    inflater = isal_zlib.decompressobj(16 + isal_zlib.MAX_WBITS)
    fed, full, window = b"", False, _FIRST_IN
    while not inflater.eof:
        if not fed and not full:
            fed = data[position : position + window]
            position += len(fed)
            window = min(2 * window, _PIECE_IN)
            if not fed:
                raise DecompressionError("the gzip payload is truncated")
        try:
            piece = inflater.decompress(fed, _PIECE_OUT)
        except _IsalError as error:
            raise DecompressionError(f"the gzip payload is damaged: {error}") from error
        fed, full = inflater.unconsumed_tail, len(piece) == _PIECE_OUT
        allowance.take(len(piece))
        out += piece
        if allowance.due():
            yield
    return position - len(inflater.unused_data)


def most_pieces(size: int) -> int:
    """Return the most blocks or frames that `size` bytes of compressed data may have."""
    return _FREE_PIECES + size // _PIECE_BYTES


def _too_large(what: str, limit: int) -> TooLargeError:
    return TooLargeError(beyond_limit(what, limit))


def _gzip(data: bytes) -> bytes:
    deflater = isal_zlib.compressobj(GZIP_LEVEL, isal_zlib.DEFLATED, -isal_zlib.MAX_WBITS)
    trailer = _GZIP_TRAILER.pack(crc32(data), len(data) & 0xFFFFFFFF)
    return b"".join((GZIP_HEADER, deflater.compress(data), deflater.flush(), trailer))


def _gunzip(data: bytes, limit: int) -> bytes:
    """Inflate all members. Bytes after the last one that do not start another are ignored, as the JVM does."""
    inflater = isal_zlib.decompressobj(16 + isal_zlib.MAX_WBITS)
    try:
        piece: bytes = inflater.decompress(data, limit + 1)
    except _IsalError as error:
        raise DecompressionError(f"the gzip payload is damaged: {error}") from error
    if len(piece) > limit:
        raise _too_large("gzip payload", limit)
    if not inflater.eof:
        raise DecompressionError("the gzip payload is truncated")
    if not inflater.unused_data.startswith(_MEMBER_START):
        return piece
    allowance = DecompressionAllowance(limit, MAX_GZIP_MEMBERS, "gzip payload")
    return bytes(at_once(decompress_steps(Codec.GZIP, data, allowance)))


@cache
def _snappy() -> Any:
    """python-snappy, whose 2 MiB are left out of a process that meets no snappy data, or has the native codec."""
    import snappy  # noqa: PLC0415

    return snappy


def _xerial(data: bytes) -> bytes:
    pieces, snappy = [XERIAL_HEADER], _snappy()
    for start in range(0, len(data), XERIAL_BLOCK):
        block: bytes = snappy.compress(data[start : start + XERIAL_BLOCK])
        pieces += (_INT32.pack(len(block)), block)
    return b"".join(pieces)


def _unxerial(data: bytes, limit: int) -> bytes:
    """All blocks of xerial framing, or the one bare block where the framing's header is missing."""
    return bytes(at_once(decompress_steps(Codec.SNAPPY, data, DecompressionAllowance(limit, most_pieces(len(data))))))


def _blocks(data: bytes) -> Generator[bytes, None, None]:
    """The raw snappy blocks of a payload.

    Another header where a block's length would stand begins a concatenated stream; up to 3 bytes after the last block
    are ignored (both as snappy-java reads).
    """
    if not (data.startswith(XERIAL_MAGIC) and len(data) >= len(XERIAL_HEADER)):
        yield data
        return
    position, end = len(XERIAL_HEADER), len(data)
    left = most = most_pieces(end)
    while position + 4 <= end:
        (size,) = _INT32.unpack_from(data, position)
        if size < 0 and data.startswith(XERIAL_MAGIC, position) and position + len(XERIAL_HEADER) <= end:
            position += len(XERIAL_HEADER)
            continue
        position += 4
        if not 0 <= size <= end - position:
            raise DecompressionError(f"a snappy block claims {size} bytes where {end - position} are left")
        if not left:
            raise DecompressionError(f"the snappy payload has more than {most} blocks in {end} bytes")
        left -= 1
        yield data[position : position + size]
        position += size


def _unsnap(block: bytes, left: int, limit: int) -> bytes:
    """One raw snappy block of at most `left` bytes once decompressed."""
    try:
        claimed, start = read_uvarint(block, 0)
    except (FrameError, IndexError):
        raise DecompressionError("a snappy block has no valid length") from None
    if claimed > left:
        raise _too_large("snappy payload", limit)
    if claimed > SNAPPY_MAX_RATIO * len(block):
        raise DecompressionError(f"a snappy block of {len(block)} bytes claims to hold {claimed}")
    try:
        piece: bytes = _snappy().uncompress(block)
    except _snappy().UncompressError as error:
        if (late := _unsnap_late_length(block[start:], claimed)) is not None:
            return late
        raise DecompressionError("the snappy payload is damaged") from error
    return piece


def _unsnap_late_length(body: bytes, claimed: int) -> bytes | None:
    """Decompress a block whose last literal has its length within the last four bytes; None where it is damaged.

    `body` is what follows the length of the block. The format and the decoders of Google and of snappy-java allow it,
    the one below python-snappy (snap 1.1.1) does not. So that literal is written in the short form, twice: as it is and
    with a zero byte more. Where it is really an element, both decompress. Elsewhere the bytes of the second are those
    of the first and one more, which is half an element, so one of them is damaged.
    """
    for length in _LATE_LENGTHS:
        size = length[1] + 1
        start = len(body) - size - len(length)
        if start < 0 or not body.startswith(length, start):
            continue
        pieces: list[bytes] = []
        for literal in (body[-size:] + b"\0", body[-size:]):
            tag = bytes([(len(literal) - 1) << 2])
            raw = uvarint(claimed - size + len(literal)) + body[:start] + tag + literal
            try:
                pieces.append(_snappy().uncompress(raw))
            except _snappy().UncompressError:
                return None
        return pieces[-1]
    return None


def decompress_frame(name: str, codec: Any, frame: bytes, most: int, limit: int) -> bytes:
    """The content of a frame of cramjam's module `codec`, of at most `limit` bytes; `most`: what it can hold at most.

    Where more than the limit is possible, the output goes into a buffer of the limit's size, whose untouched pages cost
    nothing. Raises DecompressionError, whose sentence has the `name` of the codec.
    """
    import cramjam  # noqa: PLC0415 - only callers that have it come here

    try:
        if most <= limit:
            return bytes(codec.decompress(frame))
        room = bytearray(limit + 1)
        size = codec.decompress_into(frame, room)
    except cramjam.DecompressionError as error:
        what = "damaged" if most <= limit else f"damaged or decompresses to more than the limit of {limit} bytes"
        raise DecompressionError(f"the {name} payload is {what}: {error}") from error
    if size > limit:
        raise DecompressionError(beyond_limit(f"{name} payload", limit))
    return bytes(memoryview(room)[:size])

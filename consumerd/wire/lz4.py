"""LZ4 frames as Kafka's clients write and read them, the broken ones of 0.8 and 0.9 included.

Strategy: the frame is walked here (header, block sizes, end mark), which tells where it ends and what it can hold at
most before anything is allocated; the blocks are cramjam's. Clients of 0.8 and 0.9 computed the header's checksum over
the frame's magic, too (KAFKA-3160), and refuse frames that are right: messages of magic 0 are written their way, and
both ways are read. Written frames have independent blocks of 64 KiB and neither checksums nor a content size, the only
form that those clients take.
"""

from __future__ import annotations

import struct

import cramjam

from consumerd.wire.compression import decompress_frame, most_pieces
from consumerd.wire.errors import DecompressionError, beyond_limit

MAGIC = b"\x04\x22\x4d\x18"
#: Version 1, independent blocks; blocks of at most 64 KiB.
_DESCRIPTOR = b"\x60\x40"
_BLOCK = 64 * 1024
_END_MARK = b"\x00\x00\x00\x00"
#: No block makes more than 255 bytes out of one.
_MAX_RATIO = 255
#: A block's size field: the high bit says that it is kept as it is.
_RAW = 0x80000000

_VERSION, _BLOCK_CHECKSUMS, _CONTENT_SIZE, _CONTENT_CHECKSUM, _RESERVED, _DICTIONARY = (
    0xC0,
    0x10,
    0x08,
    0x04,
    0x02,
    0x01,
)

_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")
_MASK = 0xFFFFFFFF
_PRIMES = (2654435761, 2246822519, 3266489917, 668265263, 374761393)


def header_checksum(header: bytes) -> int:
    """The byte after a frame's header: bits 8 to 15 of the XXH32 of `header`, of at most 15 bytes."""
    _, prime2, prime3, prime4, prime5 = _PRIMES
    digest = prime5 + len(header)
    whole = len(header) & ~3
    for (word,) in _UINT32.iter_unpack(header[:whole]):
        digest = (digest + word * prime3) & _MASK
        digest = (digest << 17 | digest >> 15) * prime4 & _MASK
    for byte in header[whole:]:
        digest = (digest + byte * prime5) & _MASK
        digest = (digest << 11 | digest >> 21) * _PRIMES[0] & _MASK
    digest = (digest ^ digest >> 15) * prime2 & _MASK
    digest = (digest ^ digest >> 13) * prime3 & _MASK
    return (digest ^ digest >> 16) >> 8 & 0xFF


def lz4_compress(data: bytes, *, broken_checksum: bool = False) -> bytes:
    """One frame; with `broken_checksum` as clients of 0.8 and 0.9 expect it in messages of magic 0."""
    checksum = header_checksum(MAGIC + _DESCRIPTOR if broken_checksum else _DESCRIPTOR)
    pieces = [MAGIC, _DESCRIPTOR, bytes((checksum,))]
    for start in range(0, len(data), _BLOCK):
        block = data[start : start + _BLOCK]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            pieces += (_UINT32.pack(len(packed)), packed)
        else:
            pieces += (_UINT32.pack(len(block) | _RAW), block)
    pieces.append(_END_MARK)
    return b"".join(pieces)


def lz4_decompress(data: bytes, *, limit: int) -> bytes:
    """The content of the frame at the start of `data`; bytes after it are ignored, as the JVM does.

    Either checksum of the header is accepted. Raises DecompressionError for damaged data and for content of more than
    `limit` bytes.
    """
    if not data.startswith(MAGIC) or len(data) < 7:
        raise DecompressionError("the lz4 payload does not begin with a frame")
    flags = data[4]
    header = 6 + (8 if flags & _CONTENT_SIZE else 0)
    if flags & _VERSION != 0x40 or flags & _RESERVED or flags & _DICTIONARY or data[5] & 0x8F or len(data) <= header:
        raise DecompressionError("the lz4 payload has a frame header that Kafka's clients do not write")
    if data[5] < 0x40:
        raise DecompressionError(f"the lz4 payload claims blocks of size class {data[5] >> 4}, which does not exist")
    checksum = header_checksum(data[4:header])
    if data[header] not in {checksum, header_checksum(data[:header])}:
        raise DecompressionError("the lz4 payload's frame header has a wrong checksum")
    end, most = _extent(data, header + 1, flags, 1 << 8 + 2 * (data[5] >> 4))
    if flags & _CONTENT_SIZE:
        (claimed,) = _UINT64.unpack_from(data, 6)
        if claimed > most:
            raise DecompressionError(f"an lz4 frame that can hold {most} bytes claims to hold {claimed}")
        most = claimed
        if claimed > limit:
            raise DecompressionError(beyond_limit("lz4 payload", limit))
    frame = data if end == len(data) and data[header] == checksum else _mended(data, header, checksum, end)
    return decompress_frame("lz4", cramjam.lz4, frame, most, limit)


def _mended(data: bytes, header: int, checksum: int, end: int) -> bytes:
    return b"".join((data[:header], bytes((checksum,)), data[header + 1 : end]))


def _extent(data: bytes, position: int, flags: int, block_size: int) -> tuple[int, int]:
    """Return the end of the frame whose blocks begin at `position`, and the most bytes that it can hold."""
    most, length = 0, len(data)
    pieces = most_pieces(length)
    after = 4 if flags & _BLOCK_CHECKSUMS else 0
    while position + 4 <= length:
        (size,) = _UINT32.unpack_from(data, position)
        position += 4
        if size == 0:
            position += 4 if flags & _CONTENT_CHECKSUM else 0
            if position > length:
                break
            return position, most
        pieces -= 1
        if pieces < 0:
            raise DecompressionError(f"the lz4 payload has more than {most_pieces(length)} blocks in {length} bytes")
        stored = size & ~_RAW
        if stored > block_size:
            raise DecompressionError(f"an lz4 block claims {stored} bytes where {block_size} are the most")
        most += stored if size & _RAW else min(block_size, stored * _MAX_RATIO)
        position += stored + after
    raise DecompressionError("the lz4 payload is truncated")

"""Zstandard frames, the codec of record batches since Kafka 2.1.

Strategy: frames and the headers of their blocks are walked here, which tells what they can hold at most (a block never
holds more than 128 KiB) before anything is allocated; decoding is cramjam's.
"""

from __future__ import annotations

import cramjam

from consumerd.wire.compression import decompress_frame, most_pieces
from consumerd.wire.errors import DecompressionError

MAGIC = b"\x28\xb5\x2f\xfd"
#: The default level of Kafka's producers.
LEVEL = 3
_MAX_BLOCK = 128 * 1024
#: Bytes of the content size field and of the dictionary id, by their flags in the frame header's descriptor.
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)
_DICTIONARY_BYTES = (0, 1, 2, 4)
_RAW, _RLE, _COMPRESSED = 0, 1, 2


def zstd_compress(data: bytes) -> bytes:
    """One frame."""
    return bytes(cramjam.zstd.compress(data, level=LEVEL))


def zstd_decompress(data: bytes, *, limit: int) -> bytes:
    """The content of all frames in `data`, of at most `limit` bytes. Raises DecompressionError."""
    return decompress_frame("zstd", cramjam.zstd, data, _most(data), limit)


def _most(data: bytes) -> int:
    """Return the most bytes that the frames of `data` can hold. Raises DecompressionError for invalid frames."""
    position, end, most = 0, len(data), 0
    pieces = most_pieces(end)
    if not data:
        raise DecompressionError("the zstd payload is empty")
    while position < end:
        if not data.startswith(MAGIC, position):
            raise DecompressionError("the zstd payload does not begin with a frame")
        position, checksum = _skip_header(data, position)
        last = False
        while not last:
            head = int.from_bytes(data[position : position + 3], "little")
            last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
            if position + 3 > end or kind > _COMPRESSED or (kind != _RLE and size > _MAX_BLOCK):
                raise DecompressionError("the zstd payload is damaged or truncated")
            pieces -= 1
            if pieces < 0:
                raise DecompressionError(f"the zstd payload has more than {most_pieces(end)} blocks in {end} bytes")
            position += 3 + (1 if kind == _RLE else size)
            most += _MAX_BLOCK if kind == _COMPRESSED else size
        position += 4 if checksum else 0
    if position != end:
        raise DecompressionError("the zstd payload is truncated")
    return most


def _skip_header(data: bytes, position: int) -> tuple[int, bool]:
    """Return the start of a frame's blocks, and whether a checksum follows them."""
    if position + 5 > len(data):
        raise DecompressionError("the zstd payload is truncated")
    descriptor = data[position + 4]
    single = bool(descriptor & 0x20)
    content_size = _CONTENT_SIZE_BYTES[descriptor >> 6] or (1 if single else 0)
    window = 0 if single else 1
    return position + 5 + window + _DICTIONARY_BYTES[descriptor & 3] + content_size, bool(descriptor & 4)

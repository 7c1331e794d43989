"""The codecs of the 0.8+ protocol: gzip, snappy and lz4 in every format, zstd in record batches.

Strategy: one table of functions. What is special is lz4: messages of magic 0 carry its frames with the wrong header
checksum of 0.8 and 0.9 (`consumerd.wire.lz4`), so the magic decides how a frame is written; both are read. The library
of lz4 and zstd takes 1.4 MiB, and is imported for the first data that they have compressed.
"""

from __future__ import annotations

from enum import IntEnum

from consumerd.wire import compression
from consumerd.wire.errors import CorruptMessageError, EncodeError


class RecordCodec(IntEnum):
    """The low three bits of the attributes of a message or record batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


#: The low three bits of the attributes.
CODEC_MASK = 7
#: The first magic that knows zstd: that of record batches.
ZSTD_MAGIC = 2

_OLD = {RecordCodec.GZIP: compression.Codec.GZIP, RecordCodec.SNAPPY: compression.Codec.SNAPPY}


def compress(codec: RecordCodec, data: bytes, magic: int) -> bytes:
    """Compress for a message or batch of `magic`. Raises EncodeError for zstd before magic 2."""
    if codec is RecordCodec.NONE:
        return data
    if codec is RecordCodec.LZ4:
        from consumerd.wire.lz4 import lz4_compress  # noqa: PLC0415

        return lz4_compress(data, broken_checksum=magic == 0)
    if codec is RecordCodec.ZSTD:
        if magic < ZSTD_MAGIC:
            raise EncodeError(f"magic {magic} has no zstd; use record batches (magic 2) or another codec")
        from consumerd.wire.zstd import zstd_compress  # noqa: PLC0415

        return zstd_compress(data)
    return compression.compress(_OLD[codec], data)


def decompress(attributes: int, data: bytes, magic: int, *, limit: int) -> bytes:
    """Undo the compression that `attributes` name, if any; at most `limit` bytes come out.

    Raises CorruptMessageError for a codec that `magic` does not have, and DecompressionError.
    """
    codec = attributes & CODEC_MASK
    if codec == RecordCodec.NONE:
        return data
    if codec == RecordCodec.LZ4:
        from consumerd.wire.lz4 import lz4_decompress  # noqa: PLC0415

        return lz4_decompress(data, limit=limit)
    if codec == RecordCodec.ZSTD and magic >= ZSTD_MAGIC:
        from consumerd.wire.zstd import zstd_decompress  # noqa: PLC0415

        return zstd_decompress(data, limit=limit)
    if codec > RecordCodec.SNAPPY:
        raise CorruptMessageError(f"compression codec {codec}, which magic {magic} does not have")
    return compression.decompress(compression.Codec(codec), data, limit=limit)

"""Bytes <-> values: pure functions on `bytes`, without any I/O. `consumerd.wire.v07` is Kafka 0.6/0.7's protocol.

In: bytes and values. Out: values and bytes, or a `WireError`.

Files in reading order: batch, column_buffers, compression, crc, varint, lz4, zstd, scram, digest_md5, tls, errors.

Easy to miss:

- The bounded reader of `zstandard` ends at a truncated frame without an error, as if the file were complete.
"""

from consumerd.wire.compression import Codec, compress, decompress
from consumerd.wire.crc import crc32
from consumerd.wire.errors import (
    CorruptMessageError,
    DecompressionError,
    EncodeError,
    FrameError,
    InvalidTopicError,
    OversizeMessageError,
    WireError,
)

__all__ = [
    "Codec",
    "CorruptMessageError",
    "DecompressionError",
    "EncodeError",
    "FrameError",
    "InvalidTopicError",
    "OversizeMessageError",
    "WireError",
    "compress",
    "crc32",
    "decompress",
]

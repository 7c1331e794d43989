"""Bytes <-> values: pure functions on `bytes`, without any I/O. `consumerd.wire.v07` is Kafka 0.6/0.7's protocol."""

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

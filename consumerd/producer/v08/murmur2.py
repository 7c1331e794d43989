"""Java's default partitioner of 0.8.2 and later, which hashes keys with murmur2.

Strategy: MurmurHash2 with the seed that the JVM's producers use, its sign bit cleared, modulo the number of partitions,
so that JVM producers and ours put a key's messages into one partition.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash as an unsigned 32-bit number."""
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        word = word * _M & _MASK
        word ^= word >> 24
        value = (value * _M & _MASK) ^ (word * _M & _MASK)
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * _M & _MASK
    value ^= value >> 13
    value = value * _M & _MASK
    return value ^ (value >> 15)


@lru_cache(maxsize=1 << 16)
def key_partition(key: bytes, count: int) -> int:
    """The partition of `key` among `count` (at least 1). Results are cached, since keys repeat."""
    return (murmur2(key) & 0x7FFFFFFF) % count

"""The partition of a key, as in Kafka 0.7.2's DefaultPartitioner.

Strategy: `abs(key.hashCode) % n` over the sorted list of candidates (golden notes, 7), with Java's own hash of strings,
so that JVM producers and ours put a key's messages into one partition. Java's `abs` has one quirk, documented below.
"""

from __future__ import annotations

from consumerd.group.assignors import java_hash

#: Text keys hash like Java's String. Bytes keys hash like `java.util.Arrays.hashCode(byte[])`: a Java array itself
#: hashes by its address, so there is nothing of 0.7.2 to be compatible with.
Key = str | bytes

#: `String.hashCode()`: int32, computed over UTF-16 code units.
java_string_hash = java_hash


def java_bytes_hash(data: bytes) -> int:
    """`Arrays.hashCode(byte[])`: int32, computed over signed bytes."""
    value = 1
    for byte in data:
        value = 31 * value + (byte - 256 if byte > 127 else byte) & 0xFFFFFFFF
    return value - (value >> 31 << 32)


def key_index(key: Key, count: int) -> int:
    """Index of the candidate for `key` among `count` (at least 1) candidates, sorted by (broker, partition).

    Where the hash is -2**31, Java's `abs` overflows and stays negative: 0.7.2 then refuses the message unless `count`
    divides 2**31. Here the absolute value is the mathematical one: the same candidate where 0.7.2 accepts one, and a
    valid one elsewhere.
    """
    value = java_string_hash(key) if isinstance(key, str) else java_bytes_hash(key)
    return abs(value) % count

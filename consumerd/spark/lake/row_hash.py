"""xxHash64 of the identity and the content of messages, as Spark's `xxhash64(topic, partition, offset, index, value)`.

Spark passes the hash of each column as the seed of the next one and leaves out nulls. The native codec hashes all rows
in one call, eight times as fast. Without it the numbers are hashed for all rows at once, by Arrow, and the bytes row by
row, by the package xxhash. Source of the algorithm: the xxHash specification.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

from consumerd.base import native
from consumerd.spark.lake.arrays import repeated

#: Spark's, of the first column.
_SEED: Final = 42


def _constant(value: int) -> Any:
    return pa.Array.from_buffers(pa.uint64(), 1, [None, pa.py_buffer(value.to_bytes(8, "little"))])[0]


_PRIMES: Final = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
)  # fmt: skip
_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = map(_constant, _PRIMES)
_FIVE_AND_8: Final = _constant(_PRIMES[4] + 8)
_FIVE_AND_4: Final = _constant(_PRIMES[4] + 4)
_LOW: Final = _constant((1 << 32) - 1)
_BITS: Final = {bits: (_constant(bits), _constant(64 - bits)) for bits in (23, 27, 31)}
_SHIFTS: Final = {bits: _constant(bits) for bits in (29, 32, 33)}


def content_hashes(rows: pa.RecordBatch, topic: str, name: str) -> pa.Array:
    """The hash (uint64) of each row of one partition: of `offset`, `index`, `value` and, where there is one, `key`."""
    seed = xxh64_intdigest(name.encode(), xxh64_intdigest(topic.encode(), _SEED))
    codec = native.codec()
    return (_by_codec(codec, rows, seed) if codec else None) or _by_arrow(rows, seed)


def _by_codec(codec: native.NativeCodec, rows: pa.RecordBatch, seed: int) -> pa.Array | None:
    """The same by the native codec; None for rows whose place is null, and where there are none."""
    offset, index, value, key = (rows.column(name) for name in ("offset", "index", "value", "key"))
    if offset.null_count or index.null_count or not rows.num_rows:
        return None
    keys = None if key.null_count == len(key) else _binary(key)
    found = codec.row_hashes(seed, _fixed(offset, 8), _fixed(index, 4), _binary(value), keys)
    return found and pa.Array.from_buffers(pa.uint64(), rows.num_rows, [None, pa.py_buffer(found)])


def _fixed(column: pa.Array, width: int) -> bytes:
    content: bytes = column.buffers()[1].slice(column.offset * width, len(column) * width).to_pybytes()
    return content


def _binary(column: pa.Array) -> native.NativeBinary:
    """The validity, with a byte per row, the offsets and the bytes between the first and the last of them."""
    valid = _fixed(column.is_valid().cast(pa.uint8()), 1) if column.null_count else b""
    ends, content = _content(column)
    return valid, ends.tobytes(), content


def _content(column: pa.Array) -> tuple[memoryview, bytes]:
    """The offsets of a column, binary with 32-bit ones, and the bytes from the first of them on."""
    _, offsets, data = column.buffers()
    ends = memoryview(offsets).cast("i")[column.offset : column.offset + len(column) + 1]
    return ends, b"" if data is None else data.slice(ends[0], ends[-1] - ends[0]).to_pybytes()


def _by_arrow(rows: pa.RecordBatch, seed: int) -> pa.Array:
    hashes = pc.add(pa.nulls(rows.num_rows, pa.uint64()).fill_null(_constant(0)), _constant(seed))
    hashes = _of_ints(rows.column("index"), _of_longs(rows.column("offset"), hashes))
    hashes = _of_bytes(rows.column("value"), hashes)
    key = rows.column("key")
    if key.null_count == len(key):
        return hashes
    keyed = _of_ints(repeated(1, pa.int32(), len(key)), hashes)  # else a key would count as a value that is null
    return pc.if_else(pc.is_valid(key), _of_bytes(key, keyed), hashes)


def _of_longs(column: pa.Array, seeds: pa.Array) -> pa.Array:
    lane = pc.multiply(_rotated(pc.multiply(_unsigned(column), _PRIME_2), 31), _PRIME_1)
    found = pc.bit_wise_xor(pc.add(seeds, _FIVE_AND_8), lane)
    return _kept(column, _mixed(pc.add(pc.multiply(_rotated(found, 27), _PRIME_1), _PRIME_4)), seeds)


def _of_ints(column: pa.Array, seeds: pa.Array) -> pa.Array:
    lane = pc.multiply(pc.bit_wise_and(_unsigned(column), _LOW), _PRIME_1)
    found = pc.bit_wise_xor(pc.add(seeds, _FIVE_AND_4), lane)
    return _kept(column, _mixed(pc.add(pc.multiply(_rotated(found, 23), _PRIME_2), _PRIME_3)), seeds)


def _of_bytes(column: pa.Array, seeds: pa.Array) -> pa.Array:
    places, content = _content(column)
    ends = places.tolist()
    base = ends[0]
    values = (content[start - base : end - base] for start, end in pairwise(ends))  # views would cost twice as much
    found = array("Q", map(xxh64_intdigest, values, _numbers(seeds)))
    return _kept(column, pa.Array.from_buffers(pa.uint64(), len(found), [None, pa.py_buffer(found)]), seeds)


def _kept(column: pa.Array, hashes: pa.Array, seeds: pa.Array) -> pa.Array:
    """The hashes; where the column is null the seeds."""
    return hashes if not column.null_count else pc.if_else(pc.is_valid(column), hashes, seeds)


def _numbers(column: pa.Array) -> Sequence[int]:
    """Of uint64 without nulls."""
    found: list[int] = memoryview(column.buffers()[1]).cast("Q")[column.offset : column.offset + len(column)].tolist()
    return found


def _unsigned(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64()).view(pa.uint64())


def _rotated(column: pa.Array, bits: int) -> pa.Array:
    left, right = _BITS[bits]
    return pc.bit_wise_or(pc.shift_left(column, left), pc.shift_right(column, right))


def _mixed(column: pa.Array) -> pa.Array:
    column = pc.multiply(pc.bit_wise_xor(column, pc.shift_right(column, _SHIFTS[33])), _PRIME_2)
    column = pc.multiply(pc.bit_wise_xor(column, pc.shift_right(column, _SHIFTS[29])), _PRIME_3)
    return pc.bit_wise_xor(column, pc.shift_right(column, _SHIFTS[32]))

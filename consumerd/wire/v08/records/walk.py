"""The hot path of record batches: rows of records of one *shape*, read with one C call each.

Strategy: a record's varints have no fixed places, but neighbours nearly always agree in how many bytes each number
takes, and that is a shape. A `struct` that depends on the length reads a value together with the numbers in front of
the next one. Offset deltas grow by one, so the bytes of the next one are known beforehand, and that length, value's
length and key's length agree shows that all stand where they should; whether timestamp deltas have their size is looked
at once for the whole row, when they are decoded. Anything else (another shape, a gap in the offsets, headers, a
null value, the end) ends the row, and the caller looks at it slowly.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from consumerd.wire.v08.records.shapes import Keyed, RecordShape, Time
from consumerd.wire.v08.records.varint import read_varlong


def walk_plain(
    data: bytes,
    position: int,
    expected: Iterator[int],
    null: int,
    shape: RecordShape,
    append: Callable[[bytes], None],
    note: Callable[[Time], None],
) -> int:
    """Append the values of the row of keyless records at `position`; returns where the first other record stands.

    `expected` ends where the row has to. `null`: how a key's length is read that is null. `note` gets each record's
    timestamp delta as it stands there.
    """
    entries = shape.entries
    length, time, offset, key = shape.head(data, position)
    position += shape.head_size
    try:
        for wanted in expected:
            if offset != wanted or key != null:
                break
            unpack, written, step, _ = entries[length]
            field, value, headers, length, next_time, offset, key = unpack(data, position)
            if field != written or headers:
                break
            append(value)
            note(time)
            time = next_time
            position += step
    except struct.error:
        pass
    return position - shape.head_size


def walk_keyed(
    data: bytes,
    position: int,
    expected: Iterator[int],
    keys: Mapping[int, Mapping[int, Keyed]],
    shape: RecordShape,
    append: Callable[[bytes], None],
    add_key: Callable[[bytes], None],
    note: Callable[[Time], None],
) -> int:
    """As `walk_plain`, for records with keys, which go to `add_key`; `keys`: from `RecordShape.keys`."""
    length, time, offset, key = shape.head(data, position)
    position += shape.head_size
    try:
        for wanted in expected:
            if offset != wanted:
                break
            unpack, written, step, size = keys[key][length]
            after = position + size
            field, value, headers, length, next_time, offset, key = unpack(data, after)
            if field != written or headers:
                break
            add_key(data[position:after])
            append(value)
            note(time)
            time = next_time
            position = after + step
    except struct.error:
        pass
    return position - shape.head_size


class _TwoBytes(dict[int, int]):
    """Timestamp deltas of two bytes, by how they are read. Raises ValueError for what has another size."""

    def __missing__(self, field: int) -> int:
        if not field & 0x8000 or field & 0x80:
            raise ValueError
        raw = field >> 8 & 0x7F | (field & 0x7F) << 7
        delta = self[field] = raw >> 1 ^ -(raw & 1)
        return delta


_ONE_BYTE = {raw: raw >> 1 ^ -(raw & 1) for raw in range(0x80)}
_TWO_BYTES = _TwoBytes()


def time_deltas(times: list[Any], size: int) -> list[int]:
    """Decode the deltas of a row, each of `size` bytes. Raises LookupError or ValueError if one has another size."""
    if size <= 2:
        table = _ONE_BYTE if size == 1 else _TWO_BYTES
        return list(map(table.__getitem__, times))
    deltas = []
    for time in times:
        delta, end = read_varlong(time, 0)
        if end != size:
            raise ValueError
        deltas.append(delta)
    return deltas

"""Rows of records of one shape that have headers, or null values, or now and then a key.

Strategy: as in `walk` the numbers in front of the key are read by one `struct`, and the next offset delta must be what
it has to be. Length and place of the value are not known from the record's length, so they are read as they stand; that
the fields end where the record does is the proof. What does not fit ends the row, and is read number by number.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from consumerd.wire.errors import CorruptMessageError
from consumerd.wire.v08.records.varint import INT32_BYTES, read_rest, read_varint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from consumerd.wire.v08.records.columns import Columns
    from consumerd.wire.v08.records.record_set import Headers
    from consumerd.wire.v08.records.walk import Shape, Time


def walk_mixed(
    data: bytes,
    position: int,
    expected: Iterator[int],
    sizes: Mapping[int, int | None],
    shape: Shape,
    columns: Columns,
    note: Callable[[Time], None],
) -> int:
    """Read the row of records at `position` onto `columns`; returns where the first other record stands.

    `sizes`: of keys, None for null, by how their lengths are read (`Shape.key_sizes`). The rest is as in `walk_plain`.
    """
    head, head_size, lengths, add = shape.head, shape.head_size, shape.totals, columns.add
    try:
        for wanted in expected:
            length, time, offset, key_field = head(data, position)
            if offset != wanted:
                break
            end = position + lengths[length]
            place = position + head_size
            size = sizes[key_field]
            key = payload = None
            if size is not None:
                key = data[place : place + size]
                place += size
            raw, place = data[place], place + 1
            if raw > 0x7F:
                raw, place = read_rest(data, place, raw, INT32_BYTES)
            if not raw & 1:
                after = place + (raw >> 1)
                payload, place = data[place:after], after
            headers: Headers = ()
            if data[place]:
                headers, place = read_headers(data, place, end)
            else:
                place += 1
            if place != end:
                break
            add(key, payload, headers)
            note(time)
            position = end
    except (struct.error, LookupError, CorruptMessageError):
        pass
    return position


def read_headers(data: bytes, position: int, end: int) -> tuple[Headers, int]:
    """The headers at `position`, of a record that ends at `end`. Raises CorruptMessageError, IndexError."""
    count, position = read_varint(data, position)
    # Each takes two bytes at least.
    if not 0 <= count <= (end - position) // 2:
        raise CorruptMessageError(f"{count} headers in {end - position} bytes")
    found = []
    for _ in range(count):
        raw, position = data[position], position + 1
        if raw > 0x7F:
            raw, position = read_rest(data, position, raw, INT32_BYTES)
        if raw & 1:
            raise CorruptMessageError("a header without a name")
        after = position + (raw >> 1)
        name = data[position:after]
        value = None
        raw, position = data[after], after + 1
        if raw > 0x7F:
            raw, position = read_rest(data, position, raw, INT32_BYTES)
        if not raw & 1:
            after = position + (raw >> 1)
            value, position = data[position:after], after
        # As the JVM does with bytes that are no UTF-8.
        found.append((name.decode("utf-8", "replace"), value))
    return tuple(found), position

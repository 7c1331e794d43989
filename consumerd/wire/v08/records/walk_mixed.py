"""Rows of records of one shape that have headers, or null values, or now and then a key, or gaps in their offsets.

Strategy: as in `walk` the numbers in front of the key are read by one `struct`, but nothing is known beforehand:
offsets only have to grow, and length and place of the value are read as they stand. That the fields end where the
record does is the proof. What does not fit ends the row, and is read number by number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from consumerd.wire.column_buffers import Headers
from consumerd.wire.errors import CorruptMessageError
from consumerd.wire.v08.records.columns import RecordColumns
from consumerd.wire.v08.records.shapes import KEY_SIZES, RecordShape, Time
from consumerd.wire.v08.records.varint import INT32_BYTES, read_rest


def walk_mixed(
    data: bytes,
    position: int,
    least: int,
    limit: int,
    shape: RecordShape,
    columns: RecordColumns,
    note: Callable[[Time], None],
) -> tuple[list[int], int]:
    """Read the row of at most `limit` records at `position` onto `columns`; the first may have offset delta `least`.

    Returns their offset deltas, and where the first other record stands. `note` is that of `walk_plain`.
    """
    head, head_size, lengths = shape.head, shape.head_size, shape.totals
    append, add_key = columns.payloads.append, columns.keys.append
    deltas_of, deltas = shape.deltas, list[int]()
    try:
        for _ in range(limit):
            length, time, offset, key_field = head(data, position)
            delta = deltas_of[key_field >> 8 << 16 | offset]
            if delta < least:
                break
            end = position + lengths[length]
            place = position + head_size
            size = KEY_SIZES[key_field & 0xFF]
            key = payload = None
            if size is not None:
                key = data[place : place + size]
                place += size
            raw, place = data[place], place + 1
            if raw > 0x7F:
                # Two bytes, as a rule.
                more, place = data[place], place + 1
                raw = raw & 0x7F | more << 7
                if more > 0x7F:
                    raw, place = read_rest(data, place - 1, raw, INT32_BYTES)
            if not raw & 1:
                after = place + (raw >> 1)
                payload, place = data[place:after], after
            if data[place]:
                headers, place = read_headers(data, place, end)
                if place != end:
                    break
                columns.add_headers(headers)
            elif place + 1 != end:
                break
            append(payload)
            add_key(key)
            note(time)
            deltas.append(delta)
            least = delta + 1
            position = end
    except (struct.error, LookupError, CorruptMessageError):
        pass
    return deltas, position


def read_headers(data: bytes, position: int, end: int) -> tuple[Headers, int]:
    """The headers at `position`, of a record that ends at `end`. Raises CorruptMessageError, IndexError."""
    raw, position = data[position], position + 1
    if raw > 0x7F:
        raw, position = read_rest(data, position, raw, INT32_BYTES)
    # Each takes two bytes at least.
    if raw & 1 or raw > end - position:
        raise CorruptMessageError(f"{raw >> 1 ^ -(raw & 1)} headers in {end - position} bytes")
    found = []
    for _ in range(raw >> 1):
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
        # As the JVM does with bytes that are not UTF-8.
        found.append((name.decode("utf-8", "replace"), value))
    return tuple(found), position

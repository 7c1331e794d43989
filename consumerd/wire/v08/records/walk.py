"""The hot path of record batches: rows of records of one *shape*, read with one C call each.

Strategy: a record's varints have no fixed places, but neighbours nearly always agree in how many bytes each number
takes, and that is a shape. Within a shape the 8 bytes after the length hold attributes, timestamp delta, offset delta
and key length at fixed places, so that one masked comparison with the number that the next offset must give checks all
of them, continuation bits included. A `struct` that depends on the length then reads the value together with the next
record's length and 8 bytes. Timestamps stay in those 8 bytes until somebody asks. Whatever differs (another shape, a
gap in the offsets, headers, a null value, the end) ends the row, and the caller looks at it slowly.
"""

from __future__ import annotations

import struct
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    _Unpack = Callable[[bytes, int], tuple[int, bytes, int, int, int]]
    _Entry = tuple[_Unpack, int, int]

#: Zeros that a row needs after its last record: it looks at what would be the next one's length and 8 bytes.
PADDING = bytes(10)
#: Bytes of the timestamp and offset deltas that fit into 8 bytes with attributes and key length.
MAX_DELTAS = 6
_MAX_OFFSET = 3
_NULL = 1
#: The sign and the continuation bit of a number of one byte.
_NOT_A_SIZE = 0x81


class _Values(dict[int, "_Entry"]):
    """Readers of a value and of what follows it, by the bytes that are left for the value, its length field included.

    An entry is `unpack`, the length field that belongs to that many bytes, and how far it is to the next record's
    value if that has the same shape. `unpack` gives length field, value, number of headers, and the next record's
    length and 8 bytes.
    """

    ROOM = 4096

    def __init__(self, head: str, head_size: int) -> None:
        super().__init__()
        self._head = head
        self._head_size = head_size

    def __missing__(self, left: int) -> _Entry:
        if left < 1:
            raise struct.error
        size = left - 1
        field, written = "B", size << 1
        if size >= 64:
            size = left - 2
            field, written = "H", (size << 1 & 0x7F | 0x80) << 8 | size >> 6
        entry = (struct.Struct(f">{field}{size}sB{self._head}").unpack_from, written, left + 1 + self._head_size)
        if len(self) >= self.ROOM:
            self.clear()
        self[left] = entry
        return entry


class _Lengths(dict[int, int]):
    """A record's length field -> the bytes that are left for value, its length and the key. Raises struct.error."""

    def __init__(self, field_size: int, overhead: int) -> None:
        super().__init__()
        self._field_size = field_size
        self._overhead = overhead

    def __missing__(self, field: int) -> int:
        if self._field_size == 1:
            if field > 0x7F:
                raise struct.error
            raw = field
        else:
            if not field & 0x8000 or field & 0x80:
                raise struct.error
            raw = field >> 8 & 0x7F | (field & 0x7F) << 7
        if raw & 1:
            raise struct.error
        left = self[field] = (raw >> 1) - self._overhead
        return left


class _Entries(dict[int, "_Entry"]):
    """`_Values` by the length field of a record without a key."""

    def __init__(self, lengths: _Lengths, values: _Values) -> None:
        super().__init__()
        self._lengths = lengths
        self._values = values

    def __missing__(self, field: int) -> _Entry:
        entry = self._values[self._lengths[field]]
        if len(self) >= _Values.ROOM:
            self.clear()
        self[field] = entry
        return entry


class Shape:
    """How many bytes length, timestamp delta and offset delta take, and whether there is a key (of up to 63 bytes)."""

    def __init__(self, length_size: int, time_size: int, offset_size: int, *, keyed: bool) -> None:
        self.length_size = length_size
        self.time_size = time_size
        self.keyed = keyed
        head = ("B" if length_size == 1 else "H") + "Q"
        self.head: Callable[[bytes, int], tuple[int, int]] = struct.Struct(">" + head).unpack_from
        #: From a record's start to its key or, without one, to its value's length.
        self.head_size = length_size + 2 + time_size + offset_size
        self.lengths = _Lengths(length_size, self.head_size - length_size + 1)
        self.values = _Values(head, self.head_size)
        self.entries = _Entries(self.lengths, self.values)
        self._offset_size = offset_size
        self._offset_shift = 48 - 8 * time_size
        self.key_shift = self._offset_shift - 8 * offset_size
        # Attributes, all bits; time, the continuation bits; offset, all bits; key length, what tells null from a size.
        check, proto = 0xFF << 56, 0
        for place in range(time_size):
            check |= 0x80 << 48 - 8 * place
            if place < time_size - 1:
                proto |= 0x80 << 48 - 8 * place
        check |= ((1 << 8 * offset_size) - 1) << self.key_shift + 8
        check |= (_NOT_A_SIZE if keyed else 0xFF) << self.key_shift
        self.check = check
        self._proto = proto if keyed else proto | _NULL << self.key_shift

    def expected(self, offset: int) -> Iterator[int]:
        """What `check` must leave of the 8 bytes of a record with offset delta `offset`, and of those after it."""
        return chain.from_iterable(self._expected(offset))

    def _expected(self, offset: int) -> Iterator[range]:
        # Within 64 offsets only the first byte changes.
        step = 2 << self._offset_shift
        end = 1 << 7 * self._offset_size - 1
        while offset < end:
            count = min(64 - offset % 64, end - offset)
            raw, written = offset << 1, 0
            for place in range(self._offset_size):
                more = 0x80 if place < self._offset_size - 1 else 0
                written |= (raw & 0x7F | more) << self._offset_shift - 8 * place
                raw >>= 7
            first = self._proto | written
            yield range(first, first + count * step, step)
            offset += count


_SHAPES: dict[tuple[int, int, int, bool], Shape] = {}


def shape_at(data: bytes, position: int) -> Shape | None:
    """The shape of the record at `position`, or None if none of them fits. Raises IndexError at the end of the data."""
    length_size = 1 if data[position] < 0x80 else 2
    start = position + length_size
    if data[start - 1] > 0x7F or data[start]:
        return None
    place = start = start + 1
    while data[place] > 0x7F:
        place += 1
        if place - start >= MAX_DELTAS:
            return None
    time_size, start = place + 1 - start, place + 1
    place = start
    while data[place] > 0x7F:
        place += 1
        if place - start >= _MAX_OFFSET:
            return None
    offset_size = place + 1 - start
    key = data[place + 1]
    keyed = key != _NULL
    if time_size + offset_size > MAX_DELTAS or (keyed and key & _NOT_A_SIZE):
        return None
    name = (length_size, time_size, offset_size, keyed)
    shape = _SHAPES.get(name)
    if shape is None:
        shape = _SHAPES[name] = Shape(*name[:3], keyed=keyed)
    return shape


def walk_plain(
    data: bytes,
    position: int,
    expected: Iterator[int],
    shape: Shape,
    append: Callable[[bytes], None],
    note: Callable[[int], None],
) -> int:
    """Append the values of the row of keyless records at `position`; returns where the first other record stands.

    `note` gets each record's 8 bytes as a number; `expected` ends where the row has to.
    """
    check, entries = shape.check, shape.entries
    length, word = shape.head(data, position)
    position += shape.head_size
    try:
        for wanted in expected:
            if word & check != wanted:
                break
            unpack, written, step = entries[length]
            field, value, headers, length, next_word = unpack(data, position)
            if field != written or headers:
                break
            append(value)
            note(word)
            word = next_word
            position += step
    except struct.error:
        pass
    return position - shape.head_size


def walk_keyed(
    data: bytes,
    position: int,
    expected: Iterator[int],
    shape: Shape,
    append: Callable[[bytes], None],
    add_key: Callable[[bytes], None],
    note: Callable[[int], None],
) -> int:
    """As `walk_plain`, for records with keys, which go to `add_key`."""
    check, lengths, values, shift = shape.check, shape.lengths, shape.values, shape.key_shift + 1
    length, word = shape.head(data, position)
    position += shape.head_size
    try:
        for wanted in expected:
            if word & check != wanted:
                break
            size = word >> shift & 0x3F
            after = position + size
            unpack, written, step = values[lengths[length] - size]
            field, value, headers, length, next_word = unpack(data, after)
            if field != written or headers:
                break
            add_key(data[position:after])
            append(value)
            note(word)
            word = next_word
            position = after + step
    except struct.error:
        pass
    return position - shape.head_size


def times_of(words: list[int], time_size: int) -> list[int]:
    """The timestamp deltas in the 8 bytes of records whose deltas take `time_size` bytes."""
    if time_size == 1:
        return [(word >> 49 & 0x3F) ^ -(word >> 48 & 1) for word in words]
    if time_size == 2:
        return [(word >> 49 & 0x3F | word >> 34 & 0x1FC0) ^ -(word >> 48 & 1) for word in words]
    found = []
    for word in words:
        raw = 0
        for place in range(time_size):
            raw |= (word >> 48 - 8 * place & 0x7F) << 7 * place
        found.append(raw >> 1 ^ -(raw & 1))
    return found

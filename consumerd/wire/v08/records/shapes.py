"""Shapes of records: the size in bytes of each number in front of a value, and readers of records of a shape.

Strategy: everything that depends on a record's length or key length alone is computed once and kept in small tables
(`walk` says why). A record without a table's shape raises struct.error when it is looked up.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TypeAlias

#: A timestamp delta as it is read: one or two bytes as a number, more as they are.
Time: TypeAlias = int | bytes
_Unpack = Callable[[bytes, int], tuple[int, bytes, int, int, Time, int, int]]
_Entry = tuple[_Unpack, int, int]
#: The same, and the size of the key before the value.
Keyed = tuple[_Unpack, int, int, int]


#: Bytes of the largest timestamp and offset deltas in rows.
_MAX_TIME, _MAX_OFFSET = 10, 3
#: The length of a null key.
_NULL = 1
#: The sign and the continuation bit of a number of one byte.
_NOT_A_SIZE = 0x81
#: The third byte of an offset delta holds its bits from this one on.
_THIRD_BYTE = 13
#: The sizes of keys, None for null, by their length fields of one byte.
KEY_SIZES: dict[int, int | None] = {_NULL: None, **{size << 1: size for size in range(64)}}
#: Entries that a table keeps, and shapes. Hostile data could fill all of them: together they stay below 100 MB.
_ROOM, _ROOM_OF_FAMILY, _MOST_SHAPES = 2048, 4096, 24
_NUMBERS = {1: "B", 2: "H"}


class _Values(dict[int, "_Entry"]):
    """Readers of a value and of what follows it, by the bytes that are left for the value, its length field included.

    An entry is `unpack`, the length field that belongs to that many bytes, and how far it is to the next record's
    value if that has the same shape. `unpack` gives length field, value, number of headers, and the next record's
    length, timestamp delta, offset delta and key length.
    """

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
        if len(self) >= _ROOM:
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
        raw = field
        if self._field_size == 1:
            if field > 0x7F:
                raise struct.error
        else:
            if not field & 0x8000 or field & 0x80:
                raise struct.error
            raw = field >> 8 & 0x7F | (field & 0x7F) << 7
        if raw & 1:
            raise struct.error
        if len(self) >= _ROOM:
            self.clear()
        left = self[field] = (raw >> 1) - self._overhead
        return left


class _Family:
    """Tables that share their room."""

    def __init__(self) -> None:
        self.members: list[_Entries] = []
        self._count = 0

    def grow(self) -> None:
        """Before one of them takes an entry: all forget theirs where there is no room left."""
        self._count += 1
        if self._count > _ROOM_OF_FAMILY:
            self._count = 1
            for member in self.members:
                member.clear()


class _Entries(dict[int, "Keyed"]):
    """By the length field of a record with a key of a certain size: `_Values`' entry, and that size."""

    def __init__(self, lengths: _Lengths, values: _Values, size: int, family: _Family) -> None:
        super().__init__()
        self._lengths = lengths
        self._values = values
        self._size = size
        self._family = family
        family.members.append(self)

    def __missing__(self, field: int) -> Keyed:
        entry = (*self._values[self._lengths[field] - self._size], self._size)
        self._family.grow()
        self[field] = entry
        return entry


class _Keys(dict[int, _Entries]):
    """`_Entries` by how a key's length is read. Raises struct.error unless it is a key of up to 63 bytes."""

    def __init__(self, third: int, sizes: list[_Entries]) -> None:
        super().__init__()
        self._third = third
        self._sizes = sizes

    def __missing__(self, field: int) -> _Entries:
        size = field - self._third
        if not 0 <= size < 0x80 or size & 1:
            raise struct.error
        entries = self[field] = self._sizes[size >> 1]
        return entries


class _Deltas(dict[int, int]):
    """Offset deltas by how they are read. Raises struct.error for one of another size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def __missing__(self, field: int) -> int:
        if self._size == 1:
            if field > 0x7F:
                raise struct.error
            raw = field
        else:
            if field & 0x808080 != (0x8080 if self._size == _MAX_OFFSET else 0x8000):
                raise struct.error
            raw = field >> 8 & 0x7F | (field & 0x7F) << 7 | field >> 16 << 14
        if len(self) >= _ROOM:
            self.clear()
        delta = self[field] = raw >> 1 ^ -(raw & 1)
        return delta


class RecordShape:
    """The sizes of length, timestamp delta and offset delta, and whether there is a key (of up to 63 bytes)."""

    def __init__(self, length_size: int, time_size: int, offset_size: int, *, keyed: bool) -> None:
        self.time_size = time_size
        self.keyed = keyed
        # Of three bytes of an offset delta, the third is read with the key's length.
        numbers = _NUMBERS[length_size], _NUMBERS.get(time_size, f"{time_size}s"), _NUMBERS[min(offset_size, 2)]
        head = "{}x{}{}".format(*numbers) + _NUMBERS[max(1, offset_size - 1)]
        self.head: Callable[[bytes, int], tuple[int, Time, int, int]] = struct.Struct(">" + head).unpack_from
        #: From a record's start to its key or, without one, to its value's length.
        self.head_size = length_size + 2 + time_size + offset_size
        self.lengths = _Lengths(length_size, self.head_size - length_size + 1)
        #: From the start of a record to the next one's, by its length field.
        self.totals = _Lengths(length_size, -length_size)
        self.values = _Values(head, self.head_size)
        family = _Family()
        #: Of records without a key.
        self.entries = _Entries(self.lengths, self.values, 0, family)
        sizes = range(64) if keyed else ()
        self._sizes = [_Entries(self.lengths, self.values, size, family) for size in sizes]
        self._keys = _Keys(0, self._sizes)
        self._offset_size = offset_size
        #: Offset deltas by how they are read, the third byte of them, as it is read, in front.
        self.deltas = _Deltas(offset_size)

    def null_key(self, offset: int) -> int:
        """Return the value that is read for the length of a null key, after offset delta `offset`."""
        return self._third_byte(offset) | _NULL

    def keys(self, offset: int) -> Mapping[int, Mapping[int, Keyed]]:
        """Return readers by the value read for a key's length after offset delta `offset`, and by record length."""
        third = self._third_byte(offset)
        return _Keys(third, self._sizes) if third else self._keys

    def _third_byte(self, offset: int) -> int:
        return offset >> _THIRD_BYTE << 8 if self._offset_size == _MAX_OFFSET else 0

    def expected(self, offset: int) -> Iterator[int]:
        """Offset deltas from `offset` on, as they are read, as far as they have the size and third byte of that one."""
        return chain.from_iterable(self._expected(offset))

    def _expected(self, offset: int) -> Iterator[range]:
        if offset >> 7 * self._offset_size - 1:
            return
        if self._offset_size == 1:
            yield range(offset << 1, 0x80, 2)
            return
        more = 0x80 if self._offset_size == _MAX_OFFSET else 0
        end = (offset >> _THIRD_BYTE) + 1 << _THIRD_BYTE
        while offset < end:
            # Within 64 offsets only the first byte changes.
            count = 64 - offset % 64
            first = (offset << 1 & 0x7F | 0x80) << 8 | offset >> 6 & 0x7F | more
            yield range(first, first + count * 0x200, 0x200)
            offset += count


_SHAPES: dict[tuple[int, int, int, bool], RecordShape] = {}


def shape_at(data: bytes, position: int) -> RecordShape | None:
    """Return the shape of the record at `position`, or None if none fits. Raises IndexError at the end of the data."""
    length_size = 1 if data[position] < 0x80 else 2
    start = position + length_size
    if data[start - 1] > 0x7F:
        return None
    place = start = start + 1
    while data[place] > 0x7F:
        place += 1
        if place - start >= _MAX_TIME:
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
    if keyed and key & _NOT_A_SIZE:
        return None
    name = (length_size, time_size, offset_size, keyed)
    shape = _SHAPES.get(name)
    if shape is None:
        if len(_SHAPES) >= _MOST_SHAPES:
            _SHAPES.clear()
        shape = _SHAPES[name] = RecordShape(length_size, time_size, offset_size, keyed=keyed)
    return shape

"""The hot path of record batches: rows of records of one *shape*, read with one C call each.

Strategy: a record's varints have no fixed places, but neighbours nearly always agree in how many bytes each number
takes, and that is a shape. A `struct` that depends on the length reads a value together with the numbers in front of
the next one. Offset deltas grow by one, so the bytes of the next one are known beforehand, and that length, value's
length and key's length agree shows that all stand where they should; whether timestamp deltas have their size is looked
at once for the whole row, when they are decoded. Whatever differs (another shape, a gap in the offsets, headers, a
null value, the end) ends the row, and the caller looks at it slowly.
"""

from __future__ import annotations

import struct
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from consumerd.wire.v08.records.varint import read_varlong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    #: A timestamp delta as it is read: one or two bytes as a number, more as they are.
    Time: TypeAlias = int | bytes
    _Unpack = Callable[[bytes, int], tuple[int, bytes, int, int, Time, int, int]]
    _Entry = tuple[_Unpack, int, int]
    _Keyed = tuple[_Unpack, int, int, int]

#: Bytes of the largest timestamp and offset deltas in rows.
_MAX_TIME, _MAX_OFFSET = 10, 3
#: Zeros that a row needs after its last record, where it looks for the numbers of the next one.
PADDING = bytes(2 + 1 + _MAX_TIME + _MAX_OFFSET + 1)
#: The length of a null key.
_NULL = 1
#: The sign and the continuation bit of a number of one byte.
_NOT_A_SIZE = 0x81
#: Offsets up to here differ in the first two bytes of three only.
_THIRD_BYTE = 13
#: The sizes of keys, None for null, by their length fields of one byte.
KEY_SIZES: dict[int, int | None] = {_NULL: None, **{size << 1: size for size in range(64)}}
_NUMBERS = {1: "B", 2: "H"}


class _Values(dict[int, "_Entry"]):
    """Readers of a value and of what follows it, by the bytes that are left for the value, its length field included.

    An entry is `unpack`, the length field that belongs to that many bytes, and how far it is to the next record's
    value if that has the same shape. `unpack` gives length field, value, number of headers, and the next record's
    length, timestamp delta, offset delta and key length.
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
        left = self[field] = (raw >> 1) - self._overhead
        return left


class _Entries(dict[int, "_Keyed"]):
    """By the length field of a record with a key of a certain size: `_Values`' entry, and that size."""

    def __init__(self, lengths: _Lengths, values: _Values, size: int) -> None:
        super().__init__()
        self._lengths = lengths
        self._values = values
        self._size = size

    def __missing__(self, field: int) -> _Keyed:
        entry = (*self._values[self._lengths[field] - self._size], self._size)
        if len(self) >= _Values.ROOM // 4:
            self.clear()
        self[field] = entry
        return entry


class _Keys(dict[int, _Entries]):
    """`_Entries` by how a key's length is read. Raises struct.error for what is none of a key of up to 63 bytes."""

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

    ROOM = 8192

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
        if len(self) >= self.ROOM:
            self.clear()
        delta = self[field] = raw >> 1 ^ -(raw & 1)
        return delta


class Shape:
    """How many bytes length, timestamp delta and offset delta take, and whether there is a key (of up to 63 bytes)."""

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
        #: Of records without a key.
        self.entries = _Entries(self.lengths, self.values, 0)
        self._sizes = [_Entries(self.lengths, self.values, size) for size in range(64)] if keyed else []
        self._keys = _Keys(0, self._sizes)
        self._offset_size = offset_size
        #: Offset deltas by how they are read, the third byte of them, as it is read, in front.
        self.deltas = _Deltas(offset_size)

    def null_key(self, offset: int) -> int:
        """How the length of a null key is read, after offset delta `offset`."""
        return self._third_byte(offset) | _NULL

    def keys(self, offset: int) -> Mapping[int, Mapping[int, _Keyed]]:
        """By how a key's length is read after offset delta `offset`, and by the record's length: how to go on."""
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


_SHAPES: dict[tuple[int, int, int, bool], Shape] = {}


def shape_at(data: bytes, position: int) -> Shape | None:
    """The shape of the record at `position`, or None if none of them fits. Raises IndexError at the end of the data."""
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
        shape = _SHAPES[name] = Shape(length_size, time_size, offset_size, keyed=keyed)
    return shape


def walk_plain(
    data: bytes,
    position: int,
    expected: Iterator[int],
    null: int,
    shape: Shape,
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
    keys: Mapping[int, Mapping[int, _Keyed]],
    shape: Shape,
    append: Callable[[bytes], None],
    add_key: Callable[[bytes], None],
    note: Callable[[Time], None],
) -> int:
    """As `walk_plain`, for records with keys, which go to `add_key`; `keys`: from `Shape.keys`."""
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
    """What a row noted, each of `size` bytes, decoded. Raises LookupError or ValueError if one has another size."""
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

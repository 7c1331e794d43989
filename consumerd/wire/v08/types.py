"""Readers and writers of single values: strings, bytes, record sets, ids and arrays of numbers.

Strategy: a reader is `(data, position, budget) -> (value, next position)`; a writer takes the value and a function that
takes the pieces of bytes in order. Every length is checked against the rest of `data` before anything is made of
it. A budget is a list of one number, the elements that arrays may still have: small elements cost a hundred times their
bytes. Readers raise FrameError, and let struct.error and IndexError of a cut-off message through to
`consumerd.wire.v08.structures`; writers raise EncodeError.

`data` is `bytes` or a memoryview of bytes. Of a memoryview, record sets are views: nothing is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from consumerd.wire.errors import EncodeError, FrameError
from consumerd.wire.v08.schema import FieldType
from consumerd.wire.varint import read_uvarint, uvarint

Data = bytes | memoryview
Budget = list[int]
Reader = Callable[[Data, int, Budget], tuple[Any, int]]
Append = Callable[[Any], object]
Writer = Callable[[Any, Append], None]

#: Letters of `struct` for the types of fixed width.
FORMATS = {
    FieldType.BOOLEAN: "?",
    FieldType.INT8: "b",
    FieldType.INT16: "h",
    FieldType.INT32: "i",
    FieldType.INT64: "q",
}

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
UUID_SIZE = 16


_NAMES = {
    FieldType.STRING: "a string",
    FieldType.BYTES: "a byte string",
    FieldType.RECORDS: "a record set",
    FieldType.ARRAY: "an array",
}


def _text(piece: Data) -> str:
    try:
        return str(piece, "utf-8")
    except UnicodeDecodeError as error:
        raise FrameError(f"a string is not UTF-8: {error.reason} at its byte {error.start}") from None


def _same(piece: Data) -> Data:
    return piece


_MAKERS: dict[FieldType, Callable[[Data], Any]] = {
    FieldType.STRING: _text,
    FieldType.BYTES: bytes,
    FieldType.RECORDS: _same,
}


def sized_reader(kind: FieldType, *, nullable: bool, compact: bool) -> Reader:
    """The reader of STRING, BYTES or RECORDS."""
    make = _MAKERS[kind]
    what = _NAMES[kind]

    def refuse(size: int, start: int, left: int) -> tuple[None, int]:
        """Null, where it may be; an error for any other size."""
        if size == -1 and nullable:
            return None, start
        raise FrameError(f"{what} of {size} bytes where {left} are left")

    if compact:

        def read_compact(data: Data, position: int, _budget: Budget) -> tuple[Any, int]:
            size = data[position]
            if size < 0x80:
                start = position + 1
            else:
                size, start = read_uvarint(data, position)
            end = start + size - 1
            if size == 0 or end > len(data):
                return refuse(size - 1, start, len(data) - start)
            return make(data[start:end]), end

        return read_compact

    layout = _INT16 if kind is FieldType.STRING else _INT32
    unpack, width = layout.unpack_from, layout.size

    def read(data: Data, position: int, _budget: Budget) -> tuple[Any, int]:
        (size,) = unpack(data, position)
        start = position + width
        end = start + size
        if size < 0 or end > len(data):
            return refuse(size, start, len(data) - start)
        return make(data[start:end]), end

    return read


def read_uuid(data: Data, position: int, _budget: Budget) -> tuple[Any, int]:
    """16 bytes."""
    end = position + UUID_SIZE
    if end > len(data):
        raise FrameError(f"an id of {UUID_SIZE} bytes where {len(data) - position} are left")
    return bytes(data[position:end]), end


def count_reader(smallest: int, *, nullable: bool, compact: bool) -> Reader:
    """The reader of an array's count, None for null. `smallest`: the fewest bytes that an element can have."""
    unpack = _INT32.unpack_from

    def read(data: Data, position: int, budget: Budget) -> tuple[Any, int]:
        if compact:
            count, position = read_uvarint(data, position)
            count -= 1
        else:
            (count,) = unpack(data, position)
            position += 4
        if count < 0 or count * smallest > len(data) - position:
            if count == -1 and nullable:
                return None, position
            raise FrameError(f"an array of {count} elements where {len(data) - position} bytes are left")
        budget[0] -= count
        if budget[0] < 0:
            raise FrameError("the arrays of a message have more elements than the limit allows")
        return count, position

    return read


def numbers_reader(letter: str, count: Reader) -> Reader:
    """The reader of an array of numbers."""
    width = struct.calcsize(f">{letter}")

    def read(data: Data, position: int, budget: Budget) -> tuple[Any, int]:
        length, position = count(data, position, budget)
        if not length:
            return (None if length is None else []), position
        return list(struct.unpack_from(f">{length}{letter}", data, position)), position + length * width

    return read


def _length_writer(kind: FieldType, compact: bool) -> Callable[[int], bytes]:
    if compact:
        return lambda size: uvarint(size + 1)
    pack = (_INT16 if kind is FieldType.STRING else _INT32).pack
    what = _NAMES[kind]

    def write(size: int) -> bytes:
        try:
            return pack(size)
        except struct.error:
            raise EncodeError(f"{what} of {size} is too long") from None

    return write


def sized_writer(kind: FieldType, *, nullable: bool, compact: bool) -> Writer:
    """The writer of STRING, BYTES or RECORDS."""
    length = _length_writer(kind, compact)
    null = length(-1)
    what = _NAMES[kind]
    is_text = kind is FieldType.STRING
    accepted = (str,) if is_text else (bytes, bytearray, memoryview)
    encode: Callable[[Any], Any] = _utf8 if is_text else _same

    def write(value: Any, append: Append) -> None:
        if isinstance(value, accepted):
            piece = encode(value)
            append(length(len(piece)))
            append(piece)
        elif value is None and nullable:
            append(null)
        else:
            raise EncodeError(f"must be {what}, not {value!r:.40}")

    return write


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise EncodeError(f"the string {text[:20]!r} cannot be sent: not UTF-8") from None


def write_uuid(value: Any, append: Append) -> None:
    """16 bytes."""
    if not (isinstance(value, bytes) and len(value) == UUID_SIZE):
        raise EncodeError(f"must be an id of {UUID_SIZE} bytes, not {value!r:.40}")
    append(value)


def count_writer(*, nullable: bool, compact: bool) -> Writer:
    """The writer of an array's count; takes the array."""
    length = _length_writer(FieldType.ARRAY, compact)

    def write(value: Any, append: Append) -> None:
        if isinstance(value, list | tuple):
            append(length(len(value)))
        elif value is None and nullable:
            append(length(-1))
        else:
            raise EncodeError(f"must be an array, not {value!r:.40}")

    return write


def numbers_writer(letter: str, count: Writer) -> Writer:
    """The writer of an array of numbers."""

    def write(value: Any, append: Append) -> None:
        count(value, append)
        if value:
            try:
                append(struct.pack(f">{len(value)}{letter}", *value))
            except struct.error as error:
                raise EncodeError(f"an array of numbers holds what does not fit: {error}") from None

    return write


def elements_reader(read_element: Reader, count: Reader) -> Reader:
    """The reader of an array of anything."""

    def read(data: Data, position: int, budget: Budget) -> tuple[Any, int]:
        length, position = count(data, position, budget)
        if length is None:
            return None, position
        values = []
        for _ in range(length):
            value, position = read_element(data, position, budget)
            values.append(value)
        return values, position

    return read


def elements_writer(write_element: Writer, count: Writer) -> Writer:
    """The writer of an array of anything."""

    def write(value: Any, append: Append) -> None:
        count(value, append)
        for element in value or ():
            write_element(element, append)

    return write

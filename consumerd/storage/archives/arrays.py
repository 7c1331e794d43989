"""Arrow arrays of the buffers that the native codec makes, and lists of headers. `arrow` is the module `pyarrow`."""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from consumerd.wire.column_buffers import BinaryBuffers, HeaderBuffers, Headers

#: The most bytes in a column whose offsets have 32 bits.
MOST_BYTES: Final = (1 << 31) - 1
#: The encoding of Parquet columns that grow from row to row.
DIFFERENCES: Final = "DELTA_BINARY_PACKED"
_NO_VALUES: Final = BinaryBuffers(b"", bytes(4), b"")


def array_of(arrow: Any, kind: Any, count: int, validity: bytes, *buffers: bytes | bytearray) -> Any:
    """An array of the type `kind`; `validity` is empty where nothing is null."""
    held = map(arrow.py_buffer, buffers)
    return arrow.Array.from_buffers(kind, count, [arrow.py_buffer(validity) if validity else None, *held])


def same_values(arrow: Any, kind: Any, value: str | int | None, count: int) -> Any:
    """An array of the type `kind` (texts, booleans, integers) of `count` times the same value; None for null.

    Nothing here makes Arrow's values of Python's: pyarrow imports pandas for that where it is installed, which takes a
    third of a second.
    """
    if value is None:
        return arrow.nulls(count, kind)
    if isinstance(value, str):
        data = value.encode()
        one = array_of(arrow, kind, 1, b"", struct.pack("=ii", 0, len(data)), data)
        return one if count == 1 else arrow.repeat(one[0], count)
    if kind == arrow.bool_():
        return array_of(arrow, kind, count, b"", (b"\xff" if value else b"\0") * -(-count // 8))
    signed = arrow.types.is_signed_integer(kind)
    return array_of(arrow, kind, count, b"", value.to_bytes(kind.bit_width // 8, sys.byteorder, signed=signed) * count)


def joined(arrow: Any, pieces: Sequence[Any]) -> Any:
    """The arrays one behind the other, of which there is at least one."""
    return pieces[0] if len(pieces) == 1 else arrow.concat_arrays(pieces)


def header_lists(
    arrow: Any, kind: Any, headers: HeaderBuffers | Mapping[int, Headers] | None, first: int, count: int
) -> Any:
    """Lists of the type `kind`, of pairs of a name and a value: the headers of the messages from number `first` on."""
    if headers is None:
        headers = HeaderBuffers(bytes(4 * (count + 1)), _NO_VALUES, _NO_VALUES)
    name, value = (kind.value_type.field(at) for at in (0, 1))
    if not isinstance(headers, HeaderBuffers):
        found = (headers.get(first + number, ()) for number in range(count))
        return arrow.array([[{name.name: pair[0], value.name: pair[1]} for pair in pairs] for pairs in found], kind)
    total = len(headers.names.offsets) // 4 - 1
    children = [
        array_of(arrow, name.type, total, *headers.names),
        array_of(arrow, value.type, total, *headers.values),
    ]
    pairs = arrow.Array.from_buffers(kind.value_type, total, [None], children=children)
    return arrow.Array.from_buffers(kind, count, [None, arrow.py_buffer(headers.offsets)], children=[pairs])


def data_size(column: Any, *, large: bool = False) -> int:
    """The bytes of the values of an array of bytes or texts that is not a slice."""
    offsets = memoryview(column.buffers()[1]).cast("q" if large else "i") if len(column) else (0,)
    return offsets[len(column)]

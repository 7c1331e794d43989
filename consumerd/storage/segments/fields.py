"""The fields of the records that brokers write to topics of their own: offsets, transactions, the cluster's metadata.

Each is an int16 (or a varint) with its version, then fixed and sized fields in order; flexible versions have compact
lengths and tagged fields behind. A reader takes the fields that it needs from the front, and leaves the rest.
"""

from __future__ import annotations

import builtins
import struct
from typing import Final

from consumerd.wire.errors import FrameError
from consumerd.wire.varint import read_uvarint

_INT8, _INT16, _INT32, _INT64 = (struct.Struct(f">{letter}") for letter in "bhiq")
_UUID_BYTES: Final = 16


class UnreadableRecordError(ValueError):
    """A record is not of a form that brokers write."""


class RecordFields:
    """A position in a key or a value. Each method returns the next field; all raise UnreadableRecordError.

    `compact`: whether lengths are varints, as in flexible versions.
    """

    def __init__(self, data: builtins.bytes | None, *, compact: bool = False) -> None:
        self._data = data or b""
        self._at = 0
        self.compact = compact

    def int8(self) -> int:
        return self._number(_INT8)

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def varint(self) -> int:
        """An unsigned one."""
        try:
            number, self._at = read_uvarint(self._data, self._at)
        except (FrameError, IndexError) as error:
            raise UnreadableRecordError(f"a record of {len(self._data)} bytes: {error}") from None
        return number

    def uuid(self) -> builtins.bytes:
        """16 bytes."""
        return self.bytes(_UUID_BYTES)

    def text(self) -> str:
        """A string that is not null."""
        text = self.optional_text()
        if text is None:
            raise UnreadableRecordError("a string is null")
        return text

    def optional_text(self) -> str | None:
        """A string, or None."""
        size = self.varint() - 1 if self.compact else self.int16()
        if size < 0:
            return None
        try:
            return self.bytes(size).decode()
        except UnicodeDecodeError as error:
            raise UnreadableRecordError(f"a string is not UTF-8: {error.reason}") from None

    def count(self) -> int:
        """The number of elements of an array, which have at least a byte each; 0 for null."""
        count = max(0, self.varint() - 1 if self.compact else self.int32())
        if count > len(self._data) - self._at:
            raise UnreadableRecordError(f"{count} elements where {len(self._data) - self._at} bytes are left")
        return count

    def skip_tags(self) -> None:
        """Leave out the tagged fields that end a structure of a flexible version."""
        for _ in range(self.varint()):
            self.varint()
            self.bytes(self.varint())

    def _number(self, layout: struct.Struct) -> int:
        number: int = layout.unpack(self.bytes(layout.size))[0]
        return number

    def bytes(self, size: int) -> builtins.bytes:
        """The next `size` bytes."""
        piece = self._data[self._at : self._at + size]
        if len(piece) < size:
            raise UnreadableRecordError(f"a field of {size} bytes where {len(piece)} are left")
        self._at += size
        return piece

"""The hot path: the longest run of plain, whole, intact messages of one magic, as payloads appended to a list.

Strategy: one C call per message. A `struct` that depends on the length reads the payload together with the header that
follows it, so that each message costs one lookup, one `unpack_from`, one CRC and one append; a cut-off end shows as
`struct.error`. Anything else (the end, other magics, attributes, wrappers, a wrong CRC)
ends the run, and the caller reads it in the slower way. No object per message, nothing copied but the payloads. Who
stores messages and does not read them calls `verify`: the same loop, in which each payload is gone before the next one
is cut out, so that all of them use one piece of memory that stays in the processor's cache.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache

from consumerd.base.native import codec as native_codec
from consumerd.wire.crc import crc32

_Unpack = Callable[[bytes | memoryview, int], tuple[bytes, int, int, int]]


#: Largest value of a length field.
ANY_LENGTH = 0x7FFFFFFF


class MessageReaders(dict[int, "_Unpack"]):
    """Readers of one magic by length field: `[length](data, start)` -> payload and the three fields after it.

    A cache of at most `ROOM` entries; lengths in real logs repeat, and a hostile row of ever new ones only costs the
    making of a `struct` each, less than the bytes of that length. A length field above `longest` has no reader.
    """

    ROOM = 4096

    def __init__(self, fields: str, kind: int, longest: int = ANY_LENGTH) -> None:
        super().__init__()
        self._longest = longest
        self._fields = fields
        head = struct.Struct(">" + fields)
        #: Reads length, kind and CRC at the start of a message.
        self.head: Callable[[bytes | memoryview, int], tuple[int, int, int]] = head.unpack_from
        #: Bytes before the payload, the length field included.
        self.overhead = head.size
        #: The bytes between length and CRC in a plain message.
        self.kind = kind

    def __missing__(self, length: int) -> _Unpack:
        size = length + 4 - self.overhead
        if size < 0 or length > self._longest:
            raise struct.error
        unpack = struct.Struct(f">{size}s{self._fields}").unpack_from
        if len(self) >= self.ROOM:
            self.clear()
        self[length] = unpack
        return unpack


@lru_cache(maxsize=16)
def layouts_up_to(longest: int) -> tuple[MessageReaders, MessageReaders]:
    """The layouts of both magics, for messages whose length field is `longest` at most.

    Magic 0 is followed by the CRC at once, magic 1 by the attributes: as one number, 0x00 and 0x0100.
    """
    return MessageReaders("iBI", 0, longest), MessageReaders("iHI", 0x0100, longest)


#: For messages of any length.
LAYOUTS = layouts_up_to(ANY_LENGTH)


def walk(data: bytes | memoryview, position: int, append: Callable[[bytes], None], layout: MessageReaders) -> int:
    """Append the payloads of the run that starts at `position`; returns where the first other thing stands.

    The last message of the data always counts as another thing, since no header follows.
    """
    if len(data) - position < layout.overhead:
        return position
    plain, crc_of = layout.kind, crc32
    length, kind, crc = layout.head(data, position)
    position += layout.overhead
    try:
        while kind == plain:
            payload, next_length, kind, next_crc = layout[length](data, position)
            if crc_of(payload) != crc:
                break
            append(payload)
            position += length + 4
            length, crc = next_length, next_crc
    except struct.error:
        pass
    return position - layout.overhead


def verify(
    data: bytes | memoryview, position: int, longest: int, layout: MessageReaders, *, last: bool = False
) -> tuple[int, int]:
    """Check the run that starts at `position`; returns where the first other thing stands, and how many passed.

    As `walk`, but a payload of more than `longest` bytes is another thing, too; and with `last` a message counts as
    well if no header follows it.
    """
    native = native_codec()
    if native is not None:
        return native.verify(data, position, longest, layout.kind >> 8, last)
    if len(data) - position < layout.overhead:
        return position, 0
    plain, crc_of = layout.kind, crc32
    longest += layout.overhead - 4
    count = 0
    length, kind, crc = layout.head(data, position)
    position += layout.overhead
    try:
        while kind == plain and length <= longest:
            payload, next_length, kind, next_crc = layout[length](data, position)
            if crc_of(payload) != crc:
                break
            count += 1
            position += length + 4
            length, crc = next_length, next_crc
    except struct.error:
        end = position + 4 + length - layout.overhead
        if last and position <= end <= len(data) and crc_of(data[position:end]) == crc:
            return end, count + 1
    return position - layout.overhead, count

"""Messages of magic 0 and 1, alone and in compressed wrappers.

Strategy: a message is (int64 offset, int32 size of what follows, uint32 CRC of what follows it, int8 magic, int8
attributes, [int64 timestamp, if magic is 1], int32 key length, key, int32 value length, value); a length of -1 is null.
Rows of plain messages are read with a `struct` by size, as in 0.7: the part that the CRC covers comes together with the
header of the next message. A wrapper's value is a set of its own: in magic 0 with the offsets of the log, in magic 1
with numbers relative to the last one, which has the wrapper's offset; its time of appending, if it has one, counts for
all in it. Wrappers in wrappers are not written by anybody and refused.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from consumerd.wire.crc import crc32
from consumerd.wire.errors import CorruptMessageError
from consumerd.wire.v08.records.codecs import CODEC_MASK, decompress
from consumerd.wire.v08.records.record_set import NO_TIMESTAMP, TimestampType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consumerd.wire.v08.records.columns import Columns

    _Unpack = Callable[[bytes, int], tuple[bytes, int, int, int]]

HEAD = struct.Struct(">qiI")
#: What the CRC covers before the key: magic, attributes, [timestamp], key length.
_FIELDS = (struct.Struct(">BBi"), struct.Struct(">BBqi"))
_SIZE = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")
#: The smallest size field, by magic: CRC, fields, and the value's length.
MIN_SIZE = (14, 22)
_LOG_APPEND_TIME = 0x08


class _Layouts(dict[int, "_Unpack"]):
    """Readers by size field: what the CRC covers, and offset, size and CRC of the message after it."""

    ROOM = 4096

    def __missing__(self, size: int) -> _Unpack:
        if size < MIN_SIZE[0]:
            raise struct.error
        unpack = struct.Struct(f">{size - 4}sqiI").unpack_from
        if len(self) >= self.ROOM:
            self.clear()
        self[size] = unpack
        return unpack


_LAYOUTS = _Layouts()


class Row(NamedTuple):
    """Messages that were read onto the columns: offsets and timestamps, and where the first other thing stands."""

    offsets: list[int]
    timestamps: list[int]
    position: int


class Message(NamedTuple):
    """One whole message with its CRC checked, not decompressed."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    #: The position after it.
    end: int


def skip(data: bytes, position: int, count: int) -> int:
    """The position after `count` whole messages."""
    for _ in range(count):
        position += 12 + _SIZE.unpack_from(data, position + 8)[0]
    return position


def timestamp_type(magic: int, attributes: int) -> TimestampType:
    """Whose clock the timestamp of a message is of."""
    if magic == 0:
        return TimestampType.NONE
    return TimestampType.LOG_APPEND_TIME if attributes & _LOG_APPEND_TIME else TimestampType.CREATE_TIME


def walk(data: bytes, position: int, magic: int, attributes: int, columns: Columns) -> Row:
    """Read the row of plain messages of one magic and attributes at `position`, up to the last but one of the data."""
    offsets: list[int] = []
    timestamps: list[int] = []
    append, add_key, note = columns.payloads.append, columns.keys.append, offsets.append
    stamp = timestamps.append
    fields, crc_of, layouts = _FIELDS[magic].unpack_from, crc32, _LAYOUTS
    start = _FIELDS[magic].size
    value_size = _SIZE.unpack_from
    try:
        offset, size, crc = HEAD.unpack_from(data, position)
        while True:
            body, next_offset, next_size, next_crc = layouts[size](data, position + 16)
            if crc_of(body) != crc:
                break
            if magic:
                found, flags, timestamp, length = fields(body)
            else:
                found, flags, length = fields(body)
                timestamp = NO_TIMESTAMP
            if found != magic or flags != attributes or flags & CODEC_MASK:
                break
            key, place = None, start
            if length >= 0:
                place = start + length
                key = body[start:place]
            (length,) = value_size(body, place)
            place += 4
            if length != len(body) - place:
                break
            append(body[place:])
            add_key(key)
            note(offset)
            stamp(timestamp)
            position += size + 12
            offset, size, crc = next_offset, next_size, next_crc
    except struct.error:
        pass
    return Row(offsets, timestamps, position)


def read_message(data: bytes, position: int) -> Message:
    """The message at `position`, which has to be there as a whole. Raises CorruptMessageError."""
    offset, size, crc = HEAD.unpack_from(data, position)
    magic = data[position + 16]
    if magic > 1:
        raise CorruptMessageError(f"magic {magic} inside a compressed message of an older format")
    end = position + 12 + size
    if size < MIN_SIZE[magic]:
        raise CorruptMessageError(f"a size of {size}, less than any message has")
    body = data[position + 16 : end]
    actual = crc32(body)
    if actual != crc:
        raise CorruptMessageError(f"a CRC of {actual:08x} where its header says {crc:08x}")
    attributes = body[1]
    timestamp = NO_TIMESTAMP if magic == 0 else _TIMESTAMP.unpack_from(body, 2)[0]
    key, place = _read_bytes(body, _FIELDS[magic].size - 4)
    value, place = _read_bytes(body, place)
    if place != len(body):
        raise CorruptMessageError(f"{len(body) - place} bytes after its value")
    return Message(offset, magic, attributes, timestamp, key, value, end)


def _read_bytes(body: bytes, position: int) -> tuple[bytes | None, int]:
    left = len(body) - position - 4
    if left < 0:
        raise CorruptMessageError("a field that is cut off")
    (size,) = _SIZE.unpack_from(body, position)
    if size == -1:
        return None, position + 4
    if not 0 <= size <= left:
        raise CorruptMessageError(f"a field of {size} bytes where {left} are left")
    return body[position + 4 : position + 4 + size], position + 4 + size


def unwrap(wrapper: Message, columns: Columns, *, limit: int) -> tuple[Sequence[int], Sequence[int], int]:
    """Read the messages in a wrapper onto `columns`.

    Returns their offsets, their timestamps, and the size of the set once decompressed, which may be `limit` bytes.
    Raises CorruptMessageError (DecompressionError among it); then what is on `columns` of this wrapper has to go.
    """
    if wrapper.value is None:
        raise CorruptMessageError("no value where its attributes promise a compressed set")
    data = decompress(wrapper.attributes, wrapper.value, wrapper.magic, limit=limit)
    offsets: list[int] = []
    timestamps: list[int] = []
    position, end = 0, len(data)
    while position < end:
        if end - position < HEAD.size + 1:
            raise CorruptMessageError("a compressed set that is cut off")
        magic, attributes = data[position + 16], data[position + 17] if end - position > HEAD.size + 1 else 0
        if magic < len(_FIELDS):
            row = walk(data, position, magic, attributes, columns)
            offsets += row.offsets
            timestamps += row.timestamps
            position = row.position
        (size,) = _SIZE.unpack_from(data, position + 8)
        if not 0 < size <= end - position - 12:
            raise CorruptMessageError(
                f"a message of {size} bytes where its compressed set has {end - position - 12} left"
            )
        message = read_message(data, position)
        if message.attributes & CODEC_MASK:
            raise CorruptMessageError("a compressed message inside a compressed message")
        columns.add(message.key, message.value, ())
        offsets.append(message.offset)
        timestamps.append(message.timestamp)
        position = message.end
    if wrapper.magic == 1:
        if offsets:
            base = wrapper.offset - offsets[-1]
            offsets = [base + offset for offset in offsets]
        if wrapper.attributes & _LOG_APPEND_TIME:
            timestamps = [wrapper.timestamp] * len(offsets)
    return offsets, timestamps, len(data)

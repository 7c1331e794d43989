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
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from consumerd.wire.crc import crc32
from consumerd.wire.errors import CorruptMessageError
from consumerd.wire.v08.records.codecs import CODEC_MASK, decompress
from consumerd.wire.v08.records.columns import RecordColumns
from consumerd.wire.v08.records.record_set import NO_TIMESTAMP, TimestampType

_Unpack = Callable[[bytes, int], tuple[bytes, int, int, int]]
_Entry = tuple[_Unpack, int]


HEAD = struct.Struct(">qiI")
#: The fields that the CRC covers before the key: magic, attributes, [timestamp], key length.
_FIELDS = (struct.Struct(">BBi"), struct.Struct(">BBqi"))
#: The same with magic and attributes as one number, and the value's length, where that is without a key.
_KEYLESS = (struct.Struct(">Hii"), struct.Struct(">Hqii"))
_SIZE = struct.Struct(">i")
_CRC_END = HEAD.size
_TIMESTAMP = struct.Struct(">q")
#: The smallest size field, by magic: CRC, fields, and the value's length.
MIN_SIZE = (14, 22)
_LOG_APPEND_TIME = 0x08


class _Layouts(dict[int, "_Entry"]):
    """By size field: a reader, and how far it is to the next message.

    The reader gives what the CRC covers, and offset, size and CRC of the message after it.
    """

    ROOM = 4096

    def __missing__(self, size: int) -> _Entry:
        if size < MIN_SIZE[0]:
            raise struct.error
        entry = (struct.Struct(f">{size - 4}sqiI").unpack_from, size + 12)
        if len(self) >= self.ROOM:
            self.clear()
        self[size] = entry
        return entry


_LAYOUTS = _Layouts()


class Row(NamedTuple):
    """Messages that were read onto the columns: offsets and timestamps, and where the first other thing stands."""

    offsets: Sequence[int]
    timestamps: list[int]
    position: int


class StoredMessage(NamedTuple):
    """One whole message with its CRC checked, not decompressed."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    #: The position after it.
    end: int


def timestamp_type(magic: int, attributes: int) -> TimestampType:
    """Whose clock the timestamp of a message is of."""
    if magic == 0:
        return TimestampType.NONE
    return TimestampType.LOG_APPEND_TIME if attributes & _LOG_APPEND_TIME else TimestampType.CREATE_TIME


def walk(data: bytes, position: int, magic: int, attributes: int, columns: RecordColumns) -> Row:
    """Read the row of plain messages of one magic, with these attributes and growing offsets, at `position`.

    The last message of the data always counts as another thing, since no header follows.
    """
    first, start = len(columns), position
    timestamps: list[int] = []
    offsets: list[int] = []
    append, add_key, stamp, note = columns.payloads.append, columns.keys.append, timestamps.append, offsets.append
    fields, crc_of, layouts = _KEYLESS[magic].unpack_from, crc32, _LAYOUTS
    value_start = _KEYLESS[magic].size
    key_start = value_start - _SIZE.size
    kind = magic << 8 | attributes
    try:
        offset, size, crc = HEAD.unpack_from(data, position)
        while True:
            unpack, step = layouts[size]
            body, next_offset, size, next_crc = unpack(data, position + _CRC_END)
            if crc_of(body) != crc:
                break
            if magic:
                found, timestamp, key_size, length = fields(body)
                if found != kind:
                    break
                stamp(timestamp)
            else:
                found, key_size, length = fields(body)
                if found != kind:
                    break
            if key_size == -1:
                value = body[value_start:]
                key = None
            else:
                end = key_start + key_size
                (length,) = _SIZE.unpack_from(body, end)
                value = body[end + 4 :]
                key = body[key_start:end]
            if length != len(value) or key_size < -1:
                break
            append(value)
            add_key(key)
            note(offset)
            position += step
            offset, crc = next_offset, next_crc
    except struct.error:
        pass
    taken = _growing(offsets)
    if taken < len(offsets):
        columns.cut(first + taken)
        position = _skip(data, start, taken)
        del offsets[taken:]
    del timestamps[taken:]
    columns.count_keyless(first)
    # They only grow, so there is no gap if there is no room for one.
    whole = taken and offsets[-1] - offsets[0] == taken - 1
    return Row(range(offsets[0], offsets[-1] + 1) if whole else offsets, timestamps or [NO_TIMESTAMP] * taken, position)


def _growing(offsets: list[int]) -> int:
    """Return the number of offsets, from the first on, that grow."""
    if not offsets or offsets == list(range(offsets[0], offsets[0] + len(offsets))):
        return len(offsets)
    return next((n for n, pair in enumerate(pairwise(offsets), 1) if pair[0] >= pair[1]), len(offsets))


def _skip(data: bytes, position: int, count: int) -> int:
    """The position after `count` whole messages."""
    for _ in range(count):
        position += 12 + _SIZE.unpack_from(data, position + 8)[0]
    return position


def read_message(data: bytes, position: int) -> StoredMessage:
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
    return StoredMessage(offset, magic, attributes, timestamp, key, value, end)


def _read_bytes(body: bytes, position: int) -> tuple[bytes | None, int]:
    left = len(body) - position - 4
    if left < 0:
        raise CorruptMessageError("a truncated field")
    (size,) = _SIZE.unpack_from(body, position)
    if size == -1:
        return None, position + 4
    if not 0 <= size <= left:
        raise CorruptMessageError(f"a field of {size} bytes where {left} are left")
    return body[position + 4 : position + 4 + size], position + 4 + size


def unwrap(wrapper: StoredMessage, columns: RecordColumns, *, limit: int) -> tuple[Sequence[int], Sequence[int], int]:
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
            raise CorruptMessageError("a truncated compressed set")
        magic, attributes = data[position + 16], data[position + 17] if end - position > HEAD.size + 1 else 0
        if magic < len(_FIELDS) and attributes & CODEC_MASK == 0:
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
        # Of what was produced, and no broker has given offsets to, the wrapper's is 0 with some clients.
        if offsets and wrapper.offset:
            base = wrapper.offset - offsets[-1]
            offsets = [base + offset for offset in offsets]
        if wrapper.attributes & _LOG_APPEND_TIME:
            timestamps = [wrapper.timestamp] * len(offsets)
    return offsets, timestamps, len(data)

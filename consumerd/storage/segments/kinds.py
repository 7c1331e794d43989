"""Batches of one kind that follow one another, by their headers alone: what can be decoded together.

Strategy: batches of one kind have magic, attributes and leader epoch in common, and the producer if they are of a
transaction, and their offsets grow. Nothing is checked but what stands in the headers, so that a look costs next to
nothing; the decoder judges the rest, and what is not like the first one ends the look. Control batches are of no kind.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from consumerd.base.native import codec as native_codec
from consumerd.wire.v08.records.record_batch import HEADER, MAGIC, read_header

#: What batches and messages of all magics begin with: offset and length; the position of the magic.
OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
OVERHEAD: Final = OFFSET_AND_LENGTH.size
MAGIC_AT: Final = 16
#: The largest offset of a record: that of the next one is an offset, too.
MAX_OFFSET: Final = (1 << 63) - 2
#: The least values of the length field of magic 0 and 1.
_LEAST: Final = (14, 22)


class SameKind(NamedTuple):
    """Batches of one kind: the position behind them, their number, and the offset of the last one's last record."""

    end: int
    batches: int
    last_offset: int


def same_kind(data: bytes, position: int, least: int, most: int, room: int) -> SameKind:
    """The whole batches of one kind at `position`, up to those with which they have `room` bytes or more; 0 if none.

    `least`: the least offset that may follow. `most`: the greatest length field.
    """
    native = native_codec()
    if native is not None:
        return SameKind(*native.same_kind(data, position, least, most, room))
    end, count = position, 0
    kind: tuple[int, int, int, int] | None = None
    while end - position < room:
        found = _look(data, end, most)
        if found is None or found.first < least or found.kind != (kind or found.kind):
            break
        kind, end, count, least = found.kind, found.end, count + 1, found.last + 1
    return SameKind(end, count, least - 1)


class _Look(NamedTuple):
    """What a header says. `kind`: magic, attributes, leader epoch, and the producer of a transaction."""

    kind: tuple[int, int, int, int]
    first: int
    last: int
    end: int


def _look(data: bytes, position: int, most: int) -> _Look | None:
    """None for a control batch, for what is not whole, and for what no header can be."""
    if len(data) - position <= MAGIC_AT:
        return None
    offset, size = OFFSET_AND_LENGTH.unpack_from(data, position)
    end, magic = position + OVERHEAD + size, data[position + MAGIC_AT]
    if offset < 0 or not 0 <= size <= most or end > len(data):
        return None
    if magic != MAGIC:
        if magic >= len(_LEAST) or size < _LEAST[magic] or offset > MAX_OFFSET:
            return None
        return _Look((magic, data[position + MAGIC_AT + 1], -1, -1), offset, offset, end)
    if end < position + HEADER.size:
        return None
    header = read_header(data, position)
    if header.control or not offset <= header.last_offset <= MAX_OFFSET:
        return None
    producer = header.producer_id if header.transactional else -1
    return _Look((magic, header.attributes, header.leader_epoch, producer), offset, header.last_offset, end)

"""Record batches (magic 2): the header, and the records after it.

Strategy: the header is one `struct`; CRC-32C covers everything after itself. Records are read in rows of one shape
(`walk`) and one by one where a row ends. A batch counts as a whole: anything wrong in it spoils it. Offsets may have
gaps (compaction), never go back. Source: what brokers of 0.11 and later write; the guide of 0.10.1 ends before.

A batch is (int64 base offset, int32 length of what follows, int32 leader epoch, int8 magic, uint32 CRC, int16
attributes, int32 last offset delta, int64 first and highest timestamp, int64 producer id, int16 producer epoch, int32
first sequence, int32 count, records). Bits 0-2 of the attributes name the codec of the records, bit 3 says that all
have the highest timestamp, the time of appending, bit 4 that the batch is part of a transaction, bit 5 that it is a
marker of its end. A record is (varint length, int8 attributes, varint timestamp delta, varint offset delta, varint key
length, key, varint value length, value, varint count of headers, headers); a length of -1 is null.
"""

from __future__ import annotations

import struct
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from consumerd.wire.errors import CorruptMessageError
from consumerd.wire.v08.records.varint import read_varint, read_varlong
from consumerd.wire.v08.records.walk import PADDING, shape_at, times_of, walk_keyed, walk_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from consumerd.wire.v08.records.columns import Columns
    from consumerd.wire.v08.records.record_set import Headers

#: Of record batches.
MAGIC = 2
HEADER = struct.Struct(">qiibIhiqqqhii")
#: Bytes of a batch that the CRC does not cover: up to and with the CRC itself.
CRC_END = 21
#: Of the length field: what every batch has after it.
MIN_LENGTH = HEADER.size - 12

_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
#: The smallest record: a length, and six numbers of one byte.
_MIN_RECORD = 7


class BatchHeader(NamedTuple):
    """The fields in front of the records, in the order of the format."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # the word of the field; nobody counts members of a tuple of fields

    @property
    def last_offset(self) -> int:
        """The offset of the last record that the producer wrote, compacted away or not."""
        return self.base_offset + self.last_offset_delta

    @property
    def log_append_time(self) -> bool:
        """Whether `max_timestamp`, from the broker's clock, is the timestamp of all records."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """Whether the batch marks the end of a transaction; it holds nothing for consumers."""
        return bool(self.attributes & _CONTROL)


class Times:
    """Timestamp deltas of a batch's records as the data has them; iterating gives the timestamps."""

    __slots__ = ("_base", "_pieces")

    def __init__(self, base: int) -> None:
        self._base = base
        #: Plain deltas (size 0), or rows of 8 bytes each with how many of them the delta takes.
        self._pieces: list[tuple[int, list[int]]] = []

    def row(self, time_size: int) -> list[int]:
        """The list to which the 8 bytes of each record of a row go."""
        words: list[int] = []
        self._pieces.append((time_size, words))
        return words

    def add(self, delta: int) -> None:
        """The delta of one record."""
        if self._pieces and self._pieces[-1][0] == 0:
            self._pieces[-1][1].append(delta)
        else:
            self._pieces.append((0, [delta]))

    def __iter__(self) -> Iterator[int]:
        deltas = (times_of(words, size) if size else words for size, words in self._pieces)
        return map(self._base.__add__, chain.from_iterable(deltas))


def read_header(data: bytes, position: int) -> BatchHeader:
    """The header at `position`, where `HEADER.size` bytes have to be."""
    return BatchHeader._make(HEADER.unpack_from(data, position))


def read_records(data: bytes, header: BatchHeader, columns: Columns) -> tuple[Sequence[int], Times]:
    """Read the records of a batch, decompressed as `data`, onto `columns`; returns their offsets and timestamps.

    Raises CorruptMessageError; then what is on `columns` of this batch has to go.
    """
    if not 0 <= header.count * _MIN_RECORD <= len(data):
        raise CorruptMessageError(f"{header.count} records in {len(data)} bytes")
    return _Reader(data, header, columns).read()


class _Reader:
    """One batch being read: the state that rows and single records share."""

    __slots__ = ("columns", "data", "end", "header", "next_delta", "position", "rows", "times")

    def __init__(self, data: bytes, header: BatchHeader, columns: Columns) -> None:
        self.end = len(data)
        self.data = data + PADDING
        self.header = header
        self.columns = columns
        self.times = Times(header.base_timestamp)
        self.position = 0
        #: The least offset delta that may follow.
        self.next_delta = 0
        self.rows: list[range] = []

    def read(self) -> tuple[Sequence[int], Times]:
        left = self.header.count
        try:
            while left:
                done = self._row(left)
                left -= done
                if left and done < 2:
                    self._single()
                    left -= 1
        except IndexError:
            raise CorruptMessageError(f"only {self.header.count - left} of {self.header.count} records") from None
        if self.position != self.end:
            raise CorruptMessageError(f"records that end at byte {self.position} of {self.end}")
        if self.next_delta > self.header.last_offset_delta + 1:
            raise CorruptMessageError(
                f"offset delta {self.next_delta - 1} beyond the last, {self.header.last_offset_delta}"
            )
        return self._offsets(), self.times

    def _offsets(self) -> Sequence[int]:
        base = self.header.base_offset
        shifted = [range(base + row.start, base + row.stop) for row in self.rows]
        return shifted[0] if len(shifted) == 1 else list(chain.from_iterable(shifted))

    def _took(self, first: int, count: int) -> None:
        """Note that `count` records with offset deltas from `first` on were read."""
        if self.rows and self.rows[-1].stop == first:
            self.rows[-1] = range(self.rows[-1].start, first + count)
        else:
            self.rows.append(range(first, first + count))
        self.next_delta = first + count

    def _row(self, left: int) -> int:
        """Read a row of at most `left` records of one shape; returns how many there were."""
        shape = shape_at(self.data, self.position)
        if shape is None:
            return 0
        columns = self.columns
        first, delta = len(columns), self.next_delta
        expected = islice(shape.expected(delta), left)
        words = self.times.row(shape.time_size)
        append, note = columns.payloads.append, words.append
        if shape.keyed:
            add_key = columns.keys.append
            self.position = walk_keyed(self.data, self.position, expected, shape, append, add_key, note)
        else:
            self.position = walk_plain(self.data, self.position, expected, shape, append, note)
        count = len(columns) - first
        if count:
            self._took(delta, count)
            if not shape.keyed:
                columns.keys += [None] * count
        return count

    def _single(self) -> None:
        """Read one record, whatever its shape. Raises CorruptMessageError, IndexError."""
        data, position = self.data, self.position
        length, position = read_varint(data, position)
        end = position + length
        if length < 0 or end > self.end:
            raise CorruptMessageError(f"a record of {length} bytes where {self.end - position} are left")
        time, position = read_varlong(data, position + 1)
        delta, position = read_varint(data, position)
        if delta < self.next_delta:
            raise CorruptMessageError(f"offset delta {delta} where {self.next_delta} is the least")
        key, position = _read_bytes(data, position, end)
        payload, position = _read_bytes(data, position, end)
        headers, position = _read_headers(data, position, end)
        if position != end:
            raise CorruptMessageError(f"a record whose fields end {end - position} bytes before its end")
        self.columns.add(key, payload, headers)
        self.times.add(time)
        self._took(delta, 1)
        self.position = end


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position)
    if size < 0:
        return None, position
    if size > end - position:
        raise CorruptMessageError(f"a field of {size} bytes where its record has {end - position} left")
    return data[position : position + size], position + size


def _read_headers(data: bytes, position: int, end: int) -> tuple[Headers, int]:
    count, position = read_varint(data, position)
    if count == 0:
        return (), position
    # Each takes two bytes at least.
    if not 0 < count <= (end - position) // 2:
        raise CorruptMessageError(f"{count} headers in {end - position} bytes")
    found = []
    for _ in range(count):
        name, position = _read_bytes(data, position, end)
        if name is None:
            raise CorruptMessageError("a header without a name")
        value, position = _read_bytes(data, position, end)
        # As the JVM does with bytes that are no UTF-8.
        found.append((name.decode("utf-8", "replace"), value))
    return tuple(found), position

"""Record batches (magic 2): the header, and the records after it.

Strategy: the header is one `struct`; CRC-32C covers everything after itself. Records are read in rows of one shape
(`walk`, `walk_mixed`) and one by one where a row ends. A batch counts as a whole: anything wrong in it spoils it.
Offsets may have gaps (compaction), never go back. Source: what brokers of 0.11 and later write; the guide of 0.10.1
ends before.

A batch is (int64 base offset, int32 length of what follows, int32 leader epoch, int8 magic, uint32 CRC, int16
attributes, int32 last offset delta, int64 first and highest timestamp, int64 producer id, int16 producer epoch, int32
first sequence, int32 count, records). Bits 0-2 of the attributes name the codec of the records, bit 3 says that all
have the highest timestamp, the time of appending, bit 4 that the batch is part of a transaction, bit 5 that it is a
marker of its end. A record is (varint length, int8 attributes, varint timestamp delta, varint offset delta, varint key
length, key, varint value length, value, varint count of headers, headers); a length of -1 is null.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import NamedTuple

from consumerd.wire.errors import CorruptMessageError
from consumerd.wire.v08.records.columns import RecordColumns
from consumerd.wire.v08.records.shapes import RecordShape, Time, shape_at
from consumerd.wire.v08.records.varint import read_varint, read_varlong
from consumerd.wire.v08.records.walk import time_deltas, walk_keyed, walk_plain
from consumerd.wire.v08.records.walk_mixed import read_headers, walk_mixed

#: The magic of record batches.
MAGIC = 2
HEADER = struct.Struct(">qiibIhiqqqhii")
#: Bytes of a batch that the CRC does not cover: up to and with the CRC itself.
CRC_END = 21
#: Smallest value of the length field: the bytes that every batch has after it.
MIN_LENGTH = HEADER.size - 12

_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40
#: The smallest record: a length, and six numbers of one byte.
_MIN_RECORD = 7
#: A row of so few costs more than its records in the slower way.
_FEW = 4
#: Number of records that are read in the slower way before the faster one is tried again.
_MAX_PATIENCE = 64


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
    count: int  # type: ignore[assignment]  # hides `tuple.count`, which is not used

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

    @property
    def delete_horizon(self) -> int | None:
        """When compaction removes tombstones and markers, in ms (KIP-534): `base_timestamp` is this then."""
        return self.base_timestamp if self.attributes & _DELETE_HORIZON else None


def read_header(data: bytes, position: int) -> BatchHeader:
    """The header at `position`, where `HEADER.size` bytes have to be."""
    return BatchHeader._make(HEADER.unpack_from(data, position))


def read_records(
    data: bytes, start: int, end: int, header: BatchHeader, columns: RecordColumns
) -> tuple[Sequence[int], list[int]]:
    """Read the records of a batch, which are `data[start:end]`, onto `columns`; returns offset and timestamp deltas.

    `data` is looked at as a whole, so that nothing has to be cut out of it. Raises CorruptMessageError; then what is on
    `columns` of this batch has to go.
    """
    if not 0 <= header.count * _MIN_RECORD <= end - start:
        raise CorruptMessageError(f"{header.count} records in {end - start} bytes")
    return _Reader(data, start, end, header, columns).read()


class _Reader:
    """One batch being read: the state that rows and single records share."""

    __slots__ = ("columns", "data", "deltas", "end", "header", "next_delta", "position", "start", "times")

    def __init__(self, data: bytes, start: int, end: int, header: BatchHeader, columns: RecordColumns) -> None:
        self.data = data
        self.start = self.position = start
        self.end = end
        self.header = header
        self.columns = columns
        self.deltas: list[Sequence[int]] = []
        self.times: list[int] = []
        #: The least offset delta that may follow.
        self.next_delta = 0

    def read(self) -> tuple[Sequence[int], list[int]]:
        left, patience = self.header.count, 1
        try:
            while left:
                done = self._row(left, self._walk_same)
                left -= done
                # After a row there is another one of another shape, as a rule; where rows do not pay, they are tried
                # less and less.
                if done > _FEW or not left:
                    patience = 1
                    continue
                patience = min(2 * patience, left, _MAX_PATIENCE)
                done = self._row(patience, self._walk_mixed)
                left -= done
                if done < patience:
                    self._single()
                    left -= 1
        except IndexError:
            raise CorruptMessageError(f"less than {self.header.count} records") from None
        if self.position != self.end:
            raise CorruptMessageError(
                f"records that end at byte {self.position - self.start} of {self.end - self.start}"
            )
        last = self.next_delta - 1
        if last > self.header.last_offset_delta:
            raise CorruptMessageError(f"offset delta {last} where the last is {self.header.last_offset_delta}")
        if not self.deltas:
            return (), self.times
        first = self.deltas[0][0]
        # They only grow, so there is no gap if there is no room for one.
        if last - first == self.header.count - 1:
            return range(first, last + 1), self.times
        return list(chain.from_iterable(self.deltas)), self.times

    def _row(self, left: int, walk: Callable[[RecordShape, int, list[Time]], Sequence[int]]) -> int:
        """Read a row of at most `left` records of one shape by `walk`; returns how many there were."""
        shape = shape_at(self.data, self.position)
        if shape is None:
            return 0
        start, first = self.position, len(self.columns)
        noted: list[Time] = []
        deltas = walk(shape, left, noted)
        try:
            self.times += time_deltas(noted, shape.time_size)
        except (LookupError, ValueError, CorruptMessageError):
            # Numbers of other sizes that only look like these: read them one by one.
            self.columns.cut(first)
            self.position = start
            return 0
        if deltas:
            if walk == self._walk_mixed:
                self.columns.count_keyless(first)
            elif not shape.keyed:
                self.columns.note_keyless(len(deltas))
            self.next_delta = deltas[-1] + 1
            self.deltas.append(deltas)
        return len(deltas)

    def _walk_same(self, shape: RecordShape, left: int, noted: list[Time]) -> Sequence[int]:
        """Read a row of records without gaps that have values and no headers, all with keys or all without."""
        columns, append, delta = self.columns, self.columns.payloads.append, self.next_delta
        expected = islice(shape.expected(delta), left)
        if shape.keyed:
            keys, add_key = shape.keys(delta), columns.keys.append
            self.position = walk_keyed(self.data, self.position, expected, keys, shape, append, add_key, noted.append)
        else:
            null = shape.null_key(delta)
            self.position = walk_plain(self.data, self.position, expected, null, shape, append, noted.append)
            columns.keys += [None] * len(noted)
        return range(delta, delta + len(noted))

    def _walk_mixed(self, shape: RecordShape, left: int, noted: list[Time]) -> Sequence[int]:
        """Read a row of records of any content."""
        deltas, self.position = walk_mixed(
            self.data, self.position, self.next_delta, left, shape, self.columns, noted.append
        )
        return deltas

    def _single(self) -> None:
        """Read one record, number by number. Raises CorruptMessageError, IndexError."""
        data, position = self.data, self.position
        length, position = read_varint(data, position)
        end = position + length
        if length < 0 or end > self.end:
            raise CorruptMessageError(f"a record of {length} bytes where {self.end - position} are left")
        time, position = read_varlong(data, position + 1)
        delta, position = read_varint(data, position)
        if delta < self.next_delta:
            raise CorruptMessageError(f"offset delta {delta} where {self.next_delta} is the least")
        key, position = _read_bytes(data, position)
        payload, position = _read_bytes(data, position)
        headers, position = read_headers(data, position, end)
        if position != end:
            raise CorruptMessageError(f"a record whose fields take {position - end:+} bytes more than it has")
        self.columns.add(key, payload, headers)
        self.times.append(time)
        self.next_delta = delta + 1
        self.deltas.append(range(delta, delta + 1))
        self.position = end


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position)
    return (None, position) if size < 0 else (data[position : position + size], position + size)

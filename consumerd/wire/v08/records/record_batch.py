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
from consumerd.wire.v08.records.varint import INT32_BYTES, INT64_BYTES, read_rest, read_varint
from consumerd.wire.v08.records.walk import PADDING, shape_at, time_deltas, walk_keyed, walk_plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumerd.wire.v08.records.columns import Columns
    from consumerd.wire.v08.records.record_set import Headers
    from consumerd.wire.v08.records.walk import Time

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
#: A row that costs more than its records one by one.
_FEW = 4
#: How many records are read one by one before another row is tried.
_MAX_SINGLES = 64


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


def read_header(data: bytes, position: int) -> BatchHeader:
    """The header at `position`, where `HEADER.size` bytes have to be."""
    return BatchHeader._make(HEADER.unpack_from(data, position))


def read_records(data: bytes, header: BatchHeader, columns: Columns) -> tuple[Sequence[int], list[int]]:
    """Read the records of a batch, decompressed as `data`, onto `columns`; returns their offset and timestamp deltas.

    Raises CorruptMessageError; then what is on `columns` of this batch has to go.
    """
    if not 0 <= header.count * _MIN_RECORD <= len(data):
        raise CorruptMessageError(f"{header.count} records in {len(data)} bytes")
    return _Reader(data, header, columns).read()


class _Reader:
    """One batch being read: the state that rows and single records share."""

    __slots__ = ("columns", "data", "deltas", "end", "header", "next_delta", "position", "times")

    def __init__(self, data: bytes, header: BatchHeader, columns: Columns) -> None:
        self.end = len(data)
        self.data = data + PADDING
        self.header = header
        self.columns = columns
        self.deltas: list[Sequence[int]] = []
        self.times: list[int] = []
        self.position = 0
        #: The least offset delta that may follow.
        self.next_delta = 0

    def read(self) -> tuple[Sequence[int], list[int]]:
        left, singles = self.header.count, 1
        try:
            while left:
                done = self._row(left)
                left -= done
                # After a row there is another one of another shape, as a rule; where rows do not pay, they are tried
                # less and less.
                if done > _FEW:
                    singles = 1
                elif left:
                    singles = min(2 * singles, _MAX_SINGLES)
                    left -= self._singles(min(left, singles))
        except IndexError:
            raise CorruptMessageError(f"less than {self.header.count} records") from None
        if self.position != self.end:
            raise CorruptMessageError(f"records that end at byte {self.position} of {self.end}")
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

    def _row(self, left: int) -> int:
        """Read a row of at most `left` records of one shape; returns how many there were."""
        shape = shape_at(self.data, self.position)
        if shape is None:
            return 0
        columns, start, delta = self.columns, self.position, self.next_delta
        first = len(columns)
        expected = islice(shape.expected(delta), left)
        noted: list[Time] = []
        append, note = columns.payloads.append, noted.append
        if shape.keyed:
            keys, add_key = shape.keys(delta), columns.keys.append
            self.position = walk_keyed(self.data, start, expected, keys, shape, append, add_key, note)
        else:
            self.position = walk_plain(self.data, start, expected, shape.null_key(delta), shape, append, note)
        try:
            self.times += time_deltas(noted, shape.time_size)
        except (LookupError, ValueError, CorruptMessageError):
            # Numbers of other sizes that only look like these: one by one they are told apart.
            del columns.payloads[first:], columns.keys[first:]
            self.position = start
            return 0
        if not shape.keyed:
            columns.add_keyless(len(noted))
        if noted:
            self.next_delta += len(noted)
            self.deltas.append(range(delta, self.next_delta))
        return len(noted)

    def _singles(self, count: int) -> int:
        """Read `count` records of whatever shapes; returns `count`. Raises CorruptMessageError, IndexError.

        Numbers of one byte are read in place, longer ones by a call. Odd sizes, before zigzag, are negative: null.
        """
        data, position, all_end = self.data, self.position, self.end
        add, stamp = self.columns.add, self.times.append
        deltas: list[int] = []
        least = self.next_delta
        for _ in range(count):
            raw, position = data[position], position + 1
            if raw > 0x7F:
                raw, position = read_rest(data, position, raw, INT32_BYTES)
            end = position + (raw >> 1)
            if raw & 1 or end > all_end:
                raise CorruptMessageError(f"a record that is to end at byte {end} of {all_end}")
            raw, position = data[position + 1], position + 2
            if raw > 0x7F:
                raw, position = read_rest(data, position, raw, INT64_BYTES)
            stamp(raw >> 1 ^ -(raw & 1))
            raw, position = data[position], position + 1
            if raw > 0x7F:
                raw, position = read_rest(data, position, raw, INT32_BYTES)
            if raw & 1 or raw >> 1 < least:
                raise CorruptMessageError(f"offset delta {raw >> 1 ^ -(raw & 1)} where {least} is the least")
            deltas.append(raw >> 1)
            least = (raw >> 1) + 1
            key = payload = None
            raw, position = data[position], position + 1
            if raw > 0x7F:
                raw, position = read_rest(data, position, raw, INT32_BYTES)
            if not raw & 1:
                key, position = data[position : position + (raw >> 1)], position + (raw >> 1)
            raw, position = data[position], position + 1
            if raw > 0x7F:
                raw, position = read_rest(data, position, raw, INT32_BYTES)
            if not raw & 1:
                payload, position = data[position : position + (raw >> 1)], position + (raw >> 1)
            headers, position = _read_headers(data, position, end)
            if position != end:
                raise CorruptMessageError(f"a record whose fields take {position - end:+} bytes more than it has")
            add(key, payload, headers)
        self.position, self.next_delta = position, least
        self.deltas.append(deltas)
        return count


def _read_headers(data: bytes, position: int, end: int) -> tuple[Headers, int]:
    """The headers at `position`, of a record that ends at `end`. Raises CorruptMessageError, IndexError."""
    if data[position] == 0:
        return (), position + 1
    count, position = read_varint(data, position)
    # Each takes two bytes at least.
    if not 0 <= count <= (end - position) // 2:
        raise CorruptMessageError(f"{count} headers in {end - position} bytes")
    found = []
    for _ in range(count):
        raw, position = data[position], position + 1
        if raw > 0x7F:
            raw, position = read_rest(data, position, raw, INT32_BYTES)
        if raw & 1:
            raise CorruptMessageError("a header without a name")
        name, position = data[position : position + (raw >> 1)], position + (raw >> 1)
        value = None
        raw, position = data[position], position + 1
        if raw > 0x7F:
            raw, position = read_rest(data, position, raw, INT32_BYTES)
        if not raw & 1:
            value, position = data[position : position + (raw >> 1)], position + (raw >> 1)
        # As the JVM does with bytes that are no UTF-8.
        found.append((name.decode("utf-8", "replace"), value))
    return tuple(found), position

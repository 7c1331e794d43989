"""The rows of segments since 0.8, as NDJSON and as Parquet.

A row: topic, broker, partition, offset, index, next_offset, codec, magic, crc_ok, leader_epoch, timestamp,
timestamp_type, key, payload, headers, problem, source. `index` is 0, since every record has an offset of its own;
`timestamp` is in milliseconds, null where there is none, as `key` and `payload` may be. A damaged batch that is kept is
one row, with its bytes as the payload.
"""

from __future__ import annotations

from itertools import islice
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple, Protocol

from consumerd.storage.archives.arrays import (
    MOST_BYTES,
    array_of,
    data_size,
    header_lists,
    joined,
    same_values,
)
from consumerd.storage.archives.extras import extra
from consumerd.storage.archives.ndjson import ByteSink, NdjsonLines, member
from consumerd.storage.archives.options import ExportCompression
from consumerd.storage.archives.parquet import GROUP_BYTES, GROUP_ROWS, ParquetGroups, few_values
from consumerd.storage.archives.rows import RowOrigin
from consumerd.storage.segments.batches import SegmentFlaw, StoredBatch
from consumerd.wire.v08.records import RecordSet, TimestampType

#: The names of whose clock a timestamp is of, as Kafka's tools print them.
_CLOCKS: Final = {TimestampType.CREATE_TIME: "CreateTime", TimestampType.LOG_APPEND_TIME: "LogAppendTime"}
#: Timestamps have 63 bits at most.
_LARGEST: Final = 1 << 63


class RecordWriter(Protocol):
    """Writes the rows of one segment to one file, in their order."""

    def add(self, batch: StoredBatch, first: int, stop: int) -> None:
        """Write the records of `batch` from number `first` to `stop`."""
        ...

    def add_flaw(self, flaw: SegmentFlaw) -> None:
        """Write a damaged batch."""
        ...

    def finish(self) -> None:
        """Write the end of the file."""
        ...


class NdjsonRecords(NdjsonLines):
    """One object per line; `key` and `payload` are text where they are UTF-8, else `key_base64`, `payload_base64`."""

    def add(self, batch: StoredBatch, first: int, stop: int) -> None:
        codec, epoch = batch.codec.name.lower(), _number(batch.leader_epoch)
        problem = "" if batch.problem is None else f',"problem":{encode_basestring(batch.problem[1])}'
        kind = f',"codec":"{codec}","magic":{batch.magic},"crc_ok":true,"leader_epoch":{epoch},"timestamp":'
        tail = problem + self._tail
        clock = _CLOCKS.get(batch.timestamp_type)
        for record in islice(batch.records.messages(), first, stop):
            known = clock is not None and 0 <= record.timestamp < _LARGEST
            time = f'{record.timestamp},"timestamp_type":"{clock}"' if known else 'null,"timestamp_type":null'
            headers = ",".join(
                f'{{"key":{encode_basestring(name)},{self._member("value", value)}}}' for name, value in record.headers
            )
            key, payload = self._member("key", record.key), self._member("payload", record.payload)
            place = f'{record.offset},"index":0,"next_offset":{record.offset + 1}'
            self._write([f'{self._head}{place}{kind}{time},{key},{payload},"headers":[{headers}]{tail}'])

    def add_flaw(self, flaw: SegmentFlaw) -> None:
        row = (
            f'{self._head}{flaw.offset},"index":0,"next_offset":{flaw.offset},"codec":null,"magic":null,"crc_ok":false,'
            f'"leader_epoch":null,"timestamp":null,"timestamp_type":null,"key":null,'
            f'{self._member("payload", flaw.raw)},"headers":[],"problem":{encode_basestring(flaw.problem)}{self._tail}'
        )
        self._write([row])

    def _member(self, name: str, data: bytes | None) -> str:
        return member(name, data, base64=self._base64)


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


class _Same(NamedTuple):
    """What rows in a row have in common."""

    codec: str | None
    magic: int | None
    crc_ok: bool
    leader_epoch: int | None
    timestamp_type: str | None
    problem: str | None


class ParquetRecords(ParquetGroups):
    """Row groups end by rows, and by bytes behind a batch."""

    def __init__(self, sink: ByteSink, origin: RowOrigin, compression: ExportCompression) -> None:
        self._compute: Any = extra("pyarrow.compute", "writing Parquet")
        super().__init__(
            sink,
            origin,
            compression,
            _fields,
            few=("leader_epoch", "timestamp_type"),
            large=("key", "payload", "problem", "headers"),
            growing=("offset", "next_offset", "timestamp"),
        )

    def _start_group(self) -> None:
        super()._start_group()
        #: Columns that differ from row to row, and what the rows have in common, with their number.
        self._pieces: list[_Columns] = []
        self._same: list[tuple[int, _Same]] = []

    def add(self, batch: StoredBatch, first: int, stop: int) -> None:
        clock = _CLOCKS.get(batch.timestamp_type)
        problem = None if batch.problem is None else batch.problem[1]
        same = _Same(batch.codec.name.lower(), batch.magic, True, batch.leader_epoch, clock, problem)
        while first < stop:
            end = min(stop, first + GROUP_ROWS - self._rows)
            self._add(same, _columns(self._arrow, self._schema, batch.records, first, end), end - first)
            first = end

    def add_flaw(self, flaw: SegmentFlaw) -> None:
        arrow, one = self._arrow, self._schema.field
        columns = _Columns(
            arrow.array([flaw.offset], arrow.int64()),
            arrow.array([None], one("timestamp").type),
            arrow.array([None], arrow.binary()),
            arrow.array([flaw.raw], arrow.binary()),
            arrow.array([[]], one("headers").type),
        )
        self._add(_Same(None, None, False, None, None, flaw.problem), columns, 1)

    def _add(self, same: _Same, columns: _Columns, count: int) -> None:
        self._pieces.append(columns)
        before, last = self._same[-1] if self._same else (0, None)
        self._same[-1 if same == last else len(self._same) :] = [(before + count if same == last else count, same)]
        self._rows += count
        self._bytes += data_size(columns.key) + data_size(columns.payload)
        pairs = columns.headers.values
        self._bytes += sum(data_size(pairs.field(at)) for at in (0, 1)) if len(pairs) else 0
        if self._rows == GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._end_group()

    def _end_group(self) -> None:
        arrow = self._arrow
        differing = _Columns(*(joined(arrow, pieces) for pieces in zip(*self._pieces, strict=True)))
        columns = {name: self._common(name) for name in _Same._fields} | differing._asdict()
        clocks = columns["timestamp_type"]
        columns["index"] = same_values(arrow, arrow.int32(), 0, self._rows)
        # Not where the next record is: that would depend on what compaction has left by now.
        columns["next_offset"] = self._following(differing.offset, columns["crc_ok"])
        if differing.timestamp.null_count:
            known, nothing = differing.timestamp.is_valid(), arrow.nulls(1, arrow.int8())[0]
            indices = self._compute.if_else(known, clocks.indices, nothing)
            columns["timestamp_type"] = arrow.DictionaryArray.from_arrays(indices, clocks.dictionary)
        self._write_group(columns)

    def _common(self, name: str) -> Any:
        """The column of a field of `_Same`."""
        arrow, kind = self._arrow, self._schema.field(name).type
        values = [getattr(same, name) for _, same in self._same]
        counts = [count for count, _ in self._same]
        if not arrow.types.is_dictionary(kind):
            return joined(arrow, [same_values(arrow, kind, *run) for run in zip(values, counts, strict=True)])
        known = sorted({value for value in values if value is not None})
        numbers = [None if value is None else known.index(value) for value in values]
        indices = [same_values(arrow, arrow.int8(), *run) for run in zip(numbers, counts, strict=True)]
        texts = [arrow.nulls(0, arrow.string()), *(same_values(arrow, arrow.string(), text, 1) for text in known)]
        return arrow.DictionaryArray.from_arrays(joined(arrow, indices), joined(arrow, texts))

    def _following(self, offsets: Any, intact: Any) -> Any:
        """The position after each row: that of a damaged batch is its own."""
        return self._compute.add(offsets, intact.cast(self._arrow.int64()))


class _Columns(NamedTuple):
    """Arrow arrays of equal length."""

    offset: Any
    timestamp: Any
    key: Any
    payload: Any
    headers: Any


def _columns(arrow: Any, schema: Any, records: RecordSet, first: int, stop: int) -> _Columns:
    count, times, headers = stop - first, schema.field("timestamp").type, schema.field("headers").type
    buffers = records.column_buffers(first, stop, MOST_BYTES, wide=False)
    if buffers is not None:
        assert buffers.timestamp is not None
        return _Columns(
            array_of(arrow, arrow.int64(), count, b"", buffers.offset),
            array_of(arrow, times, count, *buffers.timestamp),
            arrow.nulls(count, arrow.binary())
            if buffers.key is None
            else array_of(arrow, arrow.binary(), count, *buffers.key),
            array_of(arrow, arrow.binary(), count, *buffers.payload),
            header_lists(arrow, headers, buffers.headers, first, count),
        )
    found = records.headers
    return _Columns(
        arrow.array(records.offsets[first:stop], arrow.int64()),
        arrow.array(
            [time if 0 <= time < _LARGEST else None for time in islice(records.timestamps, first, stop)], arrow.int64()
        ).view(times),
        arrow.array(records.keys[first:stop], arrow.binary()),
        arrow.array(records.payloads[first:stop], arrow.binary()),
        header_lists(arrow, headers, found, first, count),
    )


def _fields(arrow: Any) -> list[Any]:
    header = arrow.struct([arrow.field("key", arrow.string()), arrow.field("value", arrow.binary())])
    return [
        arrow.field("leader_epoch", arrow.int32()),
        arrow.field("timestamp", arrow.timestamp("ms", tz="UTC")),
        arrow.field("timestamp_type", few_values(arrow)),
        arrow.field("key", arrow.binary()),
        arrow.field("payload", arrow.binary()),
        arrow.field("headers", arrow.list_(arrow.field("element", header))),
    ]

"""The rows of segments since 0.8, as NDJSON and as Parquet.

A row: topic, broker, partition, offset, index, next_offset, codec, magic, crc_ok, leader_epoch, timestamp,
timestamp_type, key, payload, headers, problem, source. `index` is 0, since every record has an offset of its own;
`timestamp` is in milliseconds, null where there is none, as `key` and `payload` may be. A damaged batch that is kept is
one row, with its bytes as the payload.
"""

from __future__ import annotations

from binascii import b2a_base64
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple, Protocol

from consumerd.storage.archives.extras import extra
from consumerd.storage.archives.ndjson import ByteSink
from consumerd.storage.archives.options import ExportCompression
from consumerd.storage.archives.parquet import GROUP_BYTES, GROUP_ROWS, identity_fields, same_text
from consumerd.storage.archives.rows import RowOrigin, json_frame
from consumerd.storage.segments.batches import SegmentFlaw, StoredBatch
from consumerd.wire.v08.records import Record, TimestampType

#: The names of whose clock a timestamp is of, as Kafka's tools print them.
_CLOCKS: Final = {TimestampType.CREATE_TIME: "CreateTime", TimestampType.LOG_APPEND_TIME: "LogAppendTime"}


class RecordRow(NamedTuple):
    """One row without what all rows of a segment have in common."""

    offset: int
    next_offset: int
    codec: str | None
    magic: int | None
    crc_ok: bool
    leader_epoch: int | None
    timestamp: int | None
    timestamp_type: str | None
    key: bytes | None
    payload: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    problem: str | None = None


class RecordWriter(Protocol):
    """Writes the rows of one segment to one file, in their order."""

    def add(self, row: RecordRow) -> None: ...

    def finish(self) -> None:
        """Write the end of the file."""
        ...


def row_of(batch: StoredBatch, record: Record) -> RecordRow:
    """The row of a record of `batch`."""
    clock = _CLOCKS.get(record.timestamp_type)
    known = clock is not None and 0 <= record.timestamp < 1 << 63
    return RecordRow(
        record.offset,
        record.next_offset,
        batch.codec.name.lower(),
        batch.magic,
        True,
        batch.leader_epoch,
        record.timestamp if known else None,
        clock if known else None,
        record.key,
        record.payload,
        record.headers,
        None if batch.problem is None else batch.problem[1],
    )


def row_of_flaw(flaw: SegmentFlaw) -> RecordRow:
    """The row of a damaged batch."""
    return RecordRow(flaw.offset, flaw.offset, None, None, False, None, None, None, None, flaw.raw, (), flaw.problem)


class NdjsonRecords:
    """One object per line; `key` and `payload` are text where they are UTF-8, else `key_base64`, `payload_base64`."""

    def __init__(self, sink: ByteSink, origin: RowOrigin, *, base64: bool) -> None:
        self._sink = sink
        self._head, self._tail = json_frame(origin)
        self._base64 = base64
        self._lines: list[str] = []
        self._size = 0

    def add(self, row: RecordRow) -> None:
        codec = "null" if row.codec is None else f'"{row.codec}"'
        clock = "null" if row.timestamp_type is None else f'"{row.timestamp_type}"'
        headers = ",".join(
            f'{{"key":{encode_basestring(name)},{self._member("value", value)}}}' for name, value in row.headers
        )
        problem = "" if row.problem is None else f',"problem":{encode_basestring(row.problem)}'
        line = (
            f'{self._head}{row.offset},"index":0,"next_offset":{row.next_offset},"codec":{codec},'
            f'"magic":{_number(row.magic)},"crc_ok":{"true" if row.crc_ok else "false"},'
            f'"leader_epoch":{_number(row.leader_epoch)},"timestamp":{_number(row.timestamp)},'
            f'"timestamp_type":{clock},{self._member("key", row.key)},{self._member("payload", row.payload)},'
            f'"headers":[{headers}]{problem}{self._tail}'
        )
        self._lines.append(line)
        self._size += len(line)
        if self._size >= 1 << 20:
            self._write()

    def finish(self) -> None:
        self._write()

    def _write(self) -> None:
        if self._lines:
            # A name of a header may be what no encoding can write.
            self._sink.write("".join(self._lines).encode(errors="backslashreplace"))
        self._lines, self._size = [], 0

    def _member(self, name: str, data: bytes | None) -> str:
        if data is None:
            return f'"{name}":null'
        if not self._base64:
            try:
                return f'"{name}":{encode_basestring(data.decode())}'
            except UnicodeDecodeError:
                pass
        return f'"{name}_base64":"{b2a_base64(data, newline=False).decode()}"'


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


class ParquetRecords:
    """Row groups that end by rows and bytes. Memory: one row group and its columns."""

    def __init__(self, sink: ByteSink, origin: RowOrigin, compression: ExportCompression) -> None:
        self._arrow: Any = extra("pyarrow", "writing Parquet")
        parquet: Any = extra("pyarrow.parquet", "writing Parquet")
        self._origin = origin
        self._schema = _schema(self._arrow)
        large = ("key", "payload", "problem", "headers")
        self._writer = parquet.ParquetWriter(
            self._arrow.PythonFile(sink, mode="w"),
            self._schema,
            compression=str(compression),
            use_dictionary=["topic", "broker", "partition", "index", "codec", "magic", "timestamp_type", "source"],
            write_statistics=[name for name in self._schema.names if name not in large],
            store_schema=False,
        )
        self._rows: list[RecordRow] = []
        self._bytes = 0

    def add(self, row: RecordRow) -> None:
        self._rows.append(row)
        self._bytes += len(row.payload or b"") + len(row.key or b"")
        self._bytes += sum(len(name) + len(value or b"") for name, value in row.headers)
        if len(self._rows) == GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._end_group()

    def finish(self) -> None:
        if self._rows:
            self._end_group()
        self._writer.close()

    def _end_group(self) -> None:
        arrow, origin, count = self._arrow, self._origin, len(self._rows)
        found = RecordRow(*map(list, zip(*self._rows, strict=True)))  # type: ignore[arg-type]  # columns for values
        columns = {
            "topic": same_text(arrow, origin.topic, count),
            "broker": arrow.repeat(arrow.scalar(origin.broker, arrow.int32()), count),
            "partition": arrow.repeat(arrow.scalar(origin.partition, arrow.int32()), count),
            "index": arrow.repeat(arrow.scalar(0, arrow.int32()), count),
            "source": same_text(arrow, origin.source, count),
        }
        for name, values in found._asdict().items():
            kind = self._schema.field(name).type
            plain = arrow.string() if arrow.types.is_dictionary(kind) else kind
            column = arrow.array(values, plain)
            columns[name] = column.dictionary_encode().cast(kind) if plain is not kind else column
        self._rows, self._bytes = [], 0
        ordered = {name: columns[name] for name in self._schema.names}
        self._writer.write_table(arrow.table(ordered, schema=self._schema), row_group_size=count)


def _schema(arrow: Any) -> Any:
    few = arrow.dictionary(arrow.int8(), arrow.string())
    header = arrow.struct([arrow.field("key", arrow.string()), arrow.field("value", arrow.binary())])
    return arrow.schema(
        [
            *identity_fields(arrow),
            arrow.field("codec", few),
            arrow.field("magic", arrow.uint8()),
            arrow.field("crc_ok", arrow.bool_(), nullable=False),
            arrow.field("leader_epoch", arrow.int32()),
            arrow.field("timestamp", arrow.timestamp("ms", tz="UTC")),
            arrow.field("timestamp_type", few),
            arrow.field("key", arrow.binary()),
            arrow.field("payload", arrow.binary()),
            arrow.field("headers", arrow.list_(arrow.field("element", header))),
            arrow.field("problem", arrow.string()),
            arrow.field("source", few, nullable=False),
        ]
    )

"""A batch as a Parquet file, made in pieces: one row group after the other.

Columns: those of an export that say which message it is (`consumerd.archive.parquet`), then `key`, `timestamp`,
`headers` and `payload`. Messages of 0.7 have null in the former three; a null payload is a tombstone.

Strategy: the same batch always gives the same bytes: row groups are cut by rows and bytes alone, and nothing in the
file says when it was made. That is how a repeated batch is told from another one with the same range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from consumerd.archive.extras import extra
from consumerd.archive.parquet import identity_fields, same_text
from consumerd.handlers.pieces import in_pieces
from consumerd.partition import NO_BROKER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consumerd.archive.options import ExportCompression
    from consumerd.handlers.messages import Batch, Message

#: A row group ends at the first of these.
GROUP_ROWS: Final = 1 << 17
GROUP_BYTES: Final = 32 << 20
#: Columns worth a dictionary inside of the file.
_FEW_VALUES: Final = ["topic", "broker", "partition", "index"]


class _Pieces:
    """A file object that keeps written bytes until they are taken; pyarrow writes to it."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def write(self, data: bytes, /) -> int:
        self._pieces.append(bytes(data))  # its buffer is used again
        self._size += len(data)
        return len(data)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Called by pyarrow. Does nothing."""

    def take(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken


def parquet_schema() -> Any:
    """The columns as pyarrow writes them. Readers see `topic` as plain strings. Raises MissingExtraError."""
    arrow = extra("pyarrow", "writing Parquet")
    header = arrow.struct([arrow.field("name", arrow.string(), nullable=False), arrow.field("value", arrow.binary())])
    return arrow.schema(
        [
            *identity_fields(arrow),
            arrow.field("key", arrow.binary()),
            arrow.field("timestamp", arrow.timestamp("ms", tz="UTC")),
            arrow.field("headers", arrow.list_(header)),
            arrow.field("payload", arrow.binary()),
        ]
    )


def parquet_pieces(batch: Batch, compression: ExportCompression) -> Iterator[bytes]:
    """The file for `batch`. Memory: one row group and its columns. Raises MissingExtraError."""
    arrow = extra("pyarrow", "writing Parquet")
    schema, sink = parquet_schema(), _Pieces()
    with extra("pyarrow.parquet", "writing Parquet").ParquetWriter(
        arrow.PythonFile(sink, mode="w"),
        schema,
        compression=str(compression),
        use_dictionary=_FEW_VALUES,
        write_statistics=[name for name in schema.names if name not in ("payload", "headers")],
        store_schema=False,  # else readers would be told of the dictionary of `topic`
    ) as writer:
        for messages in in_pieces(batch.messages(), GROUP_ROWS, GROUP_BYTES, _size):
            writer.write_table(_table(arrow, schema, batch, messages), row_group_size=len(messages))
            yield sink.take()
    yield sink.take()


def _table(arrow: Any, schema: Any, batch: Batch, messages: list[Message]) -> Any:
    count = len(messages)
    topic, broker, partition = batch.partition
    _, offsets, indexes, nexts, payloads, *later = zip(*messages, strict=True)
    columns = [
        same_text(arrow, topic, count),
        arrow.repeat(arrow.scalar(None if broker == NO_BROKER else broker, arrow.int32()), count),
        arrow.repeat(arrow.scalar(partition, arrow.int32()), count),
        arrow.array(offsets, arrow.int64()),
        arrow.array(indexes, arrow.int32()),
        arrow.array(nexts, arrow.int64()),
    ]
    if later:
        keys, timestamps, _, headers = later
        columns += [
            arrow.array(keys, arrow.binary()),
            arrow.array([None if time < 0 else time for time in timestamps], arrow.int64()).cast(
                schema.field("timestamp").type
            ),
            arrow.array([_headers(each) for each in headers], schema.field("headers").type),
        ]
    else:
        columns += [arrow.nulls(count, schema.field(name).type) for name in ("key", "timestamp", "headers")]
    columns.append(arrow.array(payloads, arrow.binary()))
    return arrow.table(columns, schema=schema)


def _headers(headers: tuple[tuple[str, bytes | None], ...]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in headers]


def _size(message: Message) -> int:
    payload: bytes | None = message.payload
    return len(payload or b"")

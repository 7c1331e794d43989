"""A batch as a Parquet file, made in pieces: one row group after the other.

Columns: those of `Batch.to_arrow` (`consumerd.handlers.arrow_columns`).

Strategy: a row group is a part of the batch as Arrow columns. The same batch always gives the same bytes: row groups
are cut by rows and bytes alone, and nothing in the file says when it was made. That distinguishes a repeated batch
from another one with the same range.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from consumerd.handlers.arrow_columns import arrow_schema, count_within
from consumerd.handlers.messages import Batch
from consumerd.storage.archives.extras import extra
from consumerd.storage.archives.options import ExportCompression

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
    return arrow_schema(extra("pyarrow", "writing Parquet"))


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
        store_schema=False,  # else readers would see the dictionary of `topic`
    ) as writer:
        first = 0
        while first < len(batch):
            group = batch.part(first, count_within(batch.sources(first), GROUP_ROWS, GROUP_BYTES))
            writer.write_table(arrow.Table.from_batches([group.to_arrow()]), row_group_size=len(group))
            yield sink.take()
            first += len(group)
    yield sink.take()

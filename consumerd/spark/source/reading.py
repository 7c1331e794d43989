"""A split of any kind -> its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from consumerd.spark.source.files.reading import read_files_split
from consumerd.spark.source.split import FilesSplit, StoredSplit, V07Split
from consumerd.spark.source.v07.reading import read_split

if TYPE_CHECKING:
    import pyarrow as pa

    from consumerd.spark.source.request import ReadRequest
    from consumerd.spark.source.split import Split


def read_rows(split: Split, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """The rows of a split, in the order of the log. Raises what the readers of its kind do."""
    if isinstance(split, V07Split):
        return read_split(split, request)
    if isinstance(split, FilesSplit):
        return read_files_split(split, request)
    if isinstance(split, StoredSplit):
        from consumerd.spark.source.v08.stored import read_stored_split  # noqa: PLC0415

        return read_stored_split(split, request)
    from consumerd.spark.source.v08.reading import read_v08_split  # noqa: PLC0415 - a protocol of its own

    return read_v08_split(split, request)

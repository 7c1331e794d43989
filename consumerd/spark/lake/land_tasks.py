"""The work of one process of `land`: splits of the source -> one file of bronze.

A module of its own, because a worker imports what its task is in, and planning imports several times as much.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from consumerd.spark.lake.data_file import DataFile
from consumerd.spark.lake.parts import size_of
from consumerd.spark.lake.tasks import FileTarget, TargetWriter
from consumerd.spark.source.reading import read_rows
from consumerd.spark.tables.errors import unwritable

if TYPE_CHECKING:
    from consumerd.spark.source.request import ReadRequest
    from consumerd.spark.source.split import Split


def write_splits(
    splits: Sequence[Split], request: ReadRequest, target: FileTarget
) -> Generator[tuple[int, int], None, DataFile | None]:
    """In a worker: the rows of these splits into one file; None without rows.

    Yields sizes in offsets and numbers of rows that were done since. Raises what reading does, and TableError.
    """
    try:
        with TargetWriter(target) as file:
            for split in splits:
                for rows in read_rows(split, request):
                    file.write(rows)
                    yield 0, rows.num_rows
                yield size_of(split), 0
            return file.close()
    except OSError as error:
        raise unwritable(target.folder, error) from None

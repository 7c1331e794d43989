"""A sink with exactly-once files: NDJSON, one file for each range of a partition's log that was delivered.

    <directory>/<topic>/<broker>-<partition>/<start>-<end>.ndjson        20 digits each; [start, end) in log offsets

Strategy: see `consumerd.handlers.builtin.ranges` for the promises, `consumerd.handlers.builtin.range_folders` for how
they are kept on a file system.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from consumerd.base.files import SystemFiles
from consumerd.handlers.builtin.range_folders import RangeFolders, WriterFolder
from consumerd.handlers.builtin.ranges import IfEmpty, RangeHandler
from consumerd.handlers.builtin.records import encode_pieces
from consumerd.handlers.messages import Batch

_SUFFIX = ".ndjson"
#: Lines, and their bytes, that are written at once.
_LINES, _BYTES = 10_000, 1 << 20


class FilesHandler(RangeHandler[WriterFolder]):
    """Writes each batch to a file of its own.

    Options: `directory`, which is made when missing; `if_empty`, see `RangeHandler.position`. Raises
    PartitionTakenError, RangeOverlapError, and OSError for what the disk says (full, gone, not permitted), which the
    retry policy handles: nothing is stored then.
    """

    def __init__(self, directory: str | Path, if_empty: IfEmpty = "stop") -> None:
        if not isinstance(directory, (str, Path)) or not str(directory):
            raise ValueError(f"directory must be a path, not {directory!r}")
        path = Path(directory)
        super().__init__(RangeFolders(SystemFiles(), path, _SUFFIX), _lines, path, if_empty)

    @classmethod
    def on(cls, files: SystemFiles, directory: Path) -> Self:
        """The handler on another file system than the operating system's."""
        handler = cls(directory)
        handler._store = RangeFolders(files, directory, _SUFFIX)
        return handler


def _lines(batch: Batch) -> Iterator[bytes]:
    return encode_pieces(batch, _LINES, _BYTES)

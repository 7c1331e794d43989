"""The segment files of files and folders, of either dialect, and the offset at which each starts.

Strategy: the first bytes say which broker wrote a file; where they say nothing (an empty file, nonsense) its name does.
A segment of 0.7 does not say where it starts, so its name has to; one of 0.8 and later does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from consumerd.base.errors import NotFoundError
from consumerd.storage.log.archive_names import LOG_SUFFIX, parse_segment_file
from consumerd.storage.log.errors import StorageError
from consumerd.storage.log.segment import SUFFIX, parse_segment_name
from consumerd.storage.segments.dialect import HEAD_BYTES, SegmentDialect, recognise


class SegmentFile(NamedTuple):
    """A file that holds a segment."""

    path: Path
    start: int
    dialect: SegmentDialect


def find_segment_files(paths: Sequence[Path]) -> list[SegmentFile]:
    """The segment files of `paths`: files as given, directories with all below them, sorted.

    Files that a broker of 0.8 and later was about to delete or had not finished (`.deleted`, `.cleaned`, `.swap`) are
    found only when they are named. Raises NotFoundError for a path that leads to no segment, StorageError.
    """
    found: list[SegmentFile] = []
    for path in paths:
        if path.is_dir():
            segments = [segment for file in sorted(_named_below(path)) if (segment := _still_there(file)) is not None]
            if not segments:
                raise NotFoundError(
                    f"{path} holds no segments; name a broker's log directory or a partition's, with {SUFFIX} files "
                    f"(0.7) or {LOG_SUFFIX} files (0.8 and later)"
                )
            found += segments
        elif path.exists():
            found.append(_segment(path))
        else:
            raise NotFoundError(f"{path} does not exist; name segment files or directories that hold some")
    return found


def _named_below(folder: Path) -> Iterator[Path]:
    """What is named as a segment in a folder and all below it."""
    for where, folders, files in os.walk(folder):  # unlike `rglob`, it passes over a folder that is gone by now
        for name in (*folders, *files):
            if name.endswith(SUFFIX) or (name.endswith(LOG_SUFFIX) and parse_segment_file(name)):
                yield Path(where) / name


def _still_there(path: Path) -> SegmentFile | None:
    """The segment at a path that was listed; None if a running broker has deleted it since."""
    try:
        return _segment(path)
    except (NotFoundError, StorageError):
        if os.path.lexists(path):
            raise
        return None


def _segment(path: Path) -> SegmentFile:
    if not path.is_file():  # opening a FIFO waits for a writer
        raise NotFoundError(f"{path} is not a regular file, so it holds no segment; name files, or move it away")
    old, new = parse_segment_name(path.name), parse_segment_file(path.name)
    try:
        with path.open("rb", buffering=0) as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    dialect = recognise(head)
    if dialect is None:
        dialect = SegmentDialect.V07 if old is not None else SegmentDialect.V08 if new is not None else None
    if dialect is SegmentDialect.V08:
        start = new.start if new is not None else old
        return SegmentFile(path, int.from_bytes(head[:8]) if start is None else start, dialect)
    start = old if new is None else new.start
    if dialect is None or start is None:
        what = "holds no messages that can be recognised, and" if dialect is None else f"is a segment of {dialect}, but"
        raise NotFoundError(
            f"{path} {what} is not named by the offset that it starts at, as {0:020d}{SUFFIX} (0.7) and "
            f"{0:020d}{LOG_SUFFIX} (0.8 and later) are: give a copy such a name"
        )
    return SegmentFile(path, start, dialect)

"""Names on the disk of a broker since 0.8: files of segments, and the folders of partitions.

Strategy: a broker marks what it is about to do by suffixes (`.deleted`, `.cleaned`, `.swap` of files; `-delete`,
`-future`, `-stray` of folders, behind a dot and 32 hexadecimal digits), so a name tells whether a file is part of the
log, or of one that was replaced or is not complete yet.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

#: Segment files are named by the offset that they start at, 20 digits and this.
LOG_SUFFIX: Final = ".log"
_FILE = re.compile(r"([0-9]{1,20})\.log(?:\.(deleted|cleaned|swap))?")
_FOLDER = re.compile(r"(.+)-([0-9]{1,10})(?:\.([0-9a-f]{32})-(delete|future|stray))?", re.DOTALL)
_INT32, _INT64 = 1 << 31, 1 << 63


class SegmentFileName(NamedTuple):
    """The offset at which a segment starts, and what the broker was doing with the file: "" for a part of the log."""

    start: int
    state: str


class PartitionFolderName(NamedTuple):
    """Topic and partition of a folder, and what the broker was doing with it: "" for the log itself."""

    topic: str
    partition: int
    state: str


def parse_segment_file(name: str) -> SegmentFileName | None:
    """The parts of `00000000000000000000.log`, or of that with `.deleted`, `.cleaned` or `.swap`; None for others."""
    match = _FILE.fullmatch(name)
    if match is None or int(match[1]) >= _INT64:
        return None
    return SegmentFileName(int(match[1]), match[2] or "")


def parse_partition_folder(name: str) -> PartitionFolderName | None:
    """The parts of `topic-0`, perhaps with an id and `-delete`, `-future` or `-stray`; None for another folder."""
    match = _FOLDER.fullmatch(name)
    if match is None or int(match[2]) >= _INT32:
        return None
    return PartitionFolderName(match[1], int(match[2]), match[4] or "")

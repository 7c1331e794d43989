"""Damaging segment files on purpose, as disks and crashes do (spec 003; golden notes, 3).

Strategy: the file is changed where it is. A running broker serves file ranges, so its clients see the damage at once;
a start without the clean marker checks the last segment and cuts the log there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from consumerd.storage.log.dump import LogEntry, find_segments, read_segment
from consumerd.testing.errors import HarnessError

#: `payload`: a wrong CRC, the length stands. `length`: an impossible one; nothing behind it can be read. `cut`: the
#: file ends within the message.
Damage = Literal["payload", "length", "cut"]


def segments_of(directory: Path) -> list[tuple[Path, int]]:
    """The segment files of one partition's `directory` with their start offsets; none where there is no folder."""
    return find_segments([directory]) if directory.is_dir() and any(directory.glob("*.kafka")) else []


def entries_of(directory: Path) -> list[tuple[Path, int, LogEntry]]:
    """The entries of a partition's segments: (file, its start offset, entry)."""
    return [(path, start, entry) for path, start in segments_of(directory) for entry in read_segment(path, start)]


def end_of(directory: Path) -> int:
    """Return the end of a partition's log; 0 without one."""
    segments = segments_of(directory)
    return segments[-1][1] + segments[-1][0].stat().st_size if segments else 0


def damage(directory: Path, offset: int | None, how: Damage) -> int:
    """Damage the outer message at `offset`, or the last one; returns its offset. Raises HarnessError without one."""
    found = [item for item in entries_of(directory) if offset in (None, item[2].offset) and item[2].valid]
    if not found:
        where = "" if offset is None else f" at offset {offset}"
        raise HarnessError(f"{directory.name} has no message{where} to damage")
    path, start, entry = found[-1]
    begin, end = entry.offset - start, entry.next_offset - start
    with path.open("r+b") as file:
        if how == "cut":
            file.truncate((begin + end) // 2)
        elif how == "length":
            file.seek(begin)
            file.write(b"\x7f\xff\xff\xff")
        else:
            file.seek(end - 1)
            last = file.read(1)[0]
            file.seek(end - 1)
            file.write(bytes([last ^ 0xFF]))
    return entry.offset

"""From the files of a log's directory to its segments: found, checked against each other, recovered after a crash.

Strategy: names give the start of segments and sizes their end, so that only the last one can have been cut short;
it is walked (`consumerd.storage.log.recovery`) unless a clean stop noted this same end.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from consumerd.storage.log.errors import CorruptLogError
from consumerd.storage.log.files import OsFiles
from consumerd.storage.log.recovery import TailCut, recover
from consumerd.storage.log.segment import SUFFIX, Segment, parse_segment_name, segment_name


def load_segments(directory: Path, files: OsFiles, trusted_end: int | None) -> tuple[list[Segment], TailCut | None]:
    """Load the segments in `directory`, the last one recovered; return also the cut. Creates a first segment if empty.

    `trusted_end`: the end offset that a clean stop noted. Raises as `Log.open`, with all files closed.
    """
    segments: list[Segment] = []
    cut: TailCut | None = None
    try:
        for start, path in sorted(_segment_paths(directory, files)):
            file = files.open(path, create=False)
            segments.append(Segment(path, file, start, 0))
            segments[-1].size = segments[-1].flushed = file.size()
        _check_contiguous(segments)
        if not segments:
            segments.append(create_segment(directory, files, 0))
        elif segments[-1].end != trusted_end:
            cut = _mend(directory, files, segments[-1])
    except BaseException:
        for segment in segments:
            segment.close()
        raise
    return segments, cut


def create_segment(directory: Path, files: OsFiles, start: int) -> Segment:
    """Create a new, empty segment. Raises StorageError."""
    path = directory / segment_name(start)
    return Segment(path, files.open(path, create=True), start, 0)


def _segment_paths(directory: Path, files: OsFiles) -> list[tuple[int, Path]]:
    found = []
    for entry in files.entries(directory):
        if entry.is_directory or not entry.name.endswith(SUFFIX):
            continue  # 0.7.2 ignores what is not named like a segment
        start = parse_segment_name(entry.name)
        if start is None:
            raise CorruptLogError(
                f"{directory / entry.name} is named like a segment, but not by an offset; move it out of the directory"
            )
        found.append((start, directory / entry.name))
    return found


def _check_contiguous(segments: Sequence[Segment]) -> None:
    for segment, following in itertools.pairwise(segments):
        if segment.end != following.start:
            raise CorruptLogError(
                f"{segment.path} should end at offset {following.start}, where {following.path.name} begins, but ends "
                f"at {segment.end}; restore the file, or move it and all older ones of that directory away"
            )


def _mend(directory: Path, files: OsFiles, last: Segment) -> TailCut | None:
    """Recover from a crash: cut the last segment where it stops being intact, sync all the rest."""
    files.sync_directory(directory)  # a killed process may have made names that were never synced
    cut = None
    if last.size:
        cut = recover(files, last.path, last.file)
        last.size -= cut.dropped if cut else 0
        last.file.sync()  # nor its last bytes: whole, but in the page cache alone
        last.flushed = last.size
    return cut

"""The segments that `log dump` shows: named files, whatever they are called, and what archives hold, in order.

Strategy: a plain file of the disk is shown as it is (`consumerd.storage.segments.finding`), also one that no archive
would count; everything else is opened as an archive is, and nothing of it is unpacked to disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from consumerd.base.errors import NotFoundError
from consumerd.storage.archives.errors import NoSourceError, ReadFailedError
from consumerd.storage.archives.findings import ArchiveFinding, ArchiveFindingKind
from consumerd.storage.archives.opening import open_segments, told_apart
from consumerd.storage.archives.sources import Packing, SegmentSource, find_sources, is_url, kind_of, printable
from consumerd.storage.log.archive_items import ByteStream
from consumerd.storage.log.archive_names import segment_start
from consumerd.storage.log.errors import StorageError
from consumerd.storage.segments.batches import read_batches
from consumerd.storage.segments.dialect import SegmentDialect
from consumerd.storage.segments.finding import SegmentFile, find_segment_files
from consumerd.storage.segments.transactions import UncommittedRanges, transactions_of, uncommitted_by_folder


class DumpedSegment(NamedTuple):
    """A segment to be read now: its name, its folder, the offset at which it starts, its dialect, its bytes."""

    name: str
    folder: str
    start: int
    dialect: SegmentDialect
    stream: ByteStream


class DeletedSegment(NamedTuple):
    """A file that was deleted since it was found, as a running broker does. `start`: None for a tar."""

    name: str
    start: int | None

    @property
    def problem(self) -> str:
        """What is wrong, as a sentence."""
        return f"{self.name} was deleted since it was found, as a running broker does; it is not shown"


def find_dumped(paths: Sequence[str]) -> list[SegmentFile | SegmentSource]:
    """Segment files, and the sources of others, of files, directories and URLs.

    Raises NotFoundError for a path that leads to no segment, StorageError, MissingExtraError.
    """
    return [found for path in paths for found in _found(path)]


def _found(path: str) -> Sequence[SegmentFile | SegmentSource]:
    packing, is_tar = kind_of(path) or (Packing.NONE, False)
    if is_url(path) or ((packing is not Packing.NONE or is_tar) and Path(path).is_file()):
        return find_sources([path])
    if not Path(path).is_dir():
        return find_segment_files([Path(path)])
    others: list[SegmentSource] = []
    with suppress(NoSourceError):
        others += [
            each for each in find_sources([path]) if each.packing is not Packing.NONE or each.is_tar or each.part
        ]
    try:
        return [*find_segment_files([Path(path)]), *others]
    except NotFoundError:
        if not others:
            raise
        return others


def open_dumped(
    found: Sequence[SegmentFile | SegmentSource],
) -> Iterator[DumpedSegment | DeletedSegment | ArchiveFinding]:
    """The segments with their bytes, each until the next one is asked for. Raises StorageError."""
    for each in found:
        if isinstance(each, SegmentFile):
            yield from _plain(each)
            continue
        try:
            yield from _unpacked(each)
        except ReadFailedError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            yield DeletedSegment(each.name, segment_start(each.name.rpartition("/")[2]))


def _unpacked(source: SegmentSource) -> Iterator[DumpedSegment | ArchiveFinding]:
    for opened in open_segments(source):
        if isinstance(opened, ArchiveFinding):
            yield opened
            continue
        folder, _, file = opened.name.rpartition("/")
        if (start := segment_start(file)) is None:
            problem = f"{opened.name} is not named by its first message's offset; it was not read"
            yield ArchiveFinding(ArchiveFindingKind.MISNAMED, opened.name, problem)
            continue
        dialect, stream = told_apart(opened)
        yield DumpedSegment(opened.name, folder, start, dialect, stream)


def find_uncommitted(found: Sequence[SegmentFile | SegmentSource]) -> dict[str, UncommittedRanges]:
    """By folder, the transactions in segments that were not committed: all are read. Raises as `open_dumped`."""
    return uncommitted_by_folder(
        (each.folder, transactions_of(read_batches(each.stream, each.start, together=True), each.start))
        for each in open_dumped(found)
        if isinstance(each, DumpedSegment) and each.dialect is SegmentDialect.V08
    )


def _plain(segment: SegmentFile) -> Iterator[DumpedSegment | DeletedSegment]:
    path = segment.path
    try:
        with path.open("rb", buffering=0) as file:
            yield DumpedSegment(printable(str(path)), str(path.parent), segment.start, segment.dialect, file)
    except FileNotFoundError:
        yield DeletedSegment(printable(str(path)), segment.start)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error

"""A sink with exactly-once files: NDJSON, one file for each range of a partition's log that was handed over.

    <directory>/<topic>/<broker>-<partition>/<start>-<end>.ndjson        20 digits each; [start, end) in log offsets

Strategy. The files are messages and position in one: where the last range ends is where to go on (`position`), and
that wins over ZooKeeper, so nothing depends on when an offset was committed. A file is written under a temporary name,
synced, renamed, its folder synced, and only then confirmed. A crash at any step leaves either the whole range or
nothing of it. A range holds whole outermost messages, so the next one begins where fetching can begin. A batch may be
one message of a hundred kilobytes that makes half a gigabyte of lines: its file is written piece by piece.

Several members may share the storage: a partition goes from one to another at a rebalance, and the old owner may be a
zombie that was stopped in the midst of a write and wakes up when the new owner is at work. Therefore temporary files
live in a folder of their writer, and taking a partition over means, in this order:

1. make a writer's folder `.writer-<random>` of one's own,
2. rename all other writers' folders to `.fenced-<random>`, and remove what is in them,
3. sync the folder, and only then look where the ranges end.

A zombie's rename happens before step 2, and then step 3 counts its file, or it fails because the path of its temporary
file is gone. Of two that take over at one time each sees the other's folder or is seen; at most one can write then.
So ranges never overlap, and there is no lock that a zombie could hold. What is asked of the storage: POSIX renames
and directory listings as fresh as the last change made through the same client (local disks, NFS, CephFS; not S3).

Compressed messages, retention and skipped corruption can leave gaps between ranges; they are gaps of the log.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Self

import structlog

from consumerd.errors import HandlerFailedError
from consumerd.handlers.api import Handler, PartitionTakenError
from consumerd.handlers.builtin.disk import Disk, OsDisk
from consumerd.handlers.builtin.records import encode_pieces
from consumerd.handlers.threads import in_thread
from consumerd.wire.v07 import validate_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from consumerd.handlers.context import HandlerContext
    from consumerd.handlers.messages import Batch
    from consumerd.partition import TopicPartition

log = structlog.get_logger(__name__)

_WRITER = ".writer-"
_FENCED = ".fenced-"
#: Lines, and their bytes, that are written at once.
_LINES, _BYTES = 10_000, 1 << 20
_RANGE = re.compile(r"([0-9]{20})-([0-9]{20})\.ndjson")


class RangeOverlapError(HandlerFailedError):
    """A batch begins before the end of what the files hold already."""


class _InterruptedError(Exception):
    """The handler was cancelled while its thread wrote. Nobody sees it."""


@dataclass(slots=True)
class _Folder:
    """A partition's folder that this process has taken over."""

    path: Path
    writer: Path
    #: Where the ranges end; None while there is none.
    end: int | None
    #: The last file written by us: a batch may come again when its confirmation was lost (cancelled, timed out).
    last: str | None = None


class FilesHandler(Handler):
    """Writes each batch to a file of its own; see the module's text for names and promises.

    Options: `directory`, which is made when missing. Raises PartitionTakenError, RangeOverlapError, and OSError for
    what the disk says (full, gone, not permitted), which the retry policy deals with: nothing is stored then.
    """

    def __init__(self, directory: str | Path) -> None:
        if not isinstance(directory, (str, Path)) or not str(directory):
            raise ValueError(f"directory must be a path, not {directory!r}")
        self._directory = Path(directory)
        self._disk: Disk = OsDisk()
        self._folders: dict[TopicPartition, _Folder] = {}

    @classmethod
    def on(cls, disk: Disk, directory: Path) -> Self:
        """The handler on another file system than the operating system's."""
        handler = cls(directory)
        handler._disk = disk
        return handler

    async def start(self, context: HandlerContext) -> None:
        """Make the directory, so that a wrong one is found before the group is joined."""
        try:
            await in_thread(lambda: self._disk.make_directory(self._directory))
        except OSError as error:
            raise HandlerFailedError(f"cannot create the directory {self._directory}: {error.strerror}.") from error

    async def stop(self) -> None:
        """Remove the (empty) folders of this writer."""
        writers = [folder.writer for folder in self._folders.values()]
        self._folders.clear()
        await in_thread(lambda: self._remove(writers))

    async def position(self, partition: TopicPartition) -> int | None:
        """Take the partition's folder over, and tell where its ranges end; None for a partition without files."""
        return (await self._taken(partition)).end

    async def handle(self, batch: Batch) -> None:
        """Store the batch; when it returns, the file survives a loss of power.

        A cancellation leaves the whole range or, where that would take long, nothing of it.
        """
        folder = self._folders.get(batch.partition) or await self._taken(batch.partition)
        if batch.next_offset > batch.start_offset:
            cancelled = threading.Event()
            await in_thread(lambda: self._store(folder, batch, cancelled), interrupt=cancelled.set)

    async def _taken(self, partition: TopicPartition) -> _Folder:
        self._folders.pop(partition, None)
        validate_topic(partition.topic)  # it names a folder: nothing may lead out of ours
        path = self._directory / partition.topic / partition.name
        folder = await in_thread(lambda: self._take_over(path))
        log.info("files_position_found", partition=str(partition), folder=str(path), position=folder.end)
        self._folders[partition] = folder
        return folder

    # In a thread.

    def _remove(self, writers: list[Path]) -> None:
        for writer in writers:
            self._disk.remove_directory(writer)

    def _take_over(self, path: Path) -> _Folder:
        disk = self._disk
        disk.make_directory(path)
        writer = disk.make_unique_directory(path, _WRITER)
        for name in disk.names(path):
            if name.startswith(_WRITER) and name != writer.name:
                log.info("writer_fenced", folder=str(path), writer=name)
                try:
                    disk.rename(path / name, path / name.replace(_WRITER, _FENCED))
                except FileNotFoundError:
                    continue  # somebody else takes over as well, and will find our folder
        for name in disk.names(path):
            if name.startswith(_FENCED):
                self._clear(path / name)
        # A range that its writer renamed but did not live to sync must not vanish after we go on behind it.
        disk.sync_directory(path)
        return _Folder(path, writer, _end_of_ranges(path, disk.names(path)))

    def _clear(self, fenced: Path) -> None:
        try:
            for name in self._disk.names(fenced):
                self._disk.remove(fenced / name)
        except FileNotFoundError:
            return  # somebody else was faster
        self._disk.remove_directory(fenced)

    def _store(self, folder: _Folder, batch: Batch, cancelled: threading.Event) -> None:
        name = f"{batch.start_offset:020}-{batch.next_offset:020}.ndjson"
        pieces = _lines(batch, cancelled)
        target = folder.path / name
        if folder.end is not None and batch.start_offset < folder.end:
            if name != folder.last or not self._disk.holds(target, pieces):
                raise RangeOverlapError(
                    f"offset {batch.start_offset} of {batch.partition} is below {folder.end}, where the files in "
                    f"{folder.path} end: the topic was recreated or its log was truncated; move the folder away to "
                    "store it again."
                )
        else:
            try:
                self._disk.write(folder.writer / name, pieces)
                self._disk.rename(folder.writer / name, target)
            except FileNotFoundError as error:
                raise PartitionTakenError(
                    f"another member took over {batch.partition} while this one wrote {name} to {folder.path} "
                    "(or that folder was removed); nothing was stored."
                ) from error
            except _InterruptedError:
                self._disk.remove(folder.writer / name)
                raise
            self._disk.sync_directory(folder.path)
            folder.end, folder.last = batch.next_offset, name
        batch.mark(len(batch))  # also seen by whoever cancelled us meanwhile


def _lines(batch: Batch, cancelled: threading.Event) -> Iterator[bytes]:
    """The batch's file, in pieces. Raises _InterruptedError before one that nobody waits for any more."""
    for count, piece in enumerate(encode_pieces(batch, _LINES, _BYTES)):
        if count and cancelled.is_set():
            raise _InterruptedError
        yield piece


def _end_of_ranges(path: Path, names: Iterable[str]) -> int | None:
    """The largest end of all ranges; overlaps, which somebody else must have made, are only reported."""
    found = sorted((int(match[1]), int(match[2])) for name in names if (match := _RANGE.fullmatch(name)))
    for one, other in pairwise(found):
        if other[0] < one[1]:
            log.warning("overlapping_ranges", folder=str(path), first=one, second=other)
    return max((end for _, end in found), default=None)

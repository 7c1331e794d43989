"""Ranges in folders of a POSIX file system, which members may share.

Strategy. A file is written under a temporary name, synced, renamed, its folder synced, and only then confirmed. A crash
at any step leaves either the whole range or nothing of it.

A partition goes from one member to another at a rebalance, and the old owner may be a zombie that was stopped during
a write and wakes up when the new owner is at work. Therefore temporary files live in a folder of their writer,
and taking a partition over means, in this order:

1. make a writer's folder `.writer-<random>` of one's own,
2. rename all other writers' folders to `.fenced-<random>`, and remove their files,
3. sync the folder, and only then look where the ranges end.

A zombie's rename happens before step 2, and then step 3 counts its file, or it fails because the path of its temporary
file is gone. Of two that take over at one time each sees the other's folder or is seen; at most one can write then.
So ranges never overlap, and there is no lock that a zombie could hold. Requirements on the storage: POSIX renames
and directory listings as fresh as the last change made through the same client (local disks, NFS, CephFS; not S3).

A file system that is unmounted leaves an empty directory under the same path, in which new folders would be made.
Therefore the device and inode of the directory must stay those of the start.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from consumerd.base.errors import HandlerFailedError
from consumerd.base.files import SystemFiles
from consumerd.handlers.api import PartitionTakenError
from consumerd.handlers.builtin.range_logs import StoredLog, last_log
from consumerd.handlers.builtin.ranges import InterruptedRangeError, overlap
from consumerd.handlers.disk_full import is_disk_full
from consumerd.handlers.messages import Batch

log = structlog.get_logger(__name__)

_WRITER = ".writer-"
_FENCED = ".fenced-"


@dataclass(slots=True)
class WriterFolder:
    """A partition's folder that this process has taken over, and the folder in it for temporary files."""

    path: Path
    writer: Path
    stored: StoredLog
    #: The last file written by us: a batch may come again when its confirmation was lost (cancelled, timed out).
    last: str | None = None
    #: A note that no file follows yet.
    pending: str | None = None


class RangeFolders:
    """A `RangeStore` below `directory`, for files whose names end with `suffix`."""

    def __init__(self, files: SystemFiles, directory: Path, suffix: str) -> None:
        self._files = files
        self._directory = directory
        self._suffix = suffix
        self._identity: object = None

    def prepare(self) -> None:
        try:
            self._files.make_directory(self._directory)
            self._identity = self._files.identity(self._directory)
        except OSError as error:
            if is_disk_full(error) and error.errno != errno.EROFS:  # read-only from the start is a wrong path
                raise
            raise HandlerFailedError(
                f"cannot create the directory {self._directory}: {error.strerror}; check options.directory."
            ) from error

    def has(self, topic: str) -> bool:
        self._require_same_directory()
        try:
            self._files.identity(self._directory / topic)
        except FileNotFoundError:
            return False
        return True

    def _require_same_directory(self) -> None:
        """Raise HandlerFailedError where the directory is not that of the start."""
        if self._identity is None:
            return
        try:
            found = self._files.identity(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found != self._identity:
            raise HandlerFailedError(
                f"the directory {self._directory} is {'missing' if found is None else 'another one'} since the start: "
                "its file system was unmounted, or it was replaced. Nothing was stored there or committed: mount it "
                "again, then start consumerd."
            )

    def give_back(self, folders: Iterable[WriterFolder]) -> None:
        """Remove the (empty) folders of this writer."""
        for folder in folders:
            self._files.remove_directory(folder.writer)

    def take_over(self, topic: str, partition: str) -> WriterFolder:
        files, path = self._files, self._directory / topic / partition
        self._require_same_directory()
        files.make_directory(path)
        writer = files.make_unique_directory(path, _WRITER)
        for name in self._names(path):
            if name.startswith(_WRITER) and name != writer.name:
                log.info("writer_fenced", folder=str(path), writer=name)
                try:
                    files.rename(path / name, path / name.replace(_WRITER, _FENCED))
                except FileNotFoundError:
                    continue  # another process takes over as well, and will find our folder
        for name in self._names(path):
            if name.startswith(_FENCED):
                self._clear(path / name)
        # A range that its writer renamed but did not live to sync must not vanish after we continue behind it.
        files.sync_directory(path)
        stored, pending = last_log(path, self._names(path), self._suffix)
        for name in pending:
            files.remove(path / name)
        self._require_same_directory()
        return WriterFolder(path, writer, stored)

    def _names(self, path: Path) -> list[str]:
        return [entry.name for entry in self._files.entries(path)]

    def _clear(self, fenced: Path) -> None:
        try:
            for name in self._names(fenced):
                self._files.remove(fenced / name)
        except FileNotFoundError:
            return  # another process was faster
        self._files.remove_directory(fenced)

    def store(self, folder: WriterFolder, batch: Batch, pieces: Callable[[], Iterator[bytes]]) -> None:
        stored = folder.stored.at(batch)
        name = stored.range_name(batch, self._suffix)
        target = folder.path / name
        if stored.end is not None and batch.start_offset < stored.end:
            if name != folder.last or not self._files.holds(target, pieces()):
                raise overlap(batch, stored.end, folder.path)
            return
        try:
            self._take_note(folder, stored.note(batch))
            self._files.write(folder.writer / name, pieces())
            self._files.rename(folder.writer / name, target)
        except FileNotFoundError as error:
            self._require_same_directory()
            raise PartitionTakenError(
                f"another member took over {batch.partition} while this one wrote {name} to {folder.path} "
                "(or that folder was removed); nothing was stored."
            ) from error
        except (InterruptedRangeError, OSError):
            with contextlib.suppress(OSError):  # a rest of it takes up room, and is removed at the next takeover
                self._files.remove(folder.writer / name)
            raise
        self._files.sync_directory(folder.path)
        folder.stored, folder.last, folder.pending = stored.with_batch(batch), name, None

    def _take_note(self, folder: WriterFolder, note: str | None) -> None:
        """Let the folder have this note, durably, and none that came to nothing: only its writer can."""
        files, former = self._files, folder.pending
        if former is not None and former != note:
            files.remove(folder.path / former)
        folder.pending = note
        if note is not None:
            files.write(folder.writer / note, [])
            files.rename(folder.writer / note, folder.path / note)
            files.sync_directory(folder.path)

"""The files of the log: `consumerd.base.files` with errors that name what the log was doing, and segment files.

Strategy: the log needs a handful of operations on a directory and on an open file, and each defines what survives a
loss of power when it returns. All calls block; the broker decides which of them run on the loop (a small `write_at`
into the page cache) and which in a thread (everything that syncs or creates).

**Invariant**: a name is durable before anything that relies on it is: a directory before its entries, a segment
before its bytes count as flushed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from consumerd.base.files import FileEntry, Refusals, StrPath, SystemCalls, SystemFiles, read_all, write_all
from consumerd.storage.log.errors import DirectoryInUseError, StorageError

#: Held while a file is opened again: two threads that use it would each open it. One for all: it is held shortly.
_opening = threading.Lock()


class OsSegmentFile:
    """One open segment file. `rest` closes its descriptor, any use opens it again.

    Positions are bytes from the start of the file. All calls raise StorageError.
    """

    __slots__ = ("_closed", "_descriptor", "_path", "_system", "_used")

    def __init__(self, path: Path, fd: int, system: SystemCalls) -> None:
        self._path = path
        self._descriptor: int | None = fd
        self._system = system
        self._used = True
        self._closed = False

    @property
    def _fd(self) -> int:
        self._used = True
        descriptor = self._descriptor
        if descriptor is None:
            with _opening:
                if self._closed:
                    raise OSError(errno.EBADF, os.strerror(errno.EBADF))
                if self._descriptor is None:
                    self._descriptor = self._system.open(self._path, os.O_RDWR)
                descriptor = self._descriptor
        return descriptor

    def fileno(self) -> int:
        """The descriptor that `os.sendfile` reads from."""
        with _refusals("open", self._path):
            return self._fd

    def size(self) -> int:
        with _refusals("read the size of", self._path):
            return self._system.status(self._fd).st_size

    def modified_ms(self) -> int:
        """Modification time in milliseconds since the Unix epoch, rounded down (golden notes, 3: offsets by time).

        Without a descriptor: retention asks this of all segments together.
        """
        with _refusals("read the time of", self._path):
            if self._closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            return self._system.status(self._path).st_mtime_ns // 1_000_000

    def read_at(self, position: int, length: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file."""
        with _refusals("read", self._path):
            return read_all(self._system, self._fd, length, position)

    def cached(self, position: int, length: int) -> bool:
        """Whether this range, as far as its ends tell, can be read without waiting for the disk."""
        try:
            fd = self.fileno()
        except StorageError:
            return True  # its readers get the error
        # The kernel reads ahead in order, so what lies between two cached ends is hardly ever missing.
        return self._system.cached(fd, position + length - 1) and self._system.cached(fd, position)

    def write_at(self, position: int, data: bytes) -> None:
        """Write all of `data`, or cut the file back to `position` and raise StorageError."""
        try:  # not `_refusals`, which takes longer than the rest for small sets
            try:
                write_all(self._system, self._fd, data, position)
            except OSError:
                # Half a set must not stay: the next append would bury it in the middle of the file.
                self._system.truncate(self._fd, position)
                raise
        except OSError as error:
            _refuse("append to", self._path, error)

    def truncate(self, size: int) -> None:
        """Cut the file and make the cut durable."""
        with _refusals("truncate", self._path):
            self._system.truncate(self._fd, size)
            self._system.sync(self._fd)

    def sync(self) -> None:
        """Make everything written so far durable."""
        with _refusals("sync", self._path):
            self._system.sync_data(self._fd)

    def rest(self, *, at_once: bool = False) -> None:
        """Close the file until it is used again, unless it was used since the last call; `at_once`: in any case.

        Only while nothing else uses it, and only when all written bytes are synced.
        """
        used, self._used = self._used and not at_once, False
        if not used:
            self._let_go()

    def close(self) -> None:
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with _refusals("close", self._path):
                self._system.close(descriptor)


class OsFiles(SystemFiles):
    """The directory operations of the log. All raise StorageError."""

    def open(self, path: Path, *, create: bool) -> OsSegmentFile:
        """Open for reading and writing; `create` makes a new file durably and refuses one that exists."""
        with self._errors("create" if create else "open", path):
            fd = self.system.open(path, os.O_RDWR | ((os.O_CREAT | os.O_EXCL) if create else 0))
            try:
                if create:
                    self._sync_parent(path)
            except OSError:
                self.system.close(fd)
                with contextlib.suppress(OSError):  # or the next attempt finds a file of unknown content
                    self.system.remove(path)
                raise
            return OsSegmentFile(path, fd, self.system)

    def remove(self, path: StrPath) -> None:
        """Remove a file, durably. A missing one is fine."""
        super().remove(path)
        with self._errors("remove", path):
            self._sync_parent(path)

    def replace(self, path: StrPath, data: bytes | Iterable[bytes], *, partial: StrPath | None = None) -> None:
        """As `SystemFiles.replace`, with one name: what a crash leaves is overwritten by the next attempt."""
        super().replace(path, data, partial=partial or Path(f"{path}.tmp"))

    def write(self, path: StrPath, pieces: Iterable[bytes]) -> None:
        """The former name of `replace`."""
        self.replace(path, pieces)

    def _refuse(self, verb: str, path: StrPath, error: OSError) -> None:
        _refuse(verb, path, error)


def _refusals(verb: str, path: Path) -> Refusals:
    return Refusals(_refuse, verb, path)


def _refuse(verb: str, path: StrPath, error: OSError) -> NoReturn:
    if isinstance(error, BlockingIOError):
        raise DirectoryInUseError(
            f"the log directory {path} is in use by another broker process; stop it or choose another one"
        ) from error
    raise StorageError(f"cannot {verb} {path}: {error.strerror or error}") from error


#: Former names.
DirectoryEntry = FileEntry
Files = OsFiles
SegmentFile = OsSegmentFile

"""The port between the log and its files, and its implementation on the operating system.

Strategy: the log needs a handful of operations on a directory and on an open file, and each defines what survives a
loss of power when it returns; those are the port. `OsFiles` makes them of the system's calls in an order that keeps the
promise. All calls block; the broker decides which of them run on the loop (a small `write_at` into the page cache) and
which in a thread (everything that syncs or creates).

**Invariant**: a name is durable before anything that relies on it is: a directory before its entries, a segment
before its bytes count as flushed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import TYPE_CHECKING, Protocol

from consumerd.storage.log.errors import DirectoryInUseError, StorageError
from consumerd.storage.log.system import DirectoryEntry, OsSystemCalls

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from consumerd.storage.log.system import SystemCalls


class SegmentFile(Protocol):
    """One open segment file. Positions are bytes from the start of the file."""

    def fileno(self) -> int:
        """The descriptor that `os.sendfile` reads from."""
        ...

    def size(self) -> int: ...

    def modified_ms(self) -> int:
        """Modification time in milliseconds since the Unix epoch, rounded down (golden notes, 3: offsets by time)."""
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file."""
        ...

    def cached(self, position: int, length: int) -> bool:
        """Whether this range, as far as its ends tell, can be read without waiting for the disk."""
        ...

    def write_at(self, position: int, data: bytes) -> None:
        """Write all of `data`, or cut the file back to `position` and raise StorageError."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file and make the cut durable."""
        ...

    def sync(self) -> None:
        """Make everything written so far durable."""
        ...

    def rest(self, *, at_once: bool = False) -> None:
        """Close the file until it is used again, unless it was used since the last call; `at_once`: in any case.

        Only while nothing else uses it, and only when all written bytes are synced.
        """
        ...

    def close(self) -> None: ...


class Files(Protocol):
    """The directory operations of the log. All raise StorageError."""

    def entries(self, directory: Path) -> list[DirectoryEntry]:
        """Return the entries of a directory, sorted by name."""
        ...

    def make_directory(self, directory: Path) -> None:
        """Create it and its missing parents, durably. An existing one is made durable."""
        ...

    def sync_directory(self, directory: Path) -> None:
        """Make the names in it durable: those that a killed process created may not have been synced."""
        ...

    def open(self, path: Path, *, create: bool) -> SegmentFile:
        """Open for reading and writing; `create` makes a new file durably and refuses one that exists."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file, durably. A missing one is fine."""
        ...

    def read(self, path: Path) -> bytes | None:
        """Read a whole small file; None if there is none."""
        ...

    def write(self, path: Path, pieces: Iterable[bytes]) -> None:
        """Replace a file by these bytes, durably and atomically."""
        ...

    def lock(self, directory: Path) -> contextlib.AbstractContextManager[None]:
        """Lock a directory for this process until the context ends. Raises DirectoryInUseError."""
        ...


#: Held while a file is opened again: two threads that use it would each open it. One for all: it is held shortly.
_opening = threading.Lock()


class OsSegmentFile:
    """A segment file of the operating system. `rest` closes its descriptor, any use opens it again."""

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
        with _refusals("open", self._path):
            return self._fd

    def size(self) -> int:
        with _refusals("read the size of", self._path):
            return self._system.status(self._fd).st_size

    def modified_ms(self) -> int:
        """As the port's. Over a descriptor of its own, closed at once: retention asks this of all segments together."""
        with _refusals("read the time of", self._path):
            if self._closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            descriptor = self._system.open(self._path, os.O_RDONLY)
            try:
                return self._system.status(descriptor).st_mtime_ns // 1_000_000
            finally:
                self._system.close(descriptor)

    def read_at(self, position: int, length: int) -> bytes:
        with _refusals("read", self._path):
            data = self._system.read(self._fd, length, position)
            while data and len(data) < length:  # Linux moves at most 2 GiB per call, and signals may cut it shorter
                more = self._system.read(self._fd, length - len(data), position + len(data))
                if not more:
                    break
                data += more
            return data

    def cached(self, position: int, length: int) -> bool:
        try:
            fd = self.fileno()
        except StorageError:
            return True  # its readers get the error
        # The kernel reads ahead in order, so what lies between two cached ends is hardly ever missing.
        return self._system.cached(fd, position + length - 1) and self._system.cached(fd, position)

    def write_at(self, position: int, data: bytes) -> None:
        try:  # not `_refusals`, which takes longer than the rest for small sets
            try:
                _write(self._system, self._fd, data, position)
            except OSError:
                # Half a set must not stay: the next append would bury it in the middle of the file.
                self._system.truncate(self._fd, position)
                raise
        except OSError as error:
            raise _refused("append to", self._path, error) from error

    def truncate(self, size: int) -> None:
        with _refusals("truncate", self._path):
            self._system.truncate(self._fd, size)
            self._system.sync(self._fd)

    def sync(self) -> None:
        with _refusals("sync", self._path):
            self._system.sync_data(self._fd)

    def rest(self, *, at_once: bool = False) -> None:
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


_READ = 1 << 20


class OsFiles:
    """The operating system's file system behind the `Files` port."""

    def __init__(self, system: SystemCalls | None = None) -> None:
        self._system = system or OsSystemCalls()

    def entries(self, directory: Path) -> list[DirectoryEntry]:
        with _refusals("list", directory):
            return sorted(self._system.entries(directory))

    def make_directory(self, directory: Path) -> None:
        with _refusals("create", directory):
            missing = []
            while not self._system.is_directory(directory):
                missing.append(directory)
                directory = directory.parent
            # A process that was killed here before us may have left the last one it made without a sync.
            with contextlib.suppress(PermissionError):  # a directory that we cannot list was not made by us
                self._sync_directory(directory.parent)
            for path in reversed(missing):
                try:
                    self._system.make_directory(path)
                except FileExistsError:
                    if not self._system.is_directory(path):  # else another one was faster
                        raise
                self._sync_directory(path.parent)

    def sync_directory(self, directory: Path) -> None:
        with _refusals("sync", directory):
            self._sync_directory(directory)

    def _sync_directory(self, directory: Path) -> None:
        with self._opened(directory, os.O_RDONLY | os.O_DIRECTORY) as fd:
            self._system.sync(fd)

    @contextlib.contextmanager
    def _opened(self, path: Path, flags: int) -> Iterator[int]:
        fd = self._system.open(path, flags)
        try:
            yield fd
        finally:
            self._system.close(fd)

    def open(self, path: Path, *, create: bool) -> OsSegmentFile:
        with _refusals("create" if create else "open", path):
            fd = self._system.open(path, os.O_RDWR | ((os.O_CREAT | os.O_EXCL) if create else 0))
            try:
                if create:
                    self._sync_directory(path.parent)
            except OSError:
                self._system.close(fd)
                with contextlib.suppress(OSError):  # or the next attempt finds a file of unknown content
                    self._system.remove(path)
                raise
            return OsSegmentFile(path, fd, self._system)

    def remove(self, path: Path) -> None:
        with _refusals("remove", path):
            with contextlib.suppress(FileNotFoundError):
                self._system.remove(path)
            self._sync_directory(path.parent)

    def read(self, path: Path) -> bytes | None:
        with _refusals("read", path):
            data = b""
            try:
                with self._opened(path, os.O_RDONLY) as fd:
                    while more := self._system.read(fd, _READ, len(data)):
                        data += more
            except FileNotFoundError:
                return None
            return data

    def write(self, path: Path, pieces: Iterable[bytes]) -> None:
        partial = path.with_name(path.name + ".tmp")
        with _refusals("write", path):
            with self._opened(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
                position = 0
                for piece in pieces:
                    position = _write(self._system, fd, piece, position)
                self._system.sync(fd)
            self._system.replace(partial, path)
            self._sync_directory(path.parent)

    @contextlib.contextmanager
    def lock(self, directory: Path) -> Iterator[None]:
        # The directory itself is locked: no file is left behind, and a dead process never leaves a stale lock.
        with _refusals("lock", directory):
            fd = self._system.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                self._system.lock(fd)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
                    raise StorageError(f"cannot lock {directory}: {error.strerror}") from error
                raise DirectoryInUseError(
                    f"the log directory {directory} is in use by another broker process; stop it or choose another one"
                ) from error
            yield
        finally:
            self._system.close(fd)


def _write(system: SystemCalls, fd: int, data: bytes, position: int) -> int:
    """Write all of `data`; returns the position after it."""
    written = system.write(fd, data, position)
    while written < len(data):
        written += system.write(fd, memoryview(data)[written:], position + written)
    return position + written


@contextlib.contextmanager
def _refusals(verb: str, path: Path) -> Iterator[None]:
    """Turn the operating system's error into a StorageError that names the file."""
    try:
        yield
    except OSError as error:
        raise _refused(verb, path, error) from error


def _refused(verb: str, path: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot {verb} {path}: {error.strerror or error}")

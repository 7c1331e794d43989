"""The narrow port between the log and the file system, and the real thing behind it.

Strategy: the log needs eight operations on a directory and six on an open file, so those are the port; a simulator
can stand in with its own page cache and lose what was never synced. All calls block; the broker decides which of them
run on the loop (a small `write_at` into the page cache) and which in a thread (everything that syncs or creates).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import TYPE_CHECKING, NamedTuple, Protocol

from consumerd.storage.errors import DirectoryInUseError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Entry(NamedTuple):
    """One name in a directory."""

    name: str
    is_directory: bool


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
        """Up to `length` bytes; fewer only at the end of the file."""
        ...

    def write_at(self, position: int, data: bytes) -> None:
        """Write all of `data`, or cut the file back to `position` and raise StorageError."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file and make the cut durable."""
        ...

    def sync(self) -> None:
        """Return when everything written so far survives a loss of power."""
        ...

    def close(self) -> None: ...


class Files(Protocol):
    """The directory operations of the log. All raise StorageError."""

    def entries(self, directory: Path) -> list[Entry]:
        """What is in a directory, sorted by name."""
        ...

    def make_directory(self, directory: Path) -> None:
        """Create it and its missing parents, durably. An existing one is fine."""
        ...

    def open(self, path: Path, *, create: bool) -> SegmentFile:
        """Open for reading and writing; `create` makes a new file durably and refuses one that exists."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file, durably. A missing one is fine."""
        ...

    def read(self, path: Path) -> bytes | None:
        """A whole small file, or None where there is none."""
        ...

    def write(self, path: Path, data: bytes) -> None:
        """Replace a small file durably and atomically."""
        ...

    def lock(self, directory: Path) -> contextlib.AbstractContextManager[None]:
        """Hold a directory for this process until the context ends. Raises DirectoryInUseError."""
        ...


#: fdatasync flushes the size together with the data, which is all that reading it back needs; macOS lacks it.
_sync_data = getattr(os, "fdatasync", os.fsync)


class OsSegmentFile:
    """A segment file of the operating system."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        with _refusals("read the size of", self._path):
            return os.fstat(self._fd).st_size

    def modified_ms(self) -> int:
        with _refusals("read the time of", self._path):
            return os.fstat(self._fd).st_mtime_ns // 1_000_000

    def read_at(self, position: int, length: int) -> bytes:
        with _refusals("read", self._path):
            data = os.pread(self._fd, length, position)
            while data and len(data) < length:  # Linux moves at most 2 GiB per call, and signals may cut it shorter
                more = os.pread(self._fd, length - len(data), position + len(data))
                if not more:
                    break
                data += more
            return data

    def write_at(self, position: int, data: bytes) -> None:
        with _refusals("append to", self._path):
            try:
                written = os.pwrite(self._fd, data, position)
                while written < len(data):
                    written += os.pwrite(self._fd, memoryview(data)[written:], position + written)
            except OSError:
                # Half a set must not stay: the next append would bury it in the middle of the file.
                os.ftruncate(self._fd, position)
                raise

    def truncate(self, size: int) -> None:
        with _refusals("truncate", self._path):
            os.ftruncate(self._fd, size)
            os.fsync(self._fd)

    def sync(self) -> None:
        with _refusals("sync", self._path):
            _sync_data(self._fd)

    def close(self) -> None:
        with _refusals("close", self._path):
            os.close(self._fd)


class OsFiles:
    """The operating system's file system behind the `Files` port."""

    def entries(self, directory: Path) -> list[Entry]:
        with _refusals("list", directory), os.scandir(directory) as found:
            return sorted(Entry(entry.name, entry.is_dir()) for entry in found)

    def make_directory(self, directory: Path) -> None:
        with _refusals("create", directory):
            missing = []
            while not directory.is_dir():
                missing.append(directory)
                directory = directory.parent
            for path in reversed(missing):
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                _sync_directory(path.parent)

    def open(self, path: Path, *, create: bool) -> OsSegmentFile:
        with _refusals("create" if create else "open", path):
            flags = os.O_RDWR | os.O_CLOEXEC | ((os.O_CREAT | os.O_EXCL) if create else 0)
            fd = os.open(path, flags, 0o644)
            try:
                if create:
                    _sync_directory(path.parent)
            except OSError:
                os.close(fd)
                raise
            return OsSegmentFile(path, fd)

    def remove(self, path: Path) -> None:
        with _refusals("remove", path):
            path.unlink(missing_ok=True)
            _sync_directory(path.parent)

    def read(self, path: Path) -> bytes | None:
        with _refusals("read", path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def write(self, path: Path, data: bytes) -> None:
        partial = path.with_name(path.name + ".tmp")
        with _refusals("write", path):
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            _sync_directory(path.parent)

    @contextlib.contextmanager
    def lock(self, directory: Path) -> Iterator[None]:
        # The directory itself is locked: no file is left behind, and a dead process never leaves a stale lock.
        with _refusals("open", directory):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
                    raise StorageError(f"cannot lock {directory}: {error.strerror}") from error
                raise DirectoryInUseError(
                    f"the log directory {directory} is in use by another broker process; stop it or choose another one"
                ) from error
            yield
        finally:
            os.close(fd)


def _sync_directory(directory: Path) -> None:
    """Make created, renamed and removed names in `directory` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _refusals(verb: str, path: Path) -> Iterator[None]:
    """Turn what the operating system says into a StorageError that names the file."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {verb} {path}: {error.strerror or error}") from error

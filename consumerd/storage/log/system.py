"""The system calls under the log's files, as a parameter (spec 003, 5.5 "Guarantees").

Strategy: which bytes and names survive a loss of power depends on the order of writes and syncs, so that order has to
be run in tests, not a fake of it. `OsFiles` therefore makes all changes to a disk through these calls; the system's own
are one implementation, a disk in memory that forgets unsynced changes is another.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from pathlib import Path


class DirectoryEntry(NamedTuple):
    """One name in a directory."""

    name: str
    is_directory: bool


class FileStatus(Protocol):
    """The used part of `os.stat_result`: size in bytes, modification time in nanoseconds since the Unix epoch."""

    @property
    def st_size(self) -> int: ...

    @property
    def st_mtime_ns(self) -> int: ...


class SystemCalls(Protocol):
    """The calls of `os` that the log uses, with their meaning there. All raise OSError."""

    def open(self, path: Path, flags: int) -> int:
        """As `os.open`, not inherited by children; a new file has mode 0644."""
        ...

    def close(self, fd: int) -> None: ...

    def status(self, fd: int) -> FileStatus: ...

    def read(self, fd: int, length: int, position: int) -> bytes: ...

    def write(self, fd: int, data: bytes | memoryview, position: int) -> int: ...

    def truncate(self, fd: int, size: int) -> None: ...

    def sync(self, fd: int) -> None:
        """Make all of a file, or the names in a directory, durable."""
        ...

    def sync_data(self, fd: int) -> None:
        """Make a file's bytes and its size durable."""
        ...

    def make_directory(self, path: Path) -> None: ...

    def is_directory(self, path: Path) -> bool: ...

    def entries(self, directory: Path) -> list[DirectoryEntry]:
        """Return the entries of a directory, in any order."""
        ...

    def remove(self, path: Path) -> None: ...

    def replace(self, source: Path, target: Path) -> None: ...

    def lock(self, fd: int) -> None:
        """Take an exclusive lock that ends with the descriptor. Raises BlockingIOError if another holds one."""
        ...

    def cached(self, fd: int, position: int) -> bool:
        """Whether the byte at `position` can be read without the disk; True where the system cannot tell."""
        ...


class OsSystemCalls:
    """The operating system."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    close = staticmethod(os.close)
    status = staticmethod(os.fstat)
    read = staticmethod(os.pread)
    write = staticmethod(os.pwrite)
    truncate = staticmethod(os.ftruncate)
    sync = staticmethod(os.fsync)
    #: fdatasync flushes the size together with the data, which is all that reading it back needs; macOS lacks it.
    sync_data = staticmethod(getattr(os, "fdatasync", os.fsync))

    def make_directory(self, path: Path) -> None:
        path.mkdir()

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def entries(self, directory: Path) -> list[DirectoryEntry]:
        with os.scandir(directory) as found:
            return [DirectoryEntry(entry.name, entry.is_dir()) for entry in found]

    def remove(self, path: Path) -> None:
        path.unlink()

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def lock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def cached(self, fd: int, position: int) -> bool:
        if _NO_WAIT is None:
            return True
        try:
            os.preadv(fd, [bytearray(1)], position, _NO_WAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True  # not every file system supports the flag; a broken disk fails when it is read
        return True


_NO_WAIT: int | None = getattr(os, "RWF_NOWAIT", None)  # Linux

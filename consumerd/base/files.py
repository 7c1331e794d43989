"""Files and directories, with what survives a loss of power: one port, and the operating system behind it.

Strategy: what survives depends on the order of writes and syncs, so that order stands here, once: bytes are synced
before their file gets its name, and a name is synced before anything relies on it. `SystemFiles` makes its calls
through `SystemCalls`: tests run the same order on a disk in memory, which forgets what was not synced and fails when it
is asked to. A failed sync is not repaired by the next one, so what it was for is written again.

That a directory exists does not make its name durable: the process that made it may have been killed, or have got an
error, before its sync. So the name of the first directory that is there is synced, too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

StrPath = str | Path

#: Errors of directories in which no process of ours can have made names: not permitted, read-only.
_NOT_OURS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
#: Errors of file systems without hard links.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
#: Bytes that are read at once.
_READ: Final = 1 << 20


class FileEntry(NamedTuple):
    """One name in a directory. `size` in bytes, `changed` in seconds since the Unix epoch: 0 if not asked for."""

    name: str
    is_directory: bool
    size: int = 0
    changed: float = 0.0


class Files(Protocol):
    """The operations that every file system has: this machine's, and those that Hadoop knows. Calls block.

    A path is one of the system itself, or a URL as the file system writes it. What a call has returned from is durable,
    apart from removals. Raises OSError, or the error of the file system.
    """

    def entries(self, path: StrPath, *, missing_ok: bool = False, sized: bool = False) -> list[FileEntry]:
        """The entries of a directory, by name. `sized`: with sizes and times, for a call each on this machine.

        A missing directory raises FileNotFoundError, or the error of the file system; `missing_ok`: it has none.
        """
        ...

    def exists(self, path: StrPath) -> bool:
        """Whether there is a file or directory."""
        ...

    def read(self, path: StrPath) -> bytes | None:
        """The bytes of a file; None if it does not exist."""
        ...

    def create(self, path: StrPath, data: bytes) -> bool:
        """Create the file atomically with all its bytes; False if it exists."""
        ...

    def replace(self, path: StrPath, data: bytes) -> None:
        """Create or replace the file atomically."""
        ...

    def sync_directory(self, path: StrPath) -> None:
        """Make durable which names are in a directory."""
        ...

    def make_directory(self, path: StrPath) -> None:
        """Make it and its missing parents, durably. An existing one is made durable."""
        ...

    def remove_tree(self, path: StrPath) -> None:
        """Remove a file, or a directory with its content, if it exists."""
        ...


class FileStatus(Protocol):
    """The used part of `os.stat_result`: size in bytes, modification time in nanoseconds since the Unix epoch."""

    @property
    def st_size(self) -> int: ...

    @property
    def st_mtime_ns(self) -> int: ...

    @property
    def st_ino(self) -> int: ...

    @property
    def st_dev(self) -> int: ...

    @property
    def st_mode(self) -> int: ...


class SystemCalls(Protocol):
    """The calls of `os` that `SystemFiles` and its users make, with their meaning there. All raise OSError."""

    def open(self, path: StrPath, flags: int) -> int:
        """As `os.open`, not inherited by children; a new file has mode 0644."""
        ...

    def close(self, fd: int) -> None: ...

    def status(self, file: int | StrPath) -> FileStatus: ...

    def read(self, fd: int, length: int, position: int) -> bytes: ...

    def write(self, fd: int, data: bytes | memoryview, position: int) -> int: ...

    def append(self, fd: int, data: bytes | memoryview) -> int:
        """Write to a file that was opened with O_APPEND."""
        ...

    def truncate(self, fd: int, size: int) -> None: ...

    def sync(self, fd: int) -> None:
        """Make all of a file, or the names in a directory, durable."""
        ...

    def sync_data(self, fd: int) -> None:
        """Make a file's bytes and its size durable."""
        ...

    def make_directory(self, path: StrPath) -> None: ...

    def is_directory(self, path: StrPath) -> bool: ...

    def entries(self, directory: StrPath) -> list[FileEntry]:
        """Return the entries of a directory, in any order."""
        ...

    def remove(self, path: StrPath) -> None:
        """Remove a file or link."""
        ...

    def remove_directory(self, path: StrPath) -> None:
        """Remove an empty directory."""
        ...

    def link(self, source: StrPath, target: StrPath) -> None: ...

    def replace(self, source: StrPath, target: StrPath) -> None: ...

    def lock(self, fd: int) -> None:
        """Take an exclusive lock that ends with the descriptor. Raises BlockingIOError if another holds one."""
        ...

    def unlock(self, fd: int) -> None: ...

    def unique_name(self) -> str:
        """A name that no other process uses."""
        ...

    def cached(self, fd: int, position: int) -> bool:
        """Whether the byte at `position` can be read without the disk; True where the system cannot tell."""
        ...


class OsSystemCalls:
    """The operating system."""

    def open(self, path: StrPath, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    close = staticmethod(os.close)
    status = staticmethod(os.stat)
    read = staticmethod(os.pread)
    write = staticmethod(os.pwrite)
    append = staticmethod(os.write)
    truncate = staticmethod(os.ftruncate)
    sync = staticmethod(os.fsync)
    #: fdatasync flushes the size together with the data, which is all that reading it back needs; macOS lacks it.
    sync_data = staticmethod(getattr(os, "fdatasync", os.fsync))
    make_directory = staticmethod(os.mkdir)
    is_directory = staticmethod(os.path.isdir)
    remove = staticmethod(os.unlink)
    remove_directory = staticmethod(os.rmdir)
    link = staticmethod(os.link)
    replace = staticmethod(os.replace)

    def entries(self, directory: StrPath) -> list[FileEntry]:
        with os.scandir(directory) as found:
            return [FileEntry(entry.name, entry.is_dir()) for entry in found]

    def lock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def unlock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)

    def unique_name(self) -> str:
        return os.urandom(8).hex()

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


class Refusals:
    """Around calls that are to `verb` a file: an OSError goes to `refuse`, which may raise another one.

    A class, since a generator takes as long as a small write.
    """

    __slots__ = ("_path", "_refuse", "_verb")

    def __init__(self, refuse: Callable[[str, StrPath, OSError], None], verb: str, path: StrPath) -> None:
        self._refuse = refuse
        self._verb = verb
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError):
            self._refuse(self._verb, self._path, error)


class SystemFiles:
    """`Files` of the operating system, with those operations that only a POSIX file system has: `rename` is atomic.

    Errors name the file, also those of calls that have a descriptor alone.
    """

    def __init__(self, system: SystemCalls | None = None) -> None:
        self.system: SystemCalls = system or OsSystemCalls()

    # -- reading

    def entries(self, path: StrPath, *, missing_ok: bool = False, sized: bool = False) -> list[FileEntry]:
        with self._errors("list", path):
            try:
                found = sorted(self.system.entries(path))
            except FileNotFoundError:
                if not missing_ok:
                    raise
                return []
            return list(self._sized(path, found)) if sized else found

    def _sized(self, path: StrPath, entries: list[FileEntry]) -> Iterator[FileEntry]:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                status = self.system.status(Path(path, entry.name))
                yield entry._replace(size=status.st_size, changed=status.st_mtime_ns / 1e9)

    def identity(self, path: StrPath) -> object:
        """What tells a directory from one that is mounted, or made, in its place. Raises FileNotFoundError."""
        status = self.system.status(path)
        return status.st_dev, status.st_ino

    def exists(self, path: StrPath) -> bool:
        try:
            self.system.status(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def size(self, path: StrPath) -> int | None:
        """The size of a file in bytes; None if it does not exist."""
        try:
            return self.system.status(path).st_size
        except FileNotFoundError:
            return None

    def read(self, path: StrPath) -> bytes | None:
        with self._errors("read", path):
            data = b""
            try:
                with self._opened(path, os.O_RDONLY) as fd:
                    while more := self.system.read(fd, _READ, len(data)):
                        data += more
            except FileNotFoundError:
                return None
            return data

    def holds(self, path: StrPath, pieces: Iterable[bytes]) -> bool:
        """Whether a file has just these bytes. One piece is in memory at a time."""
        position = 0
        with self._errors("read", path), self._opened(path, os.O_RDONLY) as fd:
            for piece in pieces:
                if read_all(self.system, fd, len(piece), position) != piece:
                    return False
                position += len(piece)
            return not self.system.read(fd, 1, position)

    # -- writing

    def write(self, path: StrPath, pieces: Iterable[bytes]) -> None:
        """Make or overwrite a file; its bytes are durable on return, its name is not. The directory must be there.

        What `pieces` raises leaves a file with those before.
        """
        with self._errors("write", path):
            self._write(path, pieces)

    def create(self, path: StrPath, data: bytes) -> bool:
        with self._errors("write", path), self._written(path, [data]) as fresh:
            created = self._link(fresh, path)
            try:
                with contextlib.suppress(FileNotFoundError):  # where it got its name by a rename
                    self.system.remove(fresh)
                self._sync_parent(path)  # of a file that exists, too: its writer may have died before its sync
            except OSError:
                if created:
                    with contextlib.suppress(OSError):  # so that the next attempt makes it again
                        self.system.remove(path)
                raise
            return created

    def replace(self, path: StrPath, data: bytes | Iterable[bytes], *, partial: StrPath | None = None) -> None:
        """Create or replace the file atomically. `partial`: the name that it has meanwhile, instead of a unique one."""
        pieces = [data] if isinstance(data, bytes) else data
        with self._errors("write", path), self._written(path, pieces, partial) as fresh:
            self.system.replace(fresh, path)
            self._sync_parent(path)

    def rename(self, source: StrPath, target: StrPath) -> None:
        """Rename a file or directory, atomically; one with the new name is replaced. Neither name is durable yet."""
        with self._errors("rename", source):
            self.system.replace(source, target)

    def remove(self, path: StrPath) -> None:
        """Remove a file. A missing one is fine."""
        with self._errors("remove", path), contextlib.suppress(FileNotFoundError):
            self.system.remove(path)

    # -- directories

    def make_directory(self, path: StrPath) -> None:
        with self._errors("create", path):
            missing, there = [], _as_path(path)
            while not self.system.is_directory(there):
                missing.append(there)
                there = there.parent
            try:
                self._sync_parent(there)
            except OSError as error:
                if error.errno not in _NOT_OURS:
                    raise
            for each in reversed(missing):
                try:
                    self.system.make_directory(each)
                except FileExistsError:
                    if not self.system.is_directory(each):  # else another process was faster
                        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
                self._sync_parent(each)

    def make_unique_directory(self, parent: StrPath, prefix: str) -> Path:
        """Make a directory in `parent` whose name no other writer ever uses. Its name is not durable."""
        path = Path(parent, f"{prefix}{self.system.unique_name()}")
        with self._errors("create", path):
            self.system.make_directory(path)
        return path

    def sync_directory(self, path: StrPath) -> None:
        with self._errors("sync", path):
            self._sync(path, os.O_DIRECTORY)

    def sync_file(self, path: StrPath) -> None:
        """Make a file durable, its bytes before its name."""
        with self._errors("sync", path):
            self._sync(path)
            self._sync_parent(path)

    def remove_directory(self, path: StrPath) -> None:
        """Remove a directory if it is empty; one that is missing or not empty is fine."""
        with contextlib.suppress(OSError):
            self.system.remove_directory(path)

    def remove_tree(self, path: StrPath) -> None:
        with self._errors("remove", path), contextlib.suppress(FileNotFoundError):  # another process removes it, too
            try:
                self.system.remove(path)  # of a link to a directory the link alone
            except (IsADirectoryError, PermissionError):
                if not self.system.is_directory(path):
                    raise
                for entry in self.system.entries(path):
                    self.remove_tree(Path(path, entry.name))
                self.system.remove_directory(path)

    def lock(self, path: StrPath) -> contextlib.ExitStack:
        """Lock a directory for this process until the context ends. Raises BlockingIOError if another process has it.

        The directory itself is locked: no file is left behind, and a dead process never leaves a stale lock.
        """
        with self._errors("lock", path), contextlib.ExitStack() as stack:
            fd = self.system.open(path, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(self.system.close, fd)
            self.system.lock(fd)
            return stack.pop_all()

    # -- the steps

    @contextlib.contextmanager
    def _written(self, path: StrPath, pieces: Iterable[bytes], partial: StrPath | None = None) -> Iterator[StrPath]:
        """A file beside `path` with these bytes, which are durable. It is removed after an error."""
        fresh = partial or Path(path).with_name(f"._{self.system.unique_name()}")
        try:
            self._write(fresh, pieces)
            yield fresh
        except BaseException as error:
            if isinstance(error, OSError):
                error.filename = str(path)  # not the passing name
            with contextlib.suppress(OSError):
                self.system.remove(fresh)
            raise

    def _write(self, path: StrPath, pieces: Iterable[bytes]) -> None:
        position = 0
        with self._opened(path, _NEW) as fd:
            for piece in pieces:
                position = write_all(self.system, fd, piece, position)
            self.system.sync(fd)

    def _link(self, fresh: StrPath, path: StrPath) -> bool:
        try:
            self.system.link(fresh, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if self.exists(path):
                return False
            self.system.replace(fresh, path)
        return True

    def _sync(self, path: StrPath, flags: int = 0) -> None:
        with self._opened(path, os.O_RDONLY | flags) as fd:
            self.system.sync(fd)

    def _sync_parent(self, path: StrPath) -> None:
        self._sync(_as_path(path).parent, os.O_DIRECTORY)

    @contextlib.contextmanager
    def _opened(self, path: StrPath, flags: int) -> Iterator[int]:
        fd = self.system.open(path, flags)
        try:
            yield fd
        finally:
            self.system.close(fd)

    def _errors(self, verb: str, path: StrPath) -> Refusals:
        return Refusals(self._refuse, verb, path)

    def _refuse(self, verb: str, path: StrPath, error: OSError) -> None:
        """Raise another error for one of a call that was to `verb` a file, or let it name the file."""
        if error.filename is None:  # calls with a descriptor do not know it
            error.filename = str(path)


def _as_path(path: StrPath) -> Path:
    return path if isinstance(path, Path) else Path(path)


def write_all(system: SystemCalls, fd: int, data: bytes, position: int) -> int:
    """Write all of `data`, which one call may cut short; returns the position after it. Raises OSError."""
    written = system.write(fd, data, position)
    while written < len(data):
        written += system.write(fd, memoryview(data)[written:], position + written)
    return position + written


def read_all(system: SystemCalls, fd: int, length: int, position: int) -> bytes:
    """Read `length` bytes, which one call may cut short; fewer only at the end of the file. Raises OSError."""
    data = system.read(fd, length, position)
    while data and len(data) < length:  # Linux moves at most 2 GiB per call, and signals may cut it shorter
        more = system.read(fd, length - len(data), position + len(data))
        if not more:
            break
        data += more
    return data

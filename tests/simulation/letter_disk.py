"""The disk of `tests.simulation.disk` for `FileDeadLetters`: appending, flock and renames, and no other way to a disk.

Strategy: the calls of the operating system that the module makes are replaced as there, and each is a step. A lock ends
with its process, as the kernel's does. The lock between a process's own threads lets virtual time pass, too.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from consumerd.handlers import dead_letter_files
from tests.simulation.disk import SimulatedDisk
from tests.simulation.threads import current_work

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulation.process import ProcessLoop

#: Seconds between two looks at a lock that another thread of the process holds.
_PAUSE = 0.001


class _Status(NamedTuple):
    st_size: int
    st_ino: int
    st_dev: int = 1
    st_mode: int = stat.S_IFREG | 0o644


class LetterDisk(SimulatedDisk):
    """One file system with dead letters."""

    def letter_patches(self) -> list[Any]:
        """What lets `FileDeadLetters` use this disk, for paths that `path` made."""
        locks = _Locks(self)
        calls = _AppendingCalls(self, locks)
        module = dead_letter_files
        return [
            *self.patches(),
            mock.patch.object(module, "os", calls),
            mock.patch.object(module, "fcntl", locks),
            mock.patch.object(module, "time", _Time(self)),
            mock.patch.object(module, "threading", _Threading(self)),
            mock.patch.object(module, "Path", lambda path: path),
            mock.patch.object(self._path, "stat", lambda path: calls.stat(path)),  # noqa: PLW0108 - a function is bound
        ]

    def make_durable_directory(self, path: Path) -> None:
        """One that is there before any process."""
        self.forgetful.make_directory(path)
        descriptor = self.forgetful.open(path.parent, os.O_RDONLY)
        self.forgetful.sync(descriptor)
        self.forgetful.close(descriptor)


class _AppendingCalls:
    """The functions of `os` that `FileDeadLetters` calls."""

    O_RDONLY, O_RDWR, O_APPEND, O_CREAT = os.O_RDONLY, os.O_RDWR, os.O_APPEND, os.O_CREAT
    O_DIRECTORY, O_CLOEXEC = os.O_DIRECTORY, os.O_CLOEXEC
    path = os.path

    def __init__(self, disk: LetterDisk, locks: _Locks) -> None:
        self._disk = disk
        self._locks = locks

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        self._disk.step("open")
        return self._disk.forgetful.open(path, flags)

    def close(self, descriptor: int) -> None:
        self._locks.close(descriptor)
        self._disk.forgetful.close(descriptor)

    def fstat(self, descriptor: int) -> _Status:
        forgetful = self._disk.forgetful
        return _Status(forgetful.status(descriptor).st_size, forgetful.status(descriptor).st_ino)

    def stat(self, path: Path) -> _Status:
        """As `Path.stat`."""
        self._disk.step("stat")
        descriptor = self._disk.forgetful.open(path, os.O_RDONLY)
        try:
            return self.fstat(descriptor)
        finally:
            self.close(descriptor)

    def pread(self, descriptor: int, size: int, position: int) -> bytes:
        return self._disk.forgetful.read(descriptor, size, position)

    def write(self, descriptor: int, data: memoryview) -> int:
        self._disk.step("write")
        forgetful = self._disk.forgetful
        return forgetful.write(descriptor, self._disk.short(data), forgetful.status(descriptor).st_size)

    def fsync(self, descriptor: int) -> None:
        self._disk.step("fsync")
        self._disk.forgetful.sync(descriptor)

    def ftruncate(self, descriptor: int, size: int) -> None:
        self._disk.step("ftruncate")
        self._disk.forgetful.truncate(descriptor, size)


class _Locks:
    """Stands for `fcntl`."""

    LOCK_EX, LOCK_NB, LOCK_UN = 2, 4, 8

    def __init__(self, disk: LetterDisk) -> None:
        self._disk = disk
        #: Of each locked file its descriptor and process.
        self._held: dict[int, tuple[int, ProcessLoop | None]] = {}

    def flock(self, descriptor: int, operation: int) -> None:
        self._disk.step("flock")
        file, work = self._disk.forgetful.status(descriptor).st_ino, current_work()
        if operation == self.LOCK_UN:
            self._held.pop(file, None)
            return
        holder = self._held.get(file)
        if holder is not None and not (holder[1] and holder[1].dead) and holder[0] != descriptor:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        self._held[file] = descriptor, work.loop if work is not None else None

    def close(self, descriptor: int) -> None:
        """A descriptor takes its lock along."""
        self._held = {file: holder for file, holder in self._held.items() if holder[0] != descriptor}


class _Time:
    """Stands for `time`."""

    def __init__(self, disk: LetterDisk) -> None:
        self._disk = disk

    def monotonic(self) -> float:
        work = current_work()
        return work.loop.kernel.now if work is not None else 0.0

    def sleep(self, seconds: float) -> None:
        work = current_work()
        assert work is not None
        work.pause("sleep", seconds)


class _Threading:
    """Stands for `threading`, whose lock waits in real time."""

    def __init__(self, disk: LetterDisk) -> None:
        self._disk = disk

    def Lock(self) -> _ThreadLock:  # noqa: N802 - its name there
        return _ThreadLock()


class _ThreadLock:
    def __init__(self) -> None:
        self._locked = False

    def __enter__(self) -> None:
        work = current_work()
        while self._locked:
            assert work is not None
            work.pause("lock", _PAUSE)
        self._locked = True

    def __exit__(self, *outcome: object) -> None:
        self._locked = False

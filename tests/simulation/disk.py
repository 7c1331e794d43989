"""The disk of a simulated machine, which its processes share: `tests.support.forgetful_disk` with time.

    disk = SimulatedDisk(random.Random(1))
    FilesHandler.on(SystemFiles(disk), disk.path("/data"))  # while `disk.patches()` are active

Strategy: the product's own order of calls is what runs, on a disk in memory. Every call is a step: a thread of a
simulated process pauses before it (`tests.simulation.threads`), so each takes its time and may be the last one. A write
may be short, as any write may be. A lock ends with its process.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack, contextmanager
from pathlib import Path, PosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

from consumerd.base import durable, files
from consumerd.handlers import dead_letter_files
from tests.simulation.threads import current_work
from tests.support.forgetful_disk import ForgetfulDisk

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tests.simulation.process import ProcessLoop

#: Seconds that a call takes, and a sync.
_CALL, _SYNC = 0.00005, 0.002
#: Seconds between two looks at a lock that another thread of the process holds.
_PAUSE = 0.001
#: The names of steps that differ from those of `SystemCalls`.
_STEPS = {
    "sync": "fsync",
    "sync_data": "fsync",
    "replace": "rename",
    "remove": "unlink",
    "remove_directory": "rmdir",
    "make_directory": "mkdir",
    "is_directory": "stat",
    "entries": "list",
    "truncate": "ftruncate",
}


class SimulatedDisk:
    """One file system. `slowness`: the factor by which calls take longer than usual."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.forgetful = ForgetfulDisk(rng)
        self.slowness = 1.0
        #: Calls so far by name, of simulated threads.
        self.calls: dict[str, int] = {}
        #: Of each locked file its descriptor and process.
        self._held: dict[int, tuple[int, ProcessLoop | None]] = {}
        self._path = type("SimulatedPath", (_SimulatedPath,), {"disk": self})

    def path(self, text: str) -> Path:
        """An absolute path on this disk."""
        made: Path = self._path(text)
        return made

    def patches(self) -> list[Any]:
        """What lets unique names be those of the seed, and waiting for a lock take virtual time."""
        return [
            mock.patch.object(files, "secrets", _Names(self._rng)),
            mock.patch.object(dead_letter_files, "time", _Time()),
            mock.patch.object(dead_letter_files, "threading", SimpleNamespace(Lock=_ThreadLock)),
        ]

    def make_durable_directory(self, path: Path) -> None:
        """One that is there before any process."""
        self.forgetful.make_directory(path)
        descriptor = self.forgetful.open(path.parent, os.O_RDONLY)
        self.forgetful.sync(descriptor)
        self.forgetful.close(descriptor)

    @contextmanager
    def under(self, *modules: Any) -> Iterator[None]:
        """Let these modules use this disk, too, for the paths that they make."""
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(durable, "os", _Calls(self)))
            for module in modules:
                for name, stand_in in (("os", _Calls(self)), ("Path", self._path), ("fcntl", _FreeLocks())):
                    if hasattr(module, name):
                        stack.enter_context(mock.patch.object(module, name, stand_in))
            yield

    def lose_power(self) -> None:
        """Forget what was not synced. All processes that use the disk must be dead."""
        self.forgetful.restart(power_lost=True)

    def step(self, call: str) -> None:
        """Take the time of a call. Raises ProcessKilledError in a thread of a dead process."""
        work = current_work()
        if work is not None:
            self.calls[call] = self.calls.get(call, 0) + 1
            work.pause(call, self.slowness * self._rng.uniform(0.5, 1.5) * (_SYNC if call == "fsync" else _CALL))

    def short(self, data: memoryview) -> memoryview:
        """As much of `data` as one write takes."""
        return data if self._rng.random() < 0.5 else data[: self._rng.randint(1, len(data))]

    def content(self, path: Path) -> bytes:
        """The content of a file."""
        descriptor = self.forgetful.open(path, os.O_RDONLY)
        try:
            return self.forgetful.read(descriptor, self.forgetful.status(descriptor).st_size, 0)
        finally:
            self.forgetful.close(descriptor)

    # -- the calls of `consumerd.base.files.SystemCalls`

    def __getattr__(self, name: str) -> Any:
        """A call that is not below; the names of steps are those of the system."""
        call = getattr(self.forgetful, name)

        def stepping(*arguments: Any) -> Any:
            self.step(_STEPS.get(name, name))
            return call(*arguments)

        return stepping

    def close(self, descriptor: int) -> None:
        self._held = {file: holder for file, holder in self._held.items() if holder[0] != descriptor}
        self.forgetful.close(descriptor)

    def status(self, file: Any) -> Any:
        if not isinstance(file, int):
            self.step("stat")
        return self.forgetful.status(file)

    def read(self, descriptor: int, length: int, position: int) -> bytes:
        return self.forgetful.read(descriptor, length, position)

    def write(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        self.step("write")
        return self.forgetful.write(descriptor, self.short(memoryview(data)), position)

    def append(self, descriptor: int, data: bytes | memoryview) -> int:
        self.step("write")
        return self.forgetful.append(descriptor, self.short(memoryview(data)))

    def lock(self, descriptor: int) -> None:
        """As flock, which ends with its process."""
        self.step("flock")
        file, work = self.forgetful.status(descriptor).st_ino, current_work()
        holder = self._held.get(file)
        if holder is not None and not (holder[1] and holder[1].dead) and holder[0] != descriptor:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        self._held[file] = descriptor, work.loop if work is not None else None

    def unlock(self, descriptor: int) -> None:
        self.step("flock")
        self._held.pop(self.forgetful.status(descriptor).st_ino, None)


class _Names:
    """Stands for `secrets`: the same names in each run of a seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def token_hex(self, size: int) -> str:
        return self._rng.randbytes(size).hex()


class _Time:
    """Stands for `time`."""

    def monotonic(self) -> float:
        work = current_work()
        return work.loop.kernel.now if work is not None else 0.0

    def sleep(self, seconds: float) -> None:
        work = current_work()
        assert work is not None
        work.pause("sleep", seconds)


class _ThreadLock:
    """Stands for the lock of `threading`, which waits in real time."""

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


class _FreeLocks:
    """Stands for `fcntl` where one process alone uses the disk."""

    LOCK_EX, LOCK_NB = 2, 4

    def flock(self, descriptor: int, operation: int) -> None: ...


class _Calls:
    """The functions of `os` that `OsDisk` and the tables of Spark call themselves."""

    O_RDONLY, O_WRONLY, O_CREAT, O_TRUNC = os.O_RDONLY, os.O_WRONLY, os.O_CREAT, os.O_TRUNC
    O_DIRECTORY, O_CLOEXEC = os.O_DIRECTORY, os.O_CLOEXEC

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self._positions: dict[int, int] = {}

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        self._disk.step("open")
        descriptor = self._disk.forgetful.open(path, flags)
        self._positions[descriptor] = 0
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        self._disk.step("write")
        written = self._disk.forgetful.write(descriptor, self._disk.short(data), self._positions[descriptor])
        self._positions[descriptor] += written
        return written

    def fsync(self, descriptor: int) -> None:
        self._disk.step("fsync")
        self._disk.forgetful.sync(descriptor)

    def close(self, descriptor: int) -> None:
        del self._positions[descriptor]
        self._disk.forgetful.close(descriptor)

    def link(self, source: Path, target: str) -> None:
        self._disk.step("link")
        self._disk.forgetful.link(source, self._disk.path(target))

    def walk(self, top: str) -> Iterator[tuple[str, list[str], list[str]]]:
        self._disk.step("list")
        found = self._disk.forgetful.entries(self._disk.path(top))
        folders = [entry.name for entry in found if entry.is_directory]
        yield top, folders, [entry.name for entry in found if not entry.is_directory]
        for name in folders:
            yield from self.walk(f"{top}/{name}")


class _Reader:
    """A file that is open for reading."""

    def __init__(self, disk: SimulatedDisk, descriptor: int) -> None:
        self._disk = disk
        self._descriptor = descriptor
        self._position = 0

    def read(self, size: int) -> bytes:
        self._disk.step("read")
        data = self._disk.forgetful.read(self._descriptor, size, self._position)
        self._position += len(data)
        return data

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *outcome: object) -> None:
        self._disk.forgetful.close(self._descriptor)


class _Writer:
    """A new file that is open for writing; `whole`: as a buffered one, whose writes are never short."""

    def __init__(self, disk: SimulatedDisk, path: Path, *, whole: bool) -> None:
        self._disk = disk
        self._descriptor = disk.forgetful.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._position = 0
        self._whole = whole

    def write(self, data: bytes) -> int:
        self._disk.step("write")
        part = data if self._whole else self._disk.short(memoryview(data))
        written = self._disk.forgetful.write(self._descriptor, part, self._position)
        self._position += written
        return written

    def flush(self) -> None: ...

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        self._disk.forgetful.close(self._descriptor)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *outcome: object) -> None:
        self.close()


class _SimulatedPath(PosixPath):
    """The methods of `Path` that touch a disk, as far as the sink calls them; there is no other way to the disk."""

    disk: ClassVar[SimulatedDisk]

    def is_dir(self) -> bool:
        self.disk.step("stat")
        return self.disk.forgetful.is_directory(self)

    def stat(self, *, follow_symlinks: bool = True) -> Any:
        # No step: it changes nothing, so a crash before it is one before the call that follows.
        descriptor = self.disk.forgetful.open(self, os.O_RDONLY)
        try:
            inode, size = self.disk.forgetful.status(descriptor).st_ino, self.disk.forgetful.status(descriptor).st_size
            return SimpleNamespace(st_dev=0, st_ino=inode, st_size=size)
        finally:
            self.disk.forgetful.close(descriptor)

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        assert not parents
        assert not exist_ok
        self.disk.step("mkdir")
        self.disk.forgetful.make_directory(self)

    def iterdir(self) -> Any:
        self.disk.step("list")
        return iter([self / entry.name for entry in self.disk.forgetful.entries(self)])

    def exists(self) -> bool:
        try:
            self.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read_bytes(self) -> bytes:
        self.disk.step("read")
        return self.disk.content(self)

    def open(self, mode: str = "r", buffering: int = -1, *options: Any) -> Any:
        self.disk.step("open")
        if mode == "xb":
            return _Writer(self.disk, self, whole=buffering != 0)
        assert mode == "rb"
        return _Reader(self.disk, self.disk.forgetful.open(self, os.O_RDONLY))

    def rename(self, target: Any) -> Any:
        self.disk.step("rename")
        self.disk.forgetful.replace(self, self.disk.path(str(target)))
        return target

    replace = rename

    def unlink(self, missing_ok: bool = False) -> None:
        self.disk.step("unlink")
        try:
            self.disk.forgetful.remove(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        self.disk.step("rmdir")
        self.disk.forgetful.remove_directory(self)

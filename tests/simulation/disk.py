"""The disk of a simulated machine, which its processes share: `tests.support.forgetful_disk` with time.

    disk = SimulatedDisk(random.Random(1))
    FilesHandler.on(SystemFiles(disk), Path("/data"))

Strategy: the product's own order of calls is what runs, on a disk in memory. Every call is a step: a thread of a
simulated process pauses before it (`tests.simulation.threads`), so each takes its time and may be the last one. A write
may be short, as any write may be. A lock ends with its process.
"""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from consumerd.handlers import dead_letter_files
from tests.simulation.threads import current_work
from tests.support.forgetful_disk import ForgetfulDisk

if TYPE_CHECKING:
    import random
    from pathlib import Path

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

    def patches(self) -> list[Any]:
        """What lets `FileDeadLetters` wait for a lock in virtual time."""
        return [
            mock.patch.object(dead_letter_files, "time", _Time()),
            mock.patch.object(dead_letter_files, "threading", SimpleNamespace(Lock=_ThreadLock)),
        ]

    def make_durable_directory(self, path: Path) -> None:
        """One that is there before any process."""
        self.forgetful.make_directory(path)
        descriptor = self.forgetful.open(path.parent, os.O_RDONLY)
        self.forgetful.sync(descriptor)
        self.forgetful.close(descriptor)

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

    def unique_name(self) -> str:
        return self.forgetful.unique_name()

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

"""The `files` handler among crashes, losses of power and zombies: no message twice, none missing, nothing torn.

Every scenario is tried at every step that the handler takes on the disk, and the next owner always fetches with other
boundaries. The expectation is the same throughout: the ranges are contiguous and their lines are the log's messages.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from consumerd.errors import HandlerFailedError
from consumerd.handlers import Batch, PartitionTakenError
from consumerd.handlers.builtin.disk import OsDisk
from consumerd.handlers.builtin.files import FilesHandler
from consumerd.partition import TopicPartition
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

HERE = TopicPartition("t", 0, 0)

LOG = b"".join(
    encode_message_set([b"message %d.%d" % (n, m) for m in range(1 + n % 3)], codec=Codec.GZIP if n % 3 else Codec.NONE)
    for n in range(12)
)
EXPECTED = [(m.offset, m.index, m.payload.decode()) for m in decode_batch(LOG, 0).messages()]


def fetch(offset: int, size: int) -> Batch:
    return Batch(HERE, decode_batch(LOG[offset : offset + size], offset))


def batches(offset: int, size: int) -> Iterator[Batch]:
    """The batches that a fetcher delivers from `offset` on, with fetches of `size` bytes."""
    while offset < len(LOG):
        batch = fetch(offset, size)
        assert batch.next_offset > offset
        offset = batch.next_offset
        yield batch


async def consume(handler: FilesHandler, size: int, committed: int = 0) -> None:
    """One member's life: claim, read the position, deliver to the end of the log."""
    position = await handler.position(HERE)
    for batch in batches(committed if position is None else position, size):
        await handler.handle(batch)
    await handler.stop()


def check(contents: dict[str, bytes], *, end: int = len(LOG)) -> None:
    """That the ranges in a folder are contiguous, and their lines the messages of the log up to `end`."""
    ranges = sorted(name for name in contents if name.endswith(".ndjson"))
    position = 0
    records = []
    for name in ranges:
        start, stop = (int(part) for part in name.removesuffix(".ndjson").split("-"))
        assert start == position, f"hole or overlap at {position}: {ranges}"
        position = stop
        records += [json.loads(line) for line in contents[name].splitlines()]
    assert position == end
    expected = [message for message in EXPECTED if message[0] < end]
    assert [(r["offset"], r["index"], r["payload"]) for r in records] == expected


def read(directory: Path) -> dict[str, bytes]:
    folder = directory / "t" / "0-0"
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} if folder.is_dir() else {}


# SIGKILL at every step of the disk, in real processes.


class Suicidal(OsDisk):
    """Kills its process at step number `fatal`; a write is killed half-way, too."""

    def __init__(self, fatal: int) -> None:
        self.steps = itertools.count()
        self.fatal = fatal

    def step(self) -> None:
        if next(self.steps) == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def make_directory(self, directory: Path) -> None:
        self.step()
        super().make_directory(directory)

    def make_unique_directory(self, parent: Path, prefix: str) -> Path:
        self.step()
        return super().make_unique_directory(parent, prefix)

    def names(self, directory: Path) -> list[str]:
        self.step()
        return super().names(directory)

    def write(self, path: Path, pieces: Iterable[bytes]) -> None:
        data = b"".join(pieces)
        self.step()
        path.write_bytes(data[: len(data) // 2])
        self.step()
        super().write(path, [data])
        self.step()

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        super().rename(source, target)
        self.step()

    def sync_directory(self, directory: Path) -> None:
        self.step()
        super().sync_directory(directory)

    def remove(self, path: Path) -> None:
        self.step()
        super().remove(path)

    def remove_directory(self, directory: Path) -> None:
        self.step()
        super().remove_directory(directory)


def crash_everywhere(directory: Path) -> None:
    """Run in a process of its own: crash a first member at each step, and the second one at a step that moves along."""
    for fatal in itertools.count():
        folder = directory / str(fatal)
        first = _killed(folder, 200, fatal)
        _killed(folder, 330, (7 * fatal) % 23)
        assert not _killed(folder, 150, -1)
        check(read(folder))
        if not first:
            break
    print(fatal)  # noqa: T201


def _killed(folder: Path, size: int, fatal: int) -> bool:
    child = os.fork()
    if child == 0:
        asyncio.run(consume(FilesHandler.on(Suicidal(fatal), folder), size))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def test_stores_each_batch_once_through_sigkill_at_every_step(tmp_path: Path) -> None:
    # A fresh interpreter without threads: forking this one is neither safe nor without warnings.
    script = (
        "import importlib.util, pathlib, sys\n"
        "spec = importlib.util.spec_from_file_location('faults', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "sys.modules['faults'] = module\n"
        "spec.loader.exec_module(module)\n"
        "module.crash_everywhere(pathlib.Path(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", script, __file__, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) > 20  # steps at which the first member died


# Loss of power, on a disk that remembers only what was synced.


class PowerLossError(Exception):
    """A loss of power; not an OSError, so that no code handles it."""


class Forgetful:
    """A file system in memory with one partition's folder, which can lose everything that was not synced.

    The worst case in both directions: `keep_names` loses unsynced bytes of files whose names survived, otherwise
    names that were not synced are gone (renames undone) while all bytes are there.
    """

    def __init__(self) -> None:
        #: path -> [bytes, durable bytes]; the lists are inodes: they are shared between the two views of names.
        self.names_now: dict[Path, list[bytes]] = {}
        self.names_durable: dict[Path, list[bytes]] = {}
        self.folders: set[Path] = set()
        self.steps = itertools.count()
        self.fatal = -1
        self.unique = itertools.count()

    def step(self) -> None:
        if next(self.steps) == self.fatal:
            raise PowerLossError

    def power_comes_back(self, *, keep_names: bool) -> None:
        self.fatal = -1
        names = self.names_now if keep_names else self.names_durable
        self.names_now = {path: [inode[1], inode[1]] for path, inode in names.items()}
        self.names_durable = dict(self.names_now)

    def make_directory(self, directory: Path) -> None:
        self.step()
        self.folders.add(directory)

    def make_unique_directory(self, parent: Path, prefix: str) -> Path:
        self.step()
        path = parent / f"{prefix}{next(self.unique)}"
        self.folders.add(path)
        return path

    def identity(self, directory: Path) -> object:
        return directory

    def names(self, directory: Path) -> list[str]:
        self.step()
        if directory not in self.folders:
            raise FileNotFoundError(2, "No such directory", str(directory))
        return sorted(path.name for path in [*self.names_now, *self.folders] if path.parent == directory)

    def write(self, path: Path, pieces: Iterable[bytes]) -> None:
        if path.parent not in self.folders:
            raise FileNotFoundError(2, "No such directory", str(path))
        inode = self.names_now.setdefault(path, [b"", b""])
        self.step()
        data = b""
        for piece in pieces:
            inode[0] = data + piece[: len(piece) // 2]
            self.step()
            inode[0] = data = data + piece
            self.step()
        inode[1] = data
        self.step()

    def holds(self, path: Path, pieces: Iterable[bytes]) -> bool:
        return self.names_now[path][0] == b"".join(pieces)

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        if source in self.folders:
            self.folders.remove(source)
            self.folders.add(target)
            for path in [path for path in self.names_now if path.parent == source]:
                self.names_now[target / path.name] = self.names_now.pop(path)
        elif source in self.names_now:
            self.names_now[target] = self.names_now.pop(source)
        else:
            raise FileNotFoundError(2, "No such file", str(source))
        self.step()

    def sync_directory(self, directory: Path) -> None:
        self.step()
        for names in (self.names_durable, self.names_now):
            for path in [path for path in names if path.parent == directory]:
                if names is self.names_durable and path not in self.names_now:
                    del names[path]
                elif names is self.names_now:
                    self.names_durable[path] = names[path]

    def remove(self, path: Path) -> None:
        self.step()
        self.names_now.pop(path, None)

    def remove_directory(self, directory: Path) -> None:
        self.step()
        if not any(path.parent == directory for path in self.names_now):
            self.folders.discard(directory)


ROOT = Path("/model")


@pytest.mark.asyncio
@pytest.mark.parametrize("keep_names", [True, False])
async def test_stores_each_batch_once_through_power_loss_at_every_step(keep_names: bool) -> None:
    died = 0
    for fatal in itertools.count():
        disk = Forgetful()
        disk.fatal = fatal
        confirmed = 0
        dead = FilesHandler.on(disk, ROOT)
        try:
            assert await dead.position(HERE) is None
            for batch in batches(0, 200):
                await dead.handle(batch)
                confirmed = batch.next_offset  # from here on ZooKeeper may have it as committed
        except PowerLossError:
            died += 1
        disk.power_comes_back(keep_names=keep_names)
        position = await FilesHandler.on(disk, ROOT).position(HERE)
        assert (position or 0) >= confirmed  # what was confirmed survived
        await consume(FilesHandler.on(disk, ROOT), 330, committed=confirmed)
        check({path.name: inode[0] for path, inode in disk.names_now.items() if path.parent == ROOT / "t" / "0-0"})
        if confirmed == len(LOG):
            break
    assert died > 20


@pytest.mark.asyncio
async def test_files_behind_a_reported_position_survive_power_loss() -> None:
    """A member dies between its rename and the sync; the next one continues after that range; then power is lost."""
    disk = Forgetful()
    dead = FilesHandler.on(disk, ROOT)
    await dead.position(HERE)
    first = fetch(0, 200)
    writing_steps = 4 + 2  # of `write` and `rename`; the next step is the sync of the folder
    disk.steps, disk.fatal = itertools.count(), writing_steps
    with pytest.raises(PowerLossError):
        await dead.handle(first)
    disk.fatal = -1  # it was only the process
    assert await FilesHandler.on(disk, ROOT).position(HERE) == first.next_offset
    disk.power_comes_back(keep_names=False)
    assert await FilesHandler.on(disk, ROOT).position(HERE) == first.next_offset


# Zombies: the old owner stops at any step and resumes while the new owner works.


class Pausable(OsDisk):
    """Stops before step number `stop_at` until it is resumed."""

    def __init__(self, stop_at: int) -> None:
        self.stop_at = stop_at
        self.steps = itertools.count()
        self.stopped = threading.Event()
        self.go_on = threading.Event()

    def step(self) -> None:
        if next(self.steps) == self.stop_at:
            self.stopped.set()
            assert self.go_on.wait(30)

    def make_unique_directory(self, parent: Path, prefix: str) -> Path:
        self.step()
        return super().make_unique_directory(parent, prefix)

    def names(self, directory: Path) -> list[str]:
        self.step()
        return super().names(directory)

    def write(self, path: Path, pieces: Iterable[bytes]) -> None:
        self.step()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.step()  # the file is open, and may be moved or removed under us
        os.write(descriptor, b"".join(pieces))
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        super().rename(source, target)

    def sync_directory(self, directory: Path) -> None:
        self.step()

    def remove(self, path: Path) -> None:
        self.step()
        super().remove(path)

    def remove_directory(self, directory: Path) -> None:
        self.step()
        super().remove_directory(directory)


@pytest.mark.asyncio
async def test_former_owner_that_resumes_at_any_step_neither_repeats_nor_loses(tmp_path: Path) -> None:
    outcomes: set[str] = set()
    for stop_at in itertools.count():
        directory = tmp_path / str(stop_at)
        disk = Pausable(stop_at)
        zombie = asyncio.create_task(consume(FilesHandler.on(disk, directory), 200))
        stopped = asyncio.create_task(asyncio.to_thread(disk.stopped.wait, 30))
        await asyncio.wait([zombie, stopped], return_when=asyncio.FIRST_COMPLETED)
        if zombie.done():
            disk.stopped.set()
            await asyncio.gather(zombie, stopped)
            break
        await stopped
        owner = FilesHandler.on(Pausable(-1), directory)
        position = await owner.position(HERE) or 0
        ahead = batches(position, 330)
        for batch in itertools.islice(ahead, 1):
            await owner.handle(batch)
        disk.go_on.set()
        try:
            await zombie
            outcomes.add("finished")
        except PartitionTakenError:
            outcomes.add("fenced")
        except HandlerFailedError:
            outcomes.add("refused")
        try:
            for batch in ahead:
                await owner.handle(batch)
        except PartitionTakenError:
            # The zombie was stopped while it took over, and fenced the owner in turn: one of the two continues.
            outcomes.add("fenced the owner")
            await consume(FilesHandler.on(Pausable(-1), directory), 330)
        check(read(directory))
    assert outcomes >= {"fenced", "fenced the owner"}, outcomes


@pytest.mark.parametrize("seed", range(4))
def test_one_of_two_concurrent_new_owners_writes(tmp_path: Path, seed: int) -> None:
    """All interleavings of two take-overs, a quarter per case; both then try to store the same range."""
    take_over_steps = 6
    schedules = list(itertools.combinations(range(2 * take_over_steps), take_over_steps))[seed::4]
    both_fenced = 0
    for number, schedule in enumerate(schedules):
        wrote = _interleave(tmp_path / str(number), schedule)
        assert len(wrote) <= 1, f"{schedule}: {wrote}"
        both_fenced += not wrote
    assert 0 < both_fenced < len(schedules)  # ZooKeeper makes such a tie rare; the remaining member takes over again


def _interleave(directory: Path, schedule: tuple[int, ...]) -> list[str]:
    """Let thread "a" take the steps in `schedule` and "b" the others; who stored the first range."""
    turns = Turns({"a": set(schedule)})
    wrote: list[str] = []

    async def live(name: str) -> None:
        handler = FilesHandler.on(Stepwise(turns, name), directory)
        await handler.position(HERE)
        turns.done(name)
        batch = fetch(0, 200 if name == "a" else 330)
        try:
            await handler.handle(batch)
            wrote.append(name)
        except (PartitionTakenError, HandlerFailedError):
            return

    async def both() -> None:
        (directory / "t" / "0-0").mkdir(parents=True)
        await asyncio.gather(live("a"), live("b"))

    asyncio.run(both())
    return wrote


class Turns:
    """Gives steps to two threads in a fixed order; a thread that has ended leaves its turns to the other."""

    def __init__(self, owners: dict[str, set[int]]) -> None:
        self.first = owners["a"]
        self.condition = threading.Condition()
        self.now = 0
        self.ended: set[str] = set()

    def wait(self, name: str) -> None:
        with self.condition:
            assert self.condition.wait_for(lambda: self._whose() == name, 30)

    def over(self) -> None:
        with self.condition:
            self.now += 1
            self.condition.notify_all()

    def done(self, name: str) -> None:
        with self.condition:
            self.ended.add(name)
            self.condition.notify_all()

    def _whose(self) -> str:
        whose = "a" if self.now in self.first else "b"
        return whose if whose not in self.ended else "ab".replace(whose, "")


class Stepwise(OsDisk):
    """Takes each step of a take-over in its turn; afterwards it runs freely."""

    def __init__(self, turns: Turns, name: str) -> None:
        self.turns = turns
        self.name = name

    def _in_turn(self, work: Callable[[], None]) -> None:
        if self.name in self.turns.ended:
            work()
            return
        self.turns.wait(self.name)
        try:
            work()
        finally:
            self.turns.over()

    def make_unique_directory(self, parent: Path, prefix: str) -> Path:
        made: list[Path] = []
        make = super().make_unique_directory
        self._in_turn(lambda: made.append(make(parent, prefix)))
        return made[0]

    def names(self, directory: Path) -> list[str]:
        found: list[str] = []
        names = super().names
        self._in_turn(lambda: found.extend(names(directory)))
        return found

    def rename(self, source: Path, target: Path) -> None:
        rename = super().rename
        self._in_turn(lambda: rename(source, target))

    def sync_directory(self, directory: Path) -> None:
        return  # no power is lost here

"""The `files` handler in real processes and threads, which die or take turns at every step on a real disk.

The next owner always fetches with other boundaries, and the expectation is the same throughout: the ranges are
contiguous and their lines are the log's messages. Losses of power, and former owners that resume, are simulated
(`tests.simulation.test_sinks`).
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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from consumerd.base.errors import HandlerFailedError
from consumerd.base.files import FileEntry, StrPath, SystemFiles
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, PartitionTakenError
from consumerd.handlers.builtin.files import FilesHandler
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set

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


class Suicidal(SystemFiles):
    """Kills its process at step number `fatal`; a write is killed half-way, too."""

    def __init__(self, fatal: int) -> None:
        super().__init__()
        self.steps = itertools.count()
        self.fatal = fatal

    def step(self) -> None:
        if next(self.steps) == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def make_directory(self, path: StrPath) -> None:
        self.step()
        super().make_directory(path)

    def make_unique_directory(self, parent: StrPath, prefix: str) -> Path:
        self.step()
        return super().make_unique_directory(parent, prefix)

    def entries(self, path: StrPath, **options: bool) -> list[FileEntry]:
        self.step()
        return super().entries(path, **options)

    def write(self, path: StrPath, pieces: Iterable[bytes]) -> None:
        data = b"".join(pieces)
        self.step()
        Path(path).write_bytes(data[: len(data) // 2])
        self.step()
        super().write(path, [data])
        self.step()

    def rename(self, source: StrPath, target: StrPath) -> None:
        self.step()
        super().rename(source, target)
        self.step()

    def sync_directory(self, path: StrPath) -> None:
        self.step()
        super().sync_directory(path)

    def remove(self, path: StrPath) -> None:
        self.step()
        super().remove(path)

    def remove_directory(self, path: StrPath) -> None:
        self.step()
        super().remove_directory(path)


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


# Two new owners at once.


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


class Stepwise(SystemFiles):
    """Takes each step of a take-over in its turn; afterwards it runs freely."""

    def __init__(self, turns: Turns, name: str) -> None:
        super().__init__()
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

    def make_unique_directory(self, parent: StrPath, prefix: str) -> Path:
        made: list[Path] = []
        make = super().make_unique_directory
        self._in_turn(lambda: made.append(make(parent, prefix)))
        return made[0]

    def entries(self, path: StrPath, **options: bool) -> list[FileEntry]:
        found: list[FileEntry] = []
        entries = super().entries
        self._in_turn(lambda: found.extend(entries(path, **options)))
        return found

    def rename(self, source: StrPath, target: StrPath) -> None:
        rename = super().rename
        self._in_turn(lambda: rename(source, target))

    def sync_directory(self, path: StrPath) -> None:
        return  # no power is lost here

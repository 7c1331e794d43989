"""Two new owners of a partition with the handler `files` that take it over at once, on a real disk.

Crashes and losses of power at every step, and former owners that resume, are simulated (`tests.simulation.test_sinks`).
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
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


def fetch(offset: int, size: int) -> Batch:
    return Batch(HERE, decode_batch(LOG[offset : offset + size], offset))


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

"""Any appends, flushes, rolls, deletions, kills and losses of power, at any system call: a prefix stays, with all that
was flushed, and nothing is invented.

The log, its manager and `OsFiles` are the real ones; only the disk is in memory, and forgets what was never synced.
"""

from __future__ import annotations

import os
import random
import struct
import time
import zlib
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.storage import Log, LogManager, LogSettings, MaxBytes, OsFiles, StorageError, SystemCalls
from tests.support.forgetful_disk import ForgetfulDisk, PowerLostError

SECONDS = float(os.environ.get("CONSUMERD_LONG_SECONDS", "60"))
FOLDER = Path("/var/lib/kafka")
SETTINGS = LogSettings(segment_bytes=300, flush_messages=6, delete_policies=(MaxBytes(700),))


@dataclass(frozen=True)
class Append:
    partition: int
    sizes: list[int]


@dataclass(frozen=True)
class Flush:
    partition: int


@dataclass(frozen=True)
class Clean:
    """Retention."""


@dataclass(frozen=True)
class Stop:
    """A clean stop and a start."""


@dataclass(frozen=True)
class Fuse:
    """A crash after this number of changes of the disk, at any point; then further crashes during the start
    after it.
    """

    changes: int
    power_lost: bool
    again: list[tuple[int, bool]] = field(default_factory=list)


Step = Append | Flush | Clean | Stop | Fuse
_fuses = st.tuples(st.integers(0, 12), st.booleans())
_appends = st.builds(
    Append, st.integers(0, 1), st.lists(st.sampled_from([0, 1, 9, 40, 90, 200]), min_size=1, max_size=4)
)
_steps = st.lists(
    st.one_of(
        _appends,
        _appends,
        st.builds(Flush, st.integers(0, 1)),
        st.just(Clean()),
        st.just(Stop()),
        st.builds(Fuse, st.integers(0, 40), st.booleans(), st.lists(_fuses, max_size=3)),
    ),
    max_size=40,
)


@dataclass
class Model:
    """One partition: all messages ever appended that are not known to be lost, and what must be there of them."""

    messages: list[bytes] = field(default_factory=list)
    flushed: int = 0
    #: Retention has deleted up to the first for certain, and may have up to the second.
    starts: tuple[int, int] = (0, 0)

    @property
    def data(self) -> bytes:
        return b"".join(self.messages)

    def check(self, log: Log) -> None:
        """Compare after a start; what the log has now is what counts from now on."""
        ends = [0, *accumulate(map(len, self.messages))]
        assert log.end_offset in ends, "recovery stopped within a message, or made one up"
        assert log.end_offset >= self.flushed, "what was flushed is lost"
        assert log.flushed_offset == log.end_offset
        assert self.starts[0] <= log.start_offset <= self.starts[1]
        assert log.start_offset in ends
        assert contents(log) == self.data[log.start_offset : log.end_offset]
        del self.messages[ends.index(log.end_offset) :]
        self.flushed = log.end_offset
        self.starts = (log.start_offset, log.start_offset)


def contents(log: Log) -> bytes:
    """All that a reader can see, fetched in pieces that do not fit the messages."""
    data, offset = b"", log.start_offset
    while piece := log.read(offset, 97):
        data += piece
        offset += len(piece)
    return data


class World:
    """A broker's logs on a disk, and what is known about them."""

    def __init__(self, disk: ForgetfulDisk, system: SystemCalls) -> None:
        self.disk = disk
        self.system = system
        self.rng = random.Random(1)
        self.models = [Model(), Model()]
        self.started = False

    def start(self) -> None:
        self.logs = LogManager(FOLDER, OsFiles(self.system), lambda topic: SETTINGS)
        report = self.logs.open(0.0)
        assert not report.damaged
        for number, model in enumerate(self.models):
            log = self.logs.get("t", number)
            if log is not None:
                model.check(log)
            else:
                assert not model.flushed
                self.models[number] = Model()
        self.started = True

    def do(self, step: Append | Flush | Clean | Stop) -> None:
        if not self.started:
            self.start()
        match step:
            case Append(partition, sizes):
                model = self.models[partition]
                log, _ = self.logs.get_or_create("t", partition, 0.0)
                made = [message(self.rng.randbytes(size), self.rng.randrange(2)) for size in sizes]
                if log.roll_due(0.0):
                    log.roll(0.0)
                    model.flushed = len(model.data)
                end = len(model.data)
                model.messages += made
                assert log.append(b"".join(made), len(made), 0.0) == end
                if log.flush_due():
                    self._flush(log, model)
            case Flush(partition):
                found = self.logs.get("t", partition)
                if found is not None:
                    self._flush(found, self.models[partition])
            case Clean():
                for number, model in enumerate(self.models):
                    found = self.logs.get("t", number)
                    if found is not None:
                        model.starts = (model.starts[0], len(model.data))
                        found.clean(0.0, 0)
                        model.starts = (found.start_offset, found.start_offset)
            case Stop():
                self.logs.close(0.0)
                for model in self.models:
                    model.flushed = len(model.data)
                self.start()

    def _flush(self, log: Log, model: Model) -> None:
        log.flush(0.0)
        model.flushed = len(model.data)
        start = model.starts[1]
        assert contents(log) == model.data[start:]


def message(payload: bytes, magic: int) -> bytes:
    body = bytes([magic, 0][: magic + 1]) + struct.pack(">I", zlib.crc32(payload)) + payload
    return struct.pack(">i", len(body)) + body


def run(steps: list[Step], disk: ForgetfulDisk, system: SystemCalls | None = None) -> int:
    """Do the steps, come back after every end, and look at everything; returns how many ends there were."""
    world = World(disk, system or disk)
    fuse = Fuse(0, power_lost=True)
    ends = 0
    for step in [*steps, Fuse(0, power_lost=False), Append(0, [1]), Fuse(3, power_lost=True), Append(0, [2]), Stop()]:
        if isinstance(step, Fuse):
            fuse = step
            disk.lose_power_after(fuse.changes)
            continue
        try:
            world.do(step)
        except PowerLostError:
            ends += 1 + come_back(world, fuse)
    disk.lose_power_after(None)
    world.do(Stop())
    return ends


def come_back(world: World, fuse: Fuse) -> int:
    """Start until nothing comes in between; returns how often something did."""
    power_lost = fuse.power_lost
    for ends, (changes, next_power_lost) in enumerate([*fuse.again, (None, False)]):
        world.disk.restart(power_lost=power_lost)
        world.disk.lose_power_after(changes)
        try:
            world.start()
        except PowerLostError:
            power_lost = next_power_lost
        else:
            world.disk.lose_power_after(None)
            return ends
    raise AssertionError("the last start was not to be disturbed")


@settings(deadline=None, max_examples=300)
@given(_steps, st.integers(0, 1 << 32))
def test_log_keeps_what_it_flushed_through_any_crash(steps: list[Step], seed: int) -> None:
    assert run(steps, ForgetfulDisk(random.Random(seed))) >= 2


def some_steps(rng: random.Random) -> list[Step]:
    steps: list[Step] = []
    for _ in range(rng.randrange(5, 80)):
        kind = rng.randrange(10)
        if kind < 5:
            sizes = [rng.choice([0, 1, 9, 40, 90, 200]) for _ in range(rng.randint(1, 5))]
            steps.append(Append(rng.randrange(2), sizes))
        elif kind < 7:
            steps.append(Flush(rng.randrange(2)))
        elif kind == 7:
            again = [(rng.randrange(12), rng.random() < 0.5) for _ in range(rng.randrange(3))]
            steps.append(Fuse(rng.randrange(60), rng.random() < 0.7, again))
        else:
            steps.append(Clean() if kind == 8 else Stop())
    return steps


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 120)
def test_log_keeps_what_it_flushed_in_long_runs() -> None:
    rng = random.Random()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        seed = rng.getrandbits(32)
        steps = some_steps(random.Random(seed))
        try:
            run(steps, ForgetfulDisk(random.Random(seed), block=16 << seed % 4))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


EVERYTHING: list[Step] = [
    Append(0, [200, 90]),
    Append(1, [9]),
    Append(0, [40, 1]),
    Flush(0),
    Append(0, [90] * 4),
    Stop(),
    Append(1, [200] * 3),
    Append(0, [200] * 3),
    Append(0, [200] * 3),
    Clean(),
    Append(0, [9]),
]


@pytest.mark.parametrize("power_lost", [False, True])
def test_survives_a_crash_at_every_system_call(power_lost: bool) -> None:
    disk = ForgetfulDisk(random.Random(0))
    run(EVERYTHING, disk)
    assert disk.changes > 60
    for changes in range(disk.changes):
        for seed in range(4):
            fuse = Fuse(changes, power_lost, [(seed, True)])
            run([fuse, *EVERYTHING], ForgetfulDisk(random.Random(seed)))


class Careless:
    """A disk on which the sync of names in directories, or of bytes in segments, does nothing."""

    def __init__(self, disk: ForgetfulDisk, forgotten: str) -> None:
        self._disk = disk
        self._forgotten = forgotten
        self._directories: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: Any, flags: int) -> int:
        fd = self._disk.open(path, flags)
        if flags & os.O_DIRECTORY:
            self._directories.add(fd)
        return fd

    def sync(self, fd: int) -> None:
        if self._forgotten != "names" or fd not in self._directories:
            self._disk.sync(fd)

    def sync_data(self, fd: int) -> None:
        if self._forgotten != "bytes":
            self._disk.sync_data(fd)


@pytest.mark.parametrize("forgotten", ["names", "bytes"])
def test_detects_a_missing_sync(forgotten: str) -> None:
    def careless() -> None:
        for seed in range(1000):
            disk = ForgetfulDisk(random.Random(seed))
            run([Fuse(seed % 80, power_lost=True), *EVERYTHING], disk, Careless(disk, forgotten))

    with pytest.raises((AssertionError, StorageError)):
        careless()

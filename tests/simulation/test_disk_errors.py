"""Every write, sync and rename of what promises durability fails once, then power is lost: what was promised is there.

Strategy: a story makes promises on a disk that forgets (`tests.simulation.disk`). In each run another call fails, with
EIO or ENOSPC; the promise is made once more, as the retry policy or the next run does, and power is lost right after
that, so that no later sync hides what this one left out. A failed sync is not repaired by the next one, as in Linux:
what it was for must be written again.
"""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar
from unittest import mock

import pytest

from consumerd.base.errors import ConsumerdError
from consumerd.base.files import SystemFiles
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, FileDeadLetters, Letter, Message, dead_letter_progress
from consumerd.handlers.builtin.parquet_rows import parquet_pieces
from consumerd.handlers.builtin.range_folders import RangeFolders
from consumerd.handlers.builtin.records import encode_pieces
from consumerd.handlers.dead_letter_progress import Receiver, ReplayProgress, Selection
from consumerd.handlers.dead_letters import decode_letter
from consumerd.operate.admin.offset_file import write_durably
from consumerd.storage import LogManager, LogSettings, OsFiles, StorageError
from consumerd.storage.archives import outputs
from consumerd.storage.archives.export import ArchiveExport
from consumerd.storage.archives.options import ExportCompression, ExportOptions
from consumerd.storage.archives.pool import NoProgress, StopFlag
from consumerd.storage.archives.sources import find_sources
from consumerd.testing import FakeClock
from consumerd.wire.v07 import decode_batch, encode_message_set
from tests.simulation.disk import SimulatedDisk

HERE = TopicPartition("t", 0, 0)
ERRORS = (errno.EIO, errno.ENOSPC)
#: Runs with the same failing call, since a loss of power loses at random; and more calls than a story makes.
SEEDS, MOST = 3, 400

_T = TypeVar("_T")


class PromiseRepeated(Exception):  # noqa: N818 - not an error
    """The promise that was refused was made again: the story ends."""


class Story:
    """What is promised on one disk."""

    def __init__(self, seed: int, source: Path) -> None:
        self.disk = SimulatedDisk(random.Random(seed))
        self.files = SystemFiles(self.disk)
        self.root = Path("/srv")
        self.disk.make_durable_directory(self.root)
        #: A log to export.
        self.source = source
        #: Of each promise that was made, what must hold after a loss of power.
        self.checks: list[Callable[[], None]] = []

    def promise(self, promise: Callable[[], _T], check: Callable[[], None]) -> _T:
        """Make a promise, once more where it is refused. Raises PromiseRepeated then."""
        try:
            made = promise()
        except (OSError, ConsumerdError):
            promise()
            self.checks.append(check)
            raise PromiseRepeated from None
        self.checks.append(check)
        return made

    def content(self, path: Path | str) -> bytes:
        return self.disk.content(Path(path))

    def names(self, path: Path) -> list[str]:
        return sorted(entry.name for entry in self.disk.forgetful.entries(path) if not entry.name.startswith("."))


def nothing() -> None:
    """What must hold after a promise that nobody relies on yet."""


def batches() -> Iterator[Batch]:
    start = 0
    for number in range(2):
        data = encode_message_set([b"%d" % number * 40, b"x"])
        yield Batch(HERE, decode_batch(data, start))
        start += len(data)


def of_ranges(suffix: str, encode: Callable[[Batch], Iterator[bytes]]) -> Callable[[Story], None]:
    def play(story: Story) -> None:
        folder = story.root / "out" / "t" / "0-0"
        store = RangeFolders(story.files, story.root / "out", suffix)
        story.promise(store.prepare, nothing)
        taken = story.promise(lambda: store.take_over("t", "0-0"), nothing)
        for number, batch in enumerate(batches(), 1):

            def check(number: int = number) -> None:
                found = [story.content(folder / name) for name in story.names(folder)]
                assert found == [b"".join(encode(batch)) for batch in islice(batches(), len(found))]
                assert len(found) >= number

            story.promise(lambda batch=batch: store.store(taken, batch, lambda: encode(batch)), check)  # type: ignore[misc]

    return play


def letters(story: Story) -> None:
    path = story.root / "letters" / "dead.ndjson"
    made = FileDeadLetters(path, clock=FakeClock(wall=1e9), file_size=500, files=story.files)

    def stored() -> Iterator[int]:
        for name in story.names(path.parent):
            for line in story.content(path.parent / name).split(b"\n"):
                with suppress(ValueError):
                    yield decode_letter(line).message.offset

    for offset in range(5):
        message = Message(HERE, offset, 0, offset + 1, b"%d" % offset)

        def append(message: Message = message) -> None:
            made._append([Letter(message, ValueError("no"), 1)])

        def check(offset: int = offset) -> None:
            assert offset in stored()

        story.promise(append, check)


def replay(story: Story) -> None:
    path = story.root / "dead.ndjson.replayed"

    def progress() -> ReplayProgress:
        return ReplayProgress(path, selection=Selection(), receiver=Receiver("topic t"), files=story.files)

    noted = progress()
    story.promise(noted.save, nothing)
    for end in (10, 20, 30):

        def check(end: int = end) -> None:
            assert progress().of("digest") >= end

        story.promise(lambda end=end: noted.note("digest", end), check)  # type: ignore[misc]


def export(story: Story) -> None:
    out = story.root / "deep" / "out"

    def run() -> None:
        ArchiveExport(
            find_sources([str(story.source)]), out, ExportOptions(broker=2), workers=1, progress=NoProgress(),
            stop=StopFlag(), monotonic=lambda: 0.0, files=story.files,
        ).run()  # fmt: skip

    def check() -> None:
        segments = json.loads(story.content(out / outputs.MANIFEST))["segments"]
        assert len(segments) == 2
        for segment in segments:
            assert len(story.content(out / segment["output"]).splitlines()) == segment["rows"] == 2

    story.promise(run, check)


def log(story: Story) -> None:
    """As a broker that starts again after an error."""
    folder, files = story.root / "log", OsFiles(story.disk)
    running: list[LogManager] = []

    def start() -> LogManager:
        manager = LogManager(folder, files, lambda topic: LogSettings(segment_bytes=60))
        manager.open(0.0)
        return manager

    def append(number: int) -> None:
        manager = running.pop() if running else start()
        try:
            made, _ = manager.get_or_create("t", 0, 0.0)
            if made.roll_due(0.0):
                made.roll(0.0)
            made.append(encode_message_set([b"%d" % number * 9]), 1, 0.0)
            made.flush(0.0)
        except StorageError:
            manager.abandon()
            raise
        running.append(manager)

    def stored() -> list[bytes]:
        segments = sorted((folder / "t-0" / name) for name in story.names(folder / "t-0"))
        found = b"".join(story.content(segment) for segment in segments if segment.suffix == ".kafka")
        return list(decode_batch(found, 0).payloads)

    for number in range(4):

        def check(number: int = number) -> None:
            assert b"%d" % number * 9 in stored()

        story.promise(lambda number=number: append(number), check)  # type: ignore[misc]


def offsets(story: Story) -> None:
    """As the backup that a command makes before it changes offsets, and `offsets export --output`."""
    path, text = story.root / "offsets", "/consumers/g/offsets/t/0-0:1234567\n" * 3

    def check() -> None:
        assert story.content(path) == text.encode()

    story.promise(lambda: write_durably(path, text, story.files), check)


def checkpoints(story: Story) -> None:
    files, folder = story.files, "/srv/lake/_checkpoints/land"

    def holds(path: str, *any_of: bytes) -> Callable[[], None]:
        def check() -> None:
            assert story.content(f"{folder}/{path}") in any_of

        return check

    story.promise(lambda: files.make_directory(folder), nothing)
    story.promise(lambda: files.create(f"{folder}/began.json", b"offsets" * 9), holds("began.json", b"offsets" * 9))
    one, two = b"one" * 9, b"two" * 9
    story.promise(lambda: files.replace(f"{folder}/seen.json", one), holds("seen.json", one, two))
    story.promise(lambda: files.replace(f"{folder}/seen.json", two), holds("seen.json", two))


STORIES: dict[str, Callable[[Story], None]] = {
    "files": of_ranges(".ndjson", lambda batch: encode_pieces(batch, 1, 100)),
    "parquet": of_ranges(".parquet", lambda batch: parquet_pieces(batch, ExportCompression.NONE)),
    "letters": letters,
    "replay": replay,
    "export": export,
    "checkpoints": checkpoints,
    "offsets": offsets,
    "log": log,
}


def played(name: str, source: Path, failing: int, error: int, seed: int) -> tuple[str | None, bool]:
    """The call that failed, None if there are fewer; and whether a promise was refused."""
    story, refused = Story(seed, source), False
    story.disk.forgetful.fail_after(failing, error)
    with mock.patch.object(dead_letter_progress, "_ROUNDS", 1):
        try:
            STORIES[name](story)
        except PromiseRepeated:
            refused = True
        story.disk.lose_power()
        for check in story.checks:
            check()
    return story.disk.forgetful.failed, refused


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("name", STORIES)
def test_what_is_promised_survives_an_error_at_any_call(name: str, error: int, tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    for start in (0, 22):
        (tmp_path / "t-0" / f"{start:020d}.kafka").write_bytes(encode_message_set([b"1", b"2"]))
    failed: set[str] = set()
    for failing in range(MOST):
        calls = {played(name, tmp_path, failing, error, seed) for seed in range(SEEDS)}
        if calls == {(None, False)}:
            break
        failed |= {call for call, _ in calls if call is not None}
        assert all(refused or call in (None, "remove") for call, refused in calls), f"{calls} is not reported"
    else:
        pytest.fail("the story has too many calls")
    assert {"write", "sync"} <= failed

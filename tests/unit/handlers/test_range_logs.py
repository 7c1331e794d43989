"""Files of a partition whose log becomes another one: `files` and `parquet`, in folders and in a store of objects."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.files import StrPath, SystemFiles
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.handlers import Batch, Handler, HandlerContext, SinkPosition
from consumerd.handlers.builtin.files import FilesHandler
from consumerd.handlers.builtin.parquet import ParquetHandler
from consumerd.handlers.builtin.range_logs import StoredLog, last_log
from consumerd.handlers.builtin.ranges import RangeOverlapError
from consumerd.wire.v08.records import decode_records, encode_record_batch
from tests.support import object_store

HERE = TopicPartition.numbered("t", 3)
A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))
IDS = {log: base64.urlsafe_b64encode(log).decode().rstrip("=") for log in (A, B, C)}


def batch(log: bytes | None, epoch: int | None, start: int, *payloads: bytes) -> Batch:
    """Messages from offset `start` on, of a log."""
    data = encode_record_batch(payloads, base_offset=start, timestamps=1_700_000_000_000)
    content = decode_records(data, start)
    content.log = LogId(log, epoch, 77)
    return Batch(HERE, content)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "t" / "3").iterdir() if path.is_file())


def ranges(directory: Path) -> list[str]:
    return [name for name in names(directory) if not name.startswith(".")]


def parquet(directory: Path) -> ParquetHandler:
    from consumerd.handlers.builtin.parquet import ParquetHandler

    return ParquetHandler(directory)


def objects(directory: Path) -> ParquetHandler:
    return object_store.parquet(str(directory))


SINKS = [FilesHandler, parquet, objects]
MAKE = pytest.mark.parametrize("make", SINKS, ids=["files", "parquet", "objects"])


async def started(make: Callable[[Path], Handler], directory: Path, clock: Any) -> Handler:
    handler = make(directory)
    await handler.start(HandlerContext("g", "g_1", clock))
    return handler


def told(position: int | None) -> tuple[int, LogId] | None:
    if position is None:
        return None
    assert isinstance(position, SinkPosition)
    return int(position), position.log


@MAKE
async def test_topic_made_again_while_running_gets_files_of_its_own(
    make: Callable[[Path], Handler], tmp_path: Path, clock: Any
) -> None:
    handler = await started(make, tmp_path, clock)
    assert await handler.position(HERE) is None
    await handler.handle(batch(A, 0, 0, b"one", b"two"))
    before = {path: path.read_bytes() for path in (tmp_path / "t" / "3").iterdir() if path.is_file()}
    for _ in range(2):  # the second time its confirmation was lost
        await handler.handle(batch(B, 0, 0, b"one", b"two"))
    await handler.handle(batch(B, 0, 2, b"three"))
    assert all(path.read_bytes() == data for path, data in before.items())
    suffix = next(iter(ranges(tmp_path))).rpartition(".")[2]
    assert ranges(tmp_path) == [
        f"{0:020}-{2:020}.log-2.{suffix}",
        f"{0:020}-{2:020}.{suffix}",
        f"{2:020}-{3:020}.log-2.{suffix}",
    ]
    assert told(await handler.position(HERE)) == (3, LogId(B, 0))


@MAKE
async def test_position_after_a_restart_is_that_of_the_log_it_was_read_from(
    make: Callable[[Path], Handler], tmp_path: Path, clock: Any
) -> None:
    handler = await started(make, tmp_path, clock)
    await handler.handle(batch(A, 4, 0, b"one", b"two"))
    await handler.stop()
    handler = await started(make, tmp_path, clock)
    assert told(await handler.position(HERE)) == (2, LogId(A, 4))
    # Now the fetcher finds that the log is B, and begins there at its beginning.
    await handler.handle(batch(B, 0, 0, b"other"))
    await handler.stop()
    handler = await started(make, tmp_path, clock)
    assert told(await handler.position(HERE)) == (1, LogId(B, 0))
    await handler.handle(batch(C, 0, 0, b"third"))
    await handler.stop()
    assert told(await (await started(make, tmp_path, clock)).position(HERE)) == (1, LogId(C, 0))
    assert len(ranges(tmp_path)) == 3


@MAKE
async def test_position_has_the_epoch_of_the_last_message(
    make: Callable[[Path], Handler], tmp_path: Path, clock: Any
) -> None:
    handler = await started(make, tmp_path, clock)
    for number, epoch in enumerate((0, 0, 3, 3, 10)):
        await handler.handle(batch(A, epoch, number, b"x"))
        assert told(await (await started(make, tmp_path, clock)).position(HERE)) == (number + 1, LogId(A, epoch))
        handler = await started(make, tmp_path, clock)
    notes = [name for name in names(tmp_path) if name.startswith(".")]
    assert notes == [f".log-1-{start:020}-{epoch}-{IDS[A]}" for start, epoch in ((0, 0), (2, 3), (4, 10))]


@MAKE
async def test_log_without_id_that_goes_backwards_is_an_error(
    make: Callable[[Path], Handler], tmp_path: Path, clock: Any
) -> None:
    handler = await started(make, tmp_path, clock)
    await handler.handle(batch(None, 5, 0, b"one", b"two"))
    for _ in range(2):
        with pytest.raises(RangeOverlapError, match=r"is below 2, .* the topic was recreated .* another `directory`"):
            await handler.handle(batch(None, 0, 0, b"other", b"two"))
        handler = await started(make, tmp_path, clock)
        assert told(await handler.position(HERE)) == (2, LogId(None, 5))
    assert len(ranges(tmp_path)) == 1


@MAKE
async def test_files_of_older_versions_are_taken_for_the_log_that_continues_them(
    make: Callable[[Path], Handler], tmp_path: Path, clock: Any
) -> None:
    handler = await started(make, tmp_path, clock)
    await handler.handle(batch(None, None, 0, b"one", b"two"))
    assert all(not name.startswith(".log") for name in names(tmp_path))  # as they are
    handler = await started(make, tmp_path, clock)
    assert told(await handler.position(HERE)) == (2, UNKNOWN_LOG)
    with pytest.raises(RangeOverlapError):  # it may be the same log, or another one
        await handler.handle(batch(A, 1, 0, b"one"))
    await handler.handle(batch(A, 1, 2, b"three"))
    assert told(await handler.position(HERE)) == (3, LogId(A, 1))
    await handler.handle(batch(B, 0, 0, b"other"))
    assert len(ranges(tmp_path)) == 3


@MAKE
async def test_batch_whose_broker_tells_no_id_is_of_the_log_before_it(
    make: Callable[[Path], Handler], tmp_path: Path, clock: Any
) -> None:
    handler = await started(make, tmp_path, clock)
    await handler.handle(batch(A, 1, 0, b"one"))
    await handler.handle(batch(None, 1, 1, b"two"))
    assert told(await handler.position(HERE)) == (2, LogId(A, 1))
    await handler.handle(batch(B, 1, 0, b"one"))
    assert told(await handler.position(HERE)) == (1, LogId(B, 1))


class StoppingDisk(SystemFiles):
    """Ends the process at a step."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def _step(self) -> None:
        if self.steps == 0:
            raise KeyboardInterrupt
        self.steps -= 1

    def write(self, path: StrPath, pieces: Iterable[bytes]) -> None:
        self._step()
        super().write(path, pieces)

    def rename(self, source: StrPath, target: StrPath) -> None:
        self._step()
        super().rename(source, target)

    def sync_directory(self, path: StrPath) -> None:
        self._step()
        super().sync_directory(path)

    def remove(self, path: StrPath) -> None:
        self._step()
        super().remove(path)


@pytest.mark.parametrize("after", [A, B, C])
async def test_crash_at_any_step_leaves_either_the_former_position_or_the_new_one(tmp_path: Path, after: bytes) -> None:
    """A crash between a note and its file must not give the former log's files the new log's name."""
    crashes = 0
    for steps in range(40):
        root = tmp_path / str(steps)
        handler = FilesHandler(root)
        await handler.handle(batch(A, 0, 0, b"one", b"two"))
        disk = StoppingDisk(1000)
        dying = FilesHandler.on(disk, root)
        assert told(await dying.position(HERE)) == (2, LogId(A, 0))
        disk.steps = steps
        try:
            await dying.handle(batch(B, 0, 0, b"other"))
        except KeyboardInterrupt:
            crashes += 1
        again = FilesHandler(root)
        position = told(await again.position(HERE))
        assert position in ((2, LogId(A, 0)), (1, LogId(B, 0)))
        if position[1].topic_id == B:
            continue
        await again.handle(batch(after, 0, 2 if after == A else 0, b"third"))  # C: it was made again once more
        last = told(await FilesHandler(root).position(HERE))
        assert last == (3 if after == A else 1, LogId(after, 0))
        assert len(ranges(root)) == 2
    assert 4 < crashes < 40  # every step of it


def test_notes_that_say_nothing_are_named_for_removal() -> None:
    files = [f"{0:020}-{9:020}.ndjson", f"{0:020}-{5:020}.log-2.ndjson"]
    pending = [f".log-2-{5:020}-9-{IDS[C]}", f".log-3-{0:020}-0-{IDS[C]}"]
    notes = [f".log-1-{0:020}-7-{IDS[A]}", f".log-2-{0:020}-0-{IDS[B]}", f".log-2-{3:020}-1-{IDS[B]}"]
    found, removable = last_log("here", [*files, *pending, *notes, ".log-2-x", f".log-0-{0:020}--"], ".ndjson")
    assert found == StoredLog(2, 5, LogId(B, 1))
    assert removable == pending
    assert last_log("here", notes, ".ndjson") == (StoredLog(), notes)


def test_only_overlaps_within_a_log_are_reported() -> None:
    with capture_logs() as lines:
        last_log("here", [f"{0:020}-{9:020}.ndjson", f"{0:020}-{5:020}.log-2.ndjson"], ".ndjson")
        assert lines == []
        last_log("here", [f"{0:020}-{9:020}.ndjson", f"{5:020}-{10:020}.ndjson"], ".ndjson")
    assert [(line["first"], line["second"]) for line in lines] == [((0, 9), (5, 10))]

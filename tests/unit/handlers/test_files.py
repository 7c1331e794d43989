from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode, HandlerFailedError, HandlerLoadError
from consumerd.base.files import StrPath, SystemFiles
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, HandlerContext, PartitionTakenError, load_handler
from consumerd.handlers.builtin.files import FilesHandler
from consumerd.handlers.builtin.ranges import RangeOverlapError
from consumerd.wire.errors import InvalidTopicError

MakeBatch = Callable[..., Batch]


pytestmark = pytest.mark.usefixtures("either_codec")

HERE = TopicPartition("t", 0, 0)


def files(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


async def test_batch_is_a_file_named_by_its_range(tmp_path: Path, make_batch: MakeBatch, clock: Any) -> None:
    handler = load_handler("files", {"directory": str(tmp_path / "made" / "new")})
    await handler.start(HandlerContext("g", "g_1", clock))
    batch = make_batch(b"one", [b"two", b"\xff"], start=71, topic="events", broker=1, partition=10)
    await handler.handle(batch)
    await handler.stop()
    (name,) = files(tmp_path / "made" / "new")
    assert name == f"events/1-10/{71:020}-{batch.next_offset:020}.ndjson"
    records = [json.loads(line) for line in (tmp_path / "made" / "new" / name).read_bytes().splitlines()]
    assert [(r["offset"], r["index"], r.get("payload")) for r in records] == [
        (71, 0, "one"),
        (84, 0, "two"),
        (84, 1, None),
    ]
    assert batch.handled == 3
    # Nothing else is left behind.
    assert os.listdir(tmp_path / "made" / "new" / "events" / "1-10") == [name.rpartition("/")[2]]


async def test_position_is_the_end_of_the_last_range(tmp_path: Path, make_batch: MakeBatch) -> None:
    handler = FilesHandler(tmp_path)
    assert await handler.position(HERE) is None
    first = make_batch(b"one")
    await handler.handle(first)
    gap = make_batch(b"two", start=1000)  # a corrupt stretch was skipped
    await handler.handle(gap)
    for other in (handler, FilesHandler(tmp_path)):
        assert await other.position(HERE) == gap.next_offset
        assert await other.position(TopicPartition("t", 0, 1)) is None


class Committed:
    """A member whose group has committed this offset of each partition."""

    partitions = (HERE,)

    def __init__(self, offset: int | None) -> None:
        self.offset = offset

    async def cluster(self) -> str | None:
        return None

    async def commit(self) -> dict[TopicPartition, int]:
        return {}

    async def committed(self, partition: TopicPartition) -> int | None:
        return self.offset

    def pause(self, partition: TopicPartition) -> None: ...

    def resume(self, partition: TopicPartition) -> None: ...


@pytest.mark.parametrize("name", ["files", "parquet"])
async def test_stops_where_nothing_of_a_topic_is_stored_though_offsets_are_committed(
    tmp_path: Path, clock: Any, name: str
) -> None:
    """As where the file system is not mounted."""
    context = HandlerContext("g", "g_1", clock, member=Committed(88_000))
    handler = load_handler(name, {"directory": str(tmp_path / "out")})
    await handler.start(context)
    with pytest.raises(
        HandlerFailedError, match=r"offset 88000 of t/0-0 is committed, .*mounted\?.*if_empty"
    ) as caught:
        await handler.position(HERE)
    assert caught.value.exit_code == ExitCode.HANDLER_FAILED
    assert [*(tmp_path / "out").iterdir()] == []  # so that the next start stops as well
    told = load_handler(name, {"directory": str(tmp_path / "out"), "if_empty": "continue"})
    await told.start(context)
    assert await told.position(HERE) is None
    await told.stop()
    assert await handler.position(TopicPartition("t", 0, 1)) is None  # something of the topic is here by now
    for offset in (None, 0):
        other = load_handler(name, {"directory": str(tmp_path / f"other{offset}")})
        await other.start(HandlerContext("g", "g_1", clock, member=Committed(offset)))
        assert await other.position(HERE) is None
    with pytest.raises(HandlerLoadError, match="if_empty must be stop or continue"):
        load_handler(name, {"directory": str(tmp_path), "if_empty": "x"})


@pytest.mark.parametrize("name", ["files", "parquet"])
@pytest.mark.parametrize("made_again", [True, False])
async def test_stores_nothing_where_the_directory_was_unmounted(
    tmp_path: Path, make_batch: MakeBatch, clock: Any, name: str, made_again: bool
) -> None:
    directory = tmp_path / "out"
    handler = load_handler(name, {"directory": str(directory)})
    await handler.start(HandlerContext("g", "g_1", clock))
    await handler.position(HERE)
    first = make_batch(b"one")
    await handler.handle(first)
    directory.rename(tmp_path / "unmounted")
    if made_again:
        directory.mkdir()
    words = f"{directory} is {'another one' if made_again else 'missing'} since the start: .*unmounted"
    with pytest.raises(HandlerFailedError, match=words):
        await handler.handle(make_batch(b"two", start=first.next_offset))
    for partition in (HERE, TopicPartition("t", 0, 1)):
        with pytest.raises(HandlerFailedError, match=words):
            await handler.position(partition)
        with pytest.raises(HandlerFailedError, match=words):
            await handler.handle(make_batch(b"two", start=first.next_offset, partition=partition.partition))
    assert [*directory.iterdir()] == [] if made_again else not directory.exists()
    assert len(files(tmp_path / "unmounted")) == 1


async def test_ignores_other_files(tmp_path: Path, make_batch: MakeBatch) -> None:
    folder = tmp_path / "t" / "0-0"
    folder.mkdir(parents=True)
    for name in ("README", "0-99.ndjson", f"{0:020}-{99:020}.ndjson.tmp", f"{0:020}-{99:020}.parquet"):
        (folder / name).touch()
    assert await FilesHandler(tmp_path).position(HERE) is None
    # Overlaps can only come from elsewhere; the answer does not depend on the order of the listing.
    for start, end in ((0, 50), (10, 90), (60, 80)):
        (folder / f"{start:020}-{end:020}.ndjson").touch()
    assert await FilesHandler(tmp_path).position(HERE) == 90


async def test_stores_a_batch_once_if_its_confirmation_is_lost(tmp_path: Path, make_batch: MakeBatch) -> None:
    handler = FilesHandler(tmp_path)
    for _ in range(3):
        batch = make_batch(b"one", b"two")
        await handler.handle(batch)
        assert batch.handled == 2
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("again", [b"one", b"six", b"longer"])
async def test_rejects_a_log_that_restarts_at_a_lower_offset(
    tmp_path: Path, make_batch: MakeBatch, again: bytes
) -> None:
    handler = FilesHandler(tmp_path)
    await handler.handle(make_batch(b"one"))
    if again != b"one":  # the very same bytes in the very same place are a repetition
        with pytest.raises(RangeOverlapError, match=r"offset 0 of t/0-0 is below 13, where the files in .* end"):
            await handler.handle(make_batch(again))
    other = FilesHandler(tmp_path)
    await other.position(HERE)
    with pytest.raises(RangeOverlapError):
        await other.handle(make_batch(again))
    assert len(files(tmp_path)) == 1


async def test_skips_empty_ranges(tmp_path: Path, make_batch: MakeBatch) -> None:
    handler = FilesHandler(tmp_path)
    await handler.handle(make_batch())  # an empty batch
    assert files(tmp_path) == []
    assert await handler.position(HERE) is None


@pytest.mark.parametrize("topic", ["with space", "*", "привет", "a:b,c", "-", "...", "%2e%2e", ".writer-x", "x" * 255])
async def test_writes_unusual_topic_names_as_folders(tmp_path: Path, make_batch: MakeBatch, topic: str) -> None:
    handler = FilesHandler(tmp_path)
    await handler.handle(make_batch(b"x", topic=topic))
    assert files(tmp_path) == [f"{topic}/0-0/{0:020}-{11:020}.ndjson"]


@pytest.mark.parametrize("topic", ["", ".", "..", "../x", "a/b", "/etc", "nul\0"])
async def test_topic_cannot_escape_the_directory(tmp_path: Path, make_batch: MakeBatch, topic: str) -> None:
    handler = FilesHandler(tmp_path / "inside")
    with pytest.raises(InvalidTopicError):
        await handler.handle(make_batch(b"x", topic=topic))
    with pytest.raises(InvalidTopicError):
        await handler.position(TopicPartition(topic, 0, 0))
    assert files(tmp_path) == []


async def test_reports_a_directory_that_cannot_be_created_at_the_start(tmp_path: Path, clock: Any) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HandlerFailedError, match="cannot create the directory"):
        await FilesHandler(tmp_path / "file" / "x").start(HandlerContext("g", "g_1", clock))
    for wrong in (5, "", None):
        value: Any = wrong
        with pytest.raises(ValueError, match="must be a path"):
            FilesHandler(value)


class FullDisk(SystemFiles):
    """Has no room for a while."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def write(self, path: StrPath, pieces: Iterable[bytes]) -> None:
        if self.failures:
            self.failures -= 1
            data = b"".join(pieces)
            super().write(path, [data[: len(data) // 2]])
            raise OSError(28, "No space left on device")
        super().write(path, pieces)


async def test_full_disk_leaves_no_file_and_the_retry_succeeds(tmp_path: Path, make_batch: MakeBatch) -> None:
    handler = FilesHandler.on(FullDisk(2), tmp_path)
    batch = make_batch(b"one", b"two")
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            await handler.handle(batch)
        assert not batch.counted  # a retry policy gives the whole batch again
        assert not list(tmp_path.rglob("*.ndjson")) or files(tmp_path)[0].startswith("t/0-0/.writer-")
    await handler.handle(batch)
    (name,) = files(tmp_path)
    assert len((tmp_path / name).read_bytes().splitlines()) == 2


async def test_cancelled_write_ends_before_the_handler(tmp_path: Path, make_batch: MakeBatch) -> None:
    loop, writing = asyncio.get_running_loop(), asyncio.Event()

    class Telling(SystemFiles):
        def write(self, path: StrPath, pieces: Iterable[bytes]) -> None:
            loop.call_soon_threadsafe(writing.set)
            super().write(path, pieces)

    handler = FilesHandler.on(Telling(), tmp_path)
    batch = make_batch(*[b"x" * 10_000] * 20)  # one piece
    task = asyncio.create_task(handler.handle(batch))
    await writing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # The range is there as a whole, so the batch counts as handled although the call was cancelled.
    assert len(files(tmp_path)) == 1
    assert batch.handled == 20
    assert await FilesHandler(tmp_path).position(HERE) == batch.next_offset


async def test_former_owner_cannot_write(tmp_path: Path, make_batch: MakeBatch) -> None:
    old, new = FilesHandler(tmp_path), FilesHandler(tmp_path)
    first, second = make_batch(b"one"), make_batch(b"two", start=13)
    await old.handle(first)
    assert await new.position(HERE) == first.next_offset
    with pytest.raises(PartitionTakenError, match="another member took over t/0-0"):
        await old.handle(second)
    await new.handle(second)
    await old.stop()
    assert await old.position(HERE) == second.next_offset  # it may get the partition back
    await old.handle(make_batch(b"three", start=26))
    assert len(files(tmp_path)) == 3


class Slices(SystemFiles):
    """Records the sizes of the pieces, and lets a test wait for the second one."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.second = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def write(self, path: StrPath, pieces: Iterable[bytes]) -> None:
        super().write(path, map(self.noted, pieces))

    def noted(self, piece: bytes) -> bytes:
        self.sizes.append(len(piece))
        if len(self.sizes) == 2:
            self.second.set()
            assert self.go_on.wait(30)
        return piece


async def test_writes_a_large_batch_in_pieces_to_one_file(tmp_path: Path, make_batch: MakeBatch) -> None:
    disk = Slices()
    handler = FilesHandler.on(disk, tmp_path)
    batch = make_batch([b""] * 45_000)
    await handler.handle(batch)
    assert len(disk.sizes) >= 5
    assert max(disk.sizes) <= 1 << 20
    (name,) = files(tmp_path)
    assert name == f"t/0-0/{0:020}-{batch.next_offset:020}.ndjson"
    assert [json.loads(line)["index"] for line in (tmp_path / name).read_bytes().splitlines()] == list(range(45_000))
    # Delivered again after its confirmation was lost: the file exists. Another one of the same range is not.
    await handler.handle(batch.rest(0))
    other = make_batch([b""] * 44_999 + [b""])
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    with pytest.raises(RangeOverlapError):
        await handler.handle(other)


async def test_cancelled_large_batch_leaves_no_file(tmp_path: Path, make_batch: MakeBatch) -> None:
    disk = Slices()
    disk.go_on.clear()
    handler = FilesHandler.on(disk, tmp_path)
    batch = make_batch([b""] * 45_000)
    task = asyncio.create_task(handler.handle(batch))
    assert await asyncio.to_thread(disk.second.wait, 30)
    task.cancel()
    await asyncio.sleep(0)
    disk.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(disk.sizes) == 2
    assert files(tmp_path) == []
    assert not batch.counted
    await handler.handle(batch)
    assert await FilesHandler(tmp_path).position(HERE) == batch.next_offset

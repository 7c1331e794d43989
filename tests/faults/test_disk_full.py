"""Files on a disk that is really full: a small tmpfs, filled up, and given room again."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from pyarrow import parquet as pq

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.handlers import (
    Batch,
    FileDeadLetters,
    Handler,
    HandlerContext,
    Message,
    RetryPolicy,
    load_handler,
    message_handler,
    retrying,
)
from consumerd.handlers.counts import HandlerCounts
from consumerd.wire.v07 import decode_batch, encode_message_set
from tests.support.dead_letters import read_letters
from tests.support.small_disk import fill, small_disk

ROOT = Path(__file__).parents[2]
HERE = TopicPartition("t", 0, 0)
SIZE = 512 << 10
CONTEXT = HandlerContext("g", "g_1", SystemClock())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", SIZE) as mounted:
        yield mounted


def batch_at(start: int, *payloads: bytes) -> Batch:
    return Batch(HERE, decode_batch(encode_message_set(list(payloads)), start))


def in_policy(handler: Handler, counts: HandlerCounts, letters: FileDeadLetters | None = None) -> Handler:
    policy = RetryPolicy(max_attempts=1, max_backoff=0.02, on_failure="stop" if letters is None else "dead_letter")
    return retrying(
        handler, policy, clock=SystemClock(), rng=random.Random(1), name="sink", dead_letters=letters, counts=counts
    )


async def until_it_waits(counts: HandlerCounts, task: asyncio.Task[None]) -> None:
    """The count is the only word of it: polled."""
    async with asyncio.timeout(30):
        while not counts.disk_full:
            assert not task.done(), task
            await asyncio.sleep(0.01)


def stored(path: Path) -> list[tuple[int, bytes]]:
    if path.suffix == ".parquet":
        return [(row["offset"], row["payload"]) for row in pq.read_table(path, partitioning=None).to_pylist()]
    return [(row["offset"], row["payload"].encode()) for row in map(json.loads, path.read_text().splitlines())]


@pytest.mark.parametrize("name", ["files", "parquet"])
async def test_waits_on_a_full_disk_and_loses_nothing(disk: Path, name: str) -> None:
    counts, out = HandlerCounts(), disk / "out"
    options = {"directory": str(out), **({"compression": "none"} if name == "parquet" else {})}
    handler = in_policy(load_handler(name, options), counts)
    await handler.start(CONTEXT)
    first = batch_at(0, b"a", b"b")
    await handler.handle(first)
    ballast = fill(disk, spare=40_000)
    second = batch_at(first.next_offset, *(b"%d" % number * 200 for number in range(100, 200)))
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(handler.handle(second))
        await until_it_waits(counts, task)
        assert len([*out.rglob(f"[0-9]*{'.ndjson' if name == 'files' else '.parquet'}")]) >= 1
        assert second.handled == 0
        ballast.unlink()
        async with asyncio.timeout(30):
            await task
    assert [line["event"] for line in logs] == ["disk_full", "disk_space_recovered"]
    assert "No space left on device" in logs[0]["reason"]
    await handler.stop()
    found = [row for path in sorted(out.rglob("*-*.*")) if path.is_file() for row in stored(path)]
    assert found == [(m.offset, m.payload) for each in (first, second) for m in each.messages()]
    assert sorted(path.name[0] for path in (out / "t" / "0-0").iterdir()) == ["0", "0"]  # and nothing torn


async def test_a_partition_that_is_taken_away_while_it_waits_leaves_nothing(disk: Path) -> None:
    counts, out = HandlerCounts(), disk / "out"
    handler = in_policy(load_handler("files", {"directory": str(out)}), counts)
    await handler.start(CONTEXT)
    fill(disk, spare=40_000)
    batch = batch_at(0, *(b"%d" % number * 200 for number in range(100, 200)))
    task = asyncio.create_task(handler.handle(batch))
    await until_it_waits(counts, task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert counts.disk_full == 0
    await handler.stop()
    assert [path for path in out.rglob("*") if path.is_file()] == []
    assert await load_handler("files", {"directory": str(out)}).position(HERE) is None


async def test_dead_letters_wait_on_a_full_disk(disk: Path) -> None:
    @message_handler
    async def failing(message: Message) -> None:
        raise ValueError("no")

    counts, path = HandlerCounts(), disk / "dead.ndjson"
    handler = in_policy(failing, counts, FileDeadLetters(path, clock=SystemClock()))
    await handler.start(CONTEXT)
    await handler.handle(batch_at(0, b"first"))
    ballast = fill(disk, spare=1000)
    batch = batch_at(15, b"x" * 5000, b"y" * 5000)
    task = asyncio.create_task(handler.handle(batch))
    await until_it_waits(counts, task)
    assert [line.problem for line in read_letters(path)] == [""]  # what did not fit is taken back
    ballast.unlink()
    async with asyncio.timeout(30):
        await task
    await handler.stop()
    letters = [line.letter for line in read_letters(path)]
    payloads = [letter.message.payload for letter in letters if letter is not None]
    assert payloads == [b"first", b"x" * 5000, b"y" * 5000]


def test_waits_while_a_disk_is_read_only(disk: Path) -> None:
    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)

    async def live() -> None:
        counts, out = HandlerCounts(), disk / "out"
        handler = in_policy(load_handler("files", {"directory": str(out)}), counts)
        await handler.start(CONTEXT)
        first = batch_at(0, b"a")
        await handler.handle(first)
        remount("ro")
        task = asyncio.create_task(handler.handle(batch_at(first.next_offset, b"b")))
        await until_it_waits(counts, task)
        remount("rw")
        async with asyncio.timeout(30):
            await task
        await handler.stop()
        assert [row[1] for path in sorted(out.rglob("*.ndjson")) for row in stored(path)] == [b"a", b"b"]

    asyncio.run(live())


@pytest.mark.parametrize("name", ["files", "parquet"])
def test_stops_on_a_full_disk_with_the_documented_exit_code(disk: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "lines.txt").write_text("".join(f"{number:0200}\n" for number in range(500)))
    config: dict[str, Any] = {"name": name, "on_disk_full": "stop", "on_failure": "skip"}
    text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in config.items())
    options = f'directory = "{disk}/out"' + (', compression = "none"' if name == "parquet" else "")
    (tmp_path / "config.toml").write_text(
        f'[group]\nid = "g"\ntopics = {{ t = 1 }}\n[zookeeper]\nconnect = "127.0.0.1:1"\n'
        f"[handler]\n{text}\noptions = {{ {options} }}\n"
    )
    fill(disk, spare=40_000)
    command = [sys.executable, "-m", "consumerd", "handlers", "test", "-c", str(tmp_path / "config.toml")]
    done = subprocess.run(
        [*command, str(tmp_path / "lines.txt")], check=False, capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert done.returncode == 10, done
    assert "is full or read-only" in done.stderr
    assert "make room, then start the daemon again" in done.stderr
    assert [path for path in (disk / "out").rglob("*") if path.is_file()] == []


def test_a_full_disk_of_the_log_does_not_end_a_server(tmp_path: Path) -> None:
    """What is written to `/dev/full` finds no space left."""
    command = [sys.executable, "-m", "consumerd", "broker", "--no-zookeeper", "--port", "0"]
    with (
        Path("/dev/full").open("wb") as full,
        subprocess.Popen(
            [*command, "--log-dir", str(tmp_path / "data")], stdout=subprocess.PIPE, stderr=full, cwd=ROOT
        ) as process,
    ):
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["log", "dump", "/nowhere"], ExitCode.NOT_FOUND), (["log", "dump", "--nosuch"], ExitCode.USAGE)],
)
def test_a_full_disk_of_standard_error_does_not_change_the_exit_code(arguments: list[str], code: ExitCode) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "consumerd", *arguments]
        assert subprocess.run(command, check=False, stderr=full, timeout=60, cwd=ROOT).returncode == code

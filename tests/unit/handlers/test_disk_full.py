"""A full disk uses no attempts: the policy waits for room, or stops."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from consumerd.base.errors import ExitCode
from consumerd.handlers import (
    Batch,
    DeadLetters,
    DiskFullError,
    FileDeadLetters,
    Handler,
    HandlerContext,
    Message,
    RetryPolicy,
    message_handler,
    retrying,
)
from consumerd.handlers.counts import HandlerCounts
from consumerd.handlers.disk_full import is_disk_full
from consumerd.testing import FakeClock
from tests.support.dead_letters import read_letters

MakeBatch = Callable[..., Batch]


def full(number: int = errno.ENOSPC) -> OSError:
    return OSError(number, os.strerror(number), "/mnt/out")


class Disk(Handler):
    """A handler that raises what the script says, one entry per call of any method."""

    def __init__(self, *script: Exception | None) -> None:
        self.script = list(script)
        self.taken: list[bytes] = []

    def step(self) -> None:
        if self.script and (error := self.script.pop(0)) is not None:
            raise error

    async def start(self, context: HandlerContext) -> None:
        self.step()

    async def position(self, partition: Any) -> int | None:
        self.step()
        return 7

    async def handle(self, batch: Batch) -> None:
        self.step()
        self.taken += batch


def wrapped(
    inner: Handler,
    clock: FakeClock,
    counts: HandlerCounts | None = None,
    dead_letters: DeadLetters | None = None,
    **policy: Any,
) -> Handler:
    made = RetryPolicy(**policy)
    return retrying(
        inner, made, clock=clock, rng=random.Random(1), name="mine", dead_letters=dead_letters, counts=counts
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
async def test_waits_for_room_without_using_attempts(make_batch: MakeBatch, clock: FakeClock, number: int) -> None:
    inner, counts = Disk(*[full(number)] * 20), HandlerCounts()
    batch = make_batch(b"a", b"b")
    with structlog.testing.capture_logs() as logs:
        await wrapped(inner, clock, counts, max_attempts=1, max_backoff=8.0).handle(batch)
    assert inner.taken == [b"a", b"b"]
    assert batch.handled == 2
    assert [(line["event"], line.get("reason")) for line in logs] == [
        ("disk_full", str(full(number))),
        ("disk_space_recovered", None),
    ]
    assert len(clock.sleeps) == 20
    assert clock.sleeps[0] <= 0.5
    assert 4.0 <= clock.sleeps[-1] <= 8.0
    assert (counts.failures.total(), counts.retries.total(), counts.disk_full) == (0, 0, 0)


async def test_other_errors_count_between_those_of_the_disk(make_batch: MakeBatch, clock: FakeClock) -> None:
    inner, counts = Disk(full(), ValueError("no"), full(), full(), ValueError("no")), HandlerCounts()
    await wrapped(inner, clock, counts, max_attempts=3).handle(make_batch(b"a"))
    assert counts.failures.total() == 2
    with pytest.raises(Exception, match="failed 2 times"):
        await wrapped(Disk(full(), ValueError("no"), full(), ValueError("no")), clock, max_attempts=2).handle(
            make_batch(b"a")
        )


async def test_continues_at_the_message_that_had_no_room(make_batch: MakeBatch, clock: FakeClock) -> None:
    calls: list[bytes] = []

    @message_handler
    async def each(message: Message) -> None:
        calls.append(message.payload)
        if calls.count(b"b") == 1 and message.payload == b"b":
            raise full()

    batch = make_batch(b"a", b"b", b"c")
    await wrapped(each, clock, max_attempts=1).handle(batch)
    assert calls == [b"a", b"b", b"b", b"c"]
    assert batch.handled == 3


async def test_logs_once_for_all_partitions_that_wait(make_batch: MakeBatch) -> None:
    clock, counts = FakeClock(), HandlerCounts()
    handler = wrapped(Disk(*[full()] * 3), clock, counts)
    with structlog.testing.capture_logs() as logs:
        tasks = [asyncio.create_task(handler.handle(make_batch(b"a", partition=number))) for number in range(3)]
        while clock.sleepers < 3:
            await asyncio.sleep(0)
        assert counts.disk_full == 3
        tasks[2].cancel()  # it moves to another member
        await asyncio.wait([tasks[2]])
        assert counts.disk_full == 2
        await clock.advance(1.0)
        await asyncio.gather(*tasks[:2])
    assert [line["event"] for line in logs] == ["disk_full", "disk_space_recovered"]
    assert counts.disk_full == 0


async def test_waits_at_start_and_for_a_position(clock: FakeClock) -> None:
    inner = Disk(full(), full(), None, full(), None)
    handler = wrapped(inner, clock, max_attempts=1)
    await handler.start(HandlerContext("g", "g_1", clock))
    partition: Any = "t/0-0"
    assert await handler.position(partition) == 7
    assert len(clock.sleeps) == 3


async def test_stops_at_once_where_the_policy_says_so(make_batch: MakeBatch, clock: FakeClock) -> None:
    inner = Disk(*[full()] * 2)
    batch = make_batch(b"a")
    with pytest.raises(DiskFullError) as caught:
        await wrapped(inner, clock, on_disk_full="stop", on_failure="skip").handle(batch)
    assert caught.value.exit_code == ExitCode.HANDLER_FAILED
    assert str(caught.value).startswith("the disk of handler 'mine' is full or read-only ([Errno 28] No space left")
    assert clock.sleeps == []
    assert len(inner.script) == 1
    assert batch.handled == 0


class FullFile(FileDeadLetters):
    """Cuts off its first writes after some bytes, as a full disk does."""

    failures = 3

    def _write(self, descriptor: int, lines: bytes, *, locked: bool) -> None:
        if self.failures:
            self.failures -= 1
            size = os.fstat(descriptor).st_size
            os.write(descriptor, lines[:40])
            os.ftruncate(descriptor, size)  # what the real one does under its lock
            raise full()
        super()._write(descriptor, lines, locked=locked)


async def test_dead_letters_wait_for_room(tmp_path: Path, make_batch: MakeBatch, clock: FakeClock) -> None:
    path = tmp_path / "dead.ndjson"
    inner, place = Disk(None, ValueError("bad")), FullFile(path, clock=clock)
    handler = wrapped(inner, clock, dead_letters=place, on_failure="dead_letter", max_attempts=1)
    await handler.start(HandlerContext("g", "g_1", clock))
    batch = make_batch(b"a", b"b")
    await handler.handle(batch)
    await handler.stop()
    letters = [line.letter for line in read_letters(path)]
    assert [letter and letter.message.payload for letter in letters] == [b"a", b"b"]
    assert batch.handled == 2


async def test_dead_letters_stop_where_the_policy_says_so(
    tmp_path: Path, make_batch: MakeBatch, clock: FakeClock
) -> None:
    path = tmp_path / "dead.ndjson"
    place = FullFile(path, clock=clock)
    policy: dict[str, Any] = {"on_failure": "dead_letter", "on_disk_full": "stop", "max_attempts": 1}
    handler = wrapped(Disk(None, ValueError("bad")), clock, dead_letters=place, **policy)
    await handler.start(HandlerContext("g", "g_1", clock))
    batch = make_batch(b"a")
    with pytest.raises(DiskFullError, match=r"cannot write to the dead-letter file .*dead.ndjson: No space left"):
        await handler.handle(batch)
    await handler.stop()
    assert batch.handled == 0
    assert path.read_bytes() == b""


async def test_recognises_a_full_disk_by_the_error() -> None:
    assert not is_disk_full(OSError(errno.EIO, "I/O error"))
    assert not is_disk_full(ValueError(errno.ENOSPC))
    assert is_disk_full(DiskFullError("x"))

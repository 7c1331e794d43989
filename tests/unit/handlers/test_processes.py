"""Synchronous handlers in worker processes: results, failures, kills and cancellation, with real processes."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import HandlerFailedError, HandlerLoadError
from consumerd.handlers import Batch, HandlerContext, Letter, Message, RetryPolicy
from consumerd.handlers.decoding.api import load_decoder
from consumerd.handlers.handler_stages import Stages
from consumerd.handlers.processes import ProcessHandler
from consumerd.testing.records import MemoryDeadLetters

MakeBatch = Callable[..., Batch]


class UnreadableError(Exception):
    """Cannot be made of its arguments, and so not be read by another process."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Writing:
    """Does what the payload says, and writes it down with the number of its process."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def handle(self, messages: Sequence[Message]) -> None:
        for message in messages:
            what = message.payload
            with self.path.open("a") as file:
                file.write(f"{os.getpid()} {what.decode()}\n")
            if what == b"bad":
                raise ValueError("bad")
            if what == b"unreadable":
                raise UnreadableError(1, 2)
            if what == b"exit":
                raise SystemExit(3)
            if what == b"die":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == b"sleep":
                time.sleep(1000)
            if what == b"hold":
                ctypes.PyDLL(None).sleep(60)  # with the interpreter's lock


class Refusing:
    def __init__(self) -> None:
        if os.environ.get("CONSUMERD_TEST_REFUSES"):
            raise ValueError("not here")

    def handle(self, messages: Sequence[Message]) -> None:
        return


def check_values(messages: Sequence[Message]) -> None:
    assert [message.value["n"] for message in messages] == [1, 2]
    assert messages[1].identity.offset > 0


async def awaits(messages: Sequence[Message]) -> None:
    return


NAME = "tests.unit.handlers.test_processes"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh interpreters find this module as tests find what they share."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


class Lines:
    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[tuple[int, str]]:
        text = self.path.read_text() if self.path.exists() else ""
        return [(int(line.split()[0]), line.split()[1]) for line in text.splitlines()]

    async def until(self, count: int) -> list[tuple[int, str]]:
        """Another process writes: there is nothing to await."""
        async with asyncio.timeout(60):
            while len(self.read()) < count:
                await asyncio.sleep(0.02)
        return self.read()


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    return Lines(tmp_path / "lines")


def handler_of(lines: Lines, clock: Any, letters: list[Letter], processes: int = 1, **policy: Any) -> Any:
    plugin = ProcessHandler(f"{NAME}:Writing", {"path": str(lines.path)}, processes)
    policy = {"max_attempts": 2, "on_failure": "dead_letter", **policy}
    return Stages("mine").around(
        plugin, RetryPolicy(**policy), clock=clock, rng=random.Random(1), dead_letters=MemoryDeadLetters(letters)
    )


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_failures_and_deaths_of_workers_meet_the_policy(make_batch: MakeBatch, clock: Any, lines: Lines) -> None:
    letters: list[Letter] = []
    handler = handler_of(lines, clock, letters)
    await handler.start(HandlerContext("g", "g_1", clock))
    try:
        for payload in (b"a", b"bad", b"unreadable", b"exit", b"die", b"b"):
            batch = make_batch(payload)
            await handler.handle(batch)
            assert batch.handled == 1
    finally:
        await handler.stop()
    written = lines.read()
    assert [what for _, what in written] == ["a", *["bad"] * 2, *["unreadable"] * 2, *["exit"] * 2, *["die"] * 2, "b"]
    assert [(letter.attempts, type(letter.error).__name__, str(letter.error)) for letter in letters] == [
        (2, "ValueError", "bad"),
        (2, "RuntimeError", "UnreadableError: 1 and 2"),
        (2, "RuntimeError", "it called sys.exit(3)"),
        (2, "WorkerDiedError", "the worker process died, perhaps because it ran out of memory"),
    ]
    pids = [pid for pid, _ in written]
    assert len(set(pids[:8])) == 1  # what fails in Python costs no process
    assert len(set(pids)) == 3
    assert os.getpid() not in pids
    assert all(gone(pid) for pid in pids)


async def test_cancelled_call_has_ended_and_others_go_on(make_batch: MakeBatch, clock: Any, lines: Lines) -> None:
    handler = handler_of(lines, clock, [], processes=2)
    await handler.start(HandlerContext("g", "g_1", clock))
    try:
        tasks = [asyncio.create_task(handler.handle(make_batch(b"sleep", partition=n))) for n in range(2)]
        (first, _), (second, _) = await lines.until(2)
        assert first != second
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert [gone(first), gone(second)].count(True) == 1
        assert not tasks[1].done()
        await handler.handle(make_batch(b"a"))
        tasks[1].cancel()
        await asyncio.wait(tasks)
    finally:
        await handler.stop()
    assert all(gone(pid) for pid, _ in lines.read())


async def test_decoded_values_reach_the_worker(make_batch: MakeBatch, clock: Any) -> None:
    stages = Stages("mine", decoder=load_decoder("json"))
    handler = stages.around(
        ProcessHandler(f"{NAME}:check_values", {}, 1), RetryPolicy(max_attempts=1), clock=clock, rng=random.Random(1)
    )
    await handler.start(HandlerContext("g", "g_1", clock))
    try:
        await handler.handle(make_batch(b'{"n":1}', b'{"n":2}'))
    finally:
        await handler.stop()


async def test_handler_that_refuses_its_options_ends_the_start(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSUMERD_TEST_REFUSES", "1")
    handler = ProcessHandler(f"{NAME}:Refusing", {}, 1)
    with pytest.raises(HandlerFailedError, match="cannot be created: ValueError: not here"):
        await handler.start(HandlerContext("g", "g_1", clock))
    await handler.stop()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (f"{NAME}:awaits", {}, "must be a `def` of a list of messages"),
        ("print", {}, "cannot run in processes"),
        (f"{NAME}:check_values", {"a": 1}, "takes no options"),
        ("nowhere_at_all:x", {}, "no module named"),
    ],
)
def test_rejects_handlers_that_are_not_synchronous(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(HandlerLoadError, match=words):
        ProcessHandler(name, options, 1)


PARENT = f"""
import asyncio, sys
from consumerd.base.clock import SystemClock
from consumerd.handlers import HandlerContext
from consumerd.handlers.processes import ProcessHandler
from consumerd.handlers.messages import Message
from consumerd.base.partition import TopicPartition

async def main():
    handler = ProcessHandler("{NAME}:Writing", {{"path": sys.argv[1]}}, 1)
    await handler.start(HandlerContext("g", "c", SystemClock()))
    message = Message(TopicPartition("t", 0, 0), 0, 0, 13, b"hold")
    await handler._workers[0].run([message])

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process that holds the interpreter's lock")
async def test_worker_that_holds_the_gil_dies_with_its_killed_parent(lines: Lines, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = await asyncio.create_subprocess_exec(sys.executable, str(script), str(lines.path))
    ((pid, _),) = await lines.until(1)
    worker = os.pidfd_open(pid)
    try:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(worker, ended.set)
        await asyncio.sleep(0.1)  # until it holds the lock
        assert not ended.is_set()
        parent.kill()
        await parent.wait()
        async with asyncio.timeout(10):
            await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(worker)
        os.close(worker)
        if not ended.is_set():
            os.kill(pid, signal.SIGKILL)

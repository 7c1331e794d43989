"""The handler `exec` with real programs."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import HandlerFailedError, HandlerLoadError
from consumerd.handlers import Batch, Handler, HandlerContext, load_handler
from consumerd.handlers.builtin.exec import ProgramError

MakeBatch = Callable[..., Batch]


#: Appends each payload to a file and acknowledges it; `fail`, `exit`, `hang`, `ok 2` and `talk` do what they say.
PROGRAM = """
import json, os, sys, time
out = open(sys.argv[1], "a")
for line in sys.stdin:
    payload = json.loads(line)["payload"]
    if payload == "fail": print("error cannot digest that", flush=True); continue
    if payload == "exit": sys.exit(3)
    if payload == "kill": os.kill(os.getpid(), 9)
    if payload == "talk": print("hello", flush=True); continue
    if payload == "long": print("x" * 100000, flush=True); continue
    out.write(payload + "\\n"); out.flush()
    if payload == "hang": time.sleep(1000)
    if payload == "wait": continue
    print(sys.argv[2] if len(sys.argv) > 2 else "", flush=True)
"""


class Program:
    def __init__(self, directory: Path) -> None:
        self.file = directory / "program.py"
        self.file.write_text(PROGRAM)
        self.out = directory / "out"
        self.out.touch()

    def handler(self, *arguments: str, **options: Any) -> Handler:
        command = [sys.executable, str(self.file), str(self.out), *arguments]
        return load_handler("exec", {"command": command, **options})

    @property
    def seen(self) -> list[str]:
        return self.out.read_text().splitlines()


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


async def test_every_message_is_acknowledged(program: Program, make_batch: MakeBatch, clock: Any) -> None:
    handler = program.handler("ok")
    await handler.start(HandlerContext("g", "g_1", clock))
    batches = [make_batch(b"a", [b"b", b"c"]), make_batch(b"d", partition=1)]
    await asyncio.gather(*(handler.handle(batch) for batch in batches))
    await handler.stop()
    assert program.seen == ["a", "b", "c", "d"]
    assert [batch.handled for batch in batches] == [3, 1]


async def test_a_large_batch_fills_no_pipe(program: Program, make_batch: MakeBatch) -> None:
    handler = program.handler()
    batch = make_batch(*(b"%d" % number * 20 for number in range(20_000)))
    await handler.handle(batch)
    await handler.stop()
    assert len(program.seen) == batch.handled == 20_000


async def test_several_are_acknowledged_at_once(tmp_path: Path, make_batch: MakeBatch) -> None:
    handler = load_handler("exec", {"command": ["sh", "-c", "read a; read b; read c; echo ok 3; cat >/dev/null"]})
    batch = make_batch(b"a", b"b", b"c")
    await handler.handle(batch)
    await handler.stop()
    assert batch.handled == 3


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"fail", "cannot digest that"),
        (b"exit", "ended with exit code 3"),
        (b"kill", "ended with signal 9"),
        (b"talk", r"printed b'hello\\n', which acknowledges nothing"),
        (b"long", "printed a line longer than"),
    ],
)
async def test_what_was_acknowledged_before_a_failure_counts_and_the_program_starts_again(
    program: Program, make_batch: MakeBatch, payload: bytes, words: str
) -> None:
    handler = program.handler()
    batch = make_batch(b"a", payload, b"c")
    with pytest.raises(ProgramError, match=words):
        await handler.handle(batch)
    assert batch.handled == 1
    await handler.handle(make_batch(b"d"))
    await handler.stop()
    assert program.seen[0] == "a"
    assert program.seen[-1] == "d"


async def test_more_acknowledgements_than_messages_are_a_failure(make_batch: MakeBatch) -> None:
    for text in ("ok 2", "ok 0", "ok -1", "ok 99999999999999999999"):
        handler = load_handler("exec", {"command": ["sh", "-c", f"read a; echo {text}; cat >/dev/null"]})
        with pytest.raises(ProgramError, match="acknowledges nothing"):
            await handler.handle(make_batch(b"a"))
        await handler.stop()


@asynccontextmanager
async def cancelled(tmp_path: Path, make_batch: MakeBatch) -> AsyncIterator[Path]:
    """A call of a program that starts another one, and is cancelled at the end of the block: both have ended then.

    The program writes both process ids into the file once they are there.
    """
    pids = tmp_path / "pids"
    script = f"sleep 1000 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; cat >/dev/null"
    handler = load_handler("exec", {"command": ["sh", "-c", script]})
    task = asyncio.create_task(handler.handle(make_batch(b"a")))
    yield pids
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    program, child = map(int, pids.read_text().split())
    with pytest.raises(ProcessLookupError):
        os.kill(program, 0)
    while _runs(child):  # its parent has ended: another process reaps it
        await asyncio.sleep(0.01)
    await handler.stop()


async def test_a_cancelled_program_has_ended_with_all_that_it_started(tmp_path: Path, make_batch: MakeBatch) -> None:
    async with cancelled(tmp_path, make_batch) as pids:
        while not pids.exists():
            await asyncio.sleep(0.01)


async def test_a_program_ends_where_its_start_is_cancelled(tmp_path: Path, make_batch: MakeBatch) -> None:
    async with cancelled(tmp_path, make_batch) as pids:
        await asyncio.sleep(0)  # it has been forked, and no object refers to it yet
        await asyncio.sleep(0)
        deadline = time.monotonic() + 60
        while not pids.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)  # the loop must not continue


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_program_that_does_not_end_is_killed(make_batch: MakeBatch) -> None:
    handler = load_handler(
        "exec", {"command": ["sh", "-c", "read a; echo; sleep 1000; sleep 1000"], "stop_timeout": 0.01}
    )
    await handler.handle(make_batch(b"a"))
    await handler.stop()


async def test_the_program_gets_records_its_directory_and_variables(tmp_path: Path, make_batch: MakeBatch) -> None:
    script = 'read -r line; printf "%s %s\\n" "$NAME" "$line" > here; echo'
    handler = load_handler("exec", {"command": ["sh", "-c", script], "cwd": str(tmp_path), "env": {"NAME": "x"}})
    await handler.handle(make_batch(b"\xff", start=71))
    await handler.stop()
    name, _, line = (tmp_path / "here").read_text().partition(" ")
    assert name == "x"
    assert json.loads(line) == {
        "topic": "t", "broker": 0, "partition": 0, "offset": 71, "index": 0, "payload_base64": "/w==",
    }  # fmt: skip


async def test_a_command_that_cannot_be_started_stops_the_daemon(tmp_path: Path, clock: Any) -> None:
    for options in ({"command": [str(tmp_path / "none")]}, {"command": ["sh"], "cwd": str(tmp_path / "none")}):
        with pytest.raises(HandlerFailedError, match=r"cannot start .*: No such file or directory"):
            await load_handler("exec", options).start(HandlerContext("g", "g_1", clock))


@pytest.mark.parametrize("command", ["sh -c x", [], [5], None])
async def test_a_command_is_a_list(command: Any) -> None:
    with pytest.raises(HandlerLoadError, match="command must be a list"):
        load_handler("exec", {"command": command})

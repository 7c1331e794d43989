from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.handlers import Batch
from consumerd.handlers.builtin.null import NullHandler
from consumerd.handlers.builtin.print import OutputClosedError, PrintHandler
from consumerd.handlers.builtin.records import encode_records

MakeBatch = Callable[..., Batch]


def test_prints_a_record_as_a_line_with_the_whole_identity(make_batch: MakeBatch) -> None:
    batch = make_batch(b"plain", [b"in", b"side"], start=7, topic='a "quoted" \\ тема', broker=1, partition=2)
    lines = list(encode_records(batch))
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert json.loads(lines[2]) == {
        "topic": 'a "quoted" \\ тема',
        "broker": 1,
        "partition": 2,
        "offset": 7 + 15,
        "index": 1,
        "payload": "side",
    }


@pytest.mark.parametrize(
    "payload",
    [b"", b"a\nb\r\n", b'"\\/', "\u2028 \U0001f600 \ufeffé".encode(), bytes(range(128)), b"\xed\xa0\x80", b"\xff"],
)
def test_keeps_payloads_to_the_byte(make_batch: MakeBatch, payload: bytes) -> None:
    (line,) = encode_records(make_batch(payload))
    record = json.loads(line)
    if "payload" in record:
        assert record["payload"].encode() == payload
    else:
        assert base64.b64decode(record["payload_base64"]) == payload
        with pytest.raises(UnicodeDecodeError):
            payload.decode()


async def test_prints_batches_without_mixing_their_lines(pipe: tuple[int, int], make_batch: MakeBatch) -> None:
    handler = PrintHandler(pipe[1])
    batches = [make_batch(*[b"%d" % n * 500 for n in range(20)], partition=p) for p in range(4)]
    reading = asyncio.create_task(asyncio.to_thread(_read_lines, pipe[0], 80))
    await asyncio.gather(*[handler.handle(batch) for batch in batches])
    records = [json.loads(line) for line in await reading]
    assert [r["partition"] for r in records] == [0] * 20 + [1] * 20 + [2] * 20 + [3] * 20
    assert all(batch.handled == 20 for batch in batches)


def _read_lines(descriptor: int, count: int) -> list[bytes]:
    data = b""
    while data.count(b"\n") < count:
        data += os.read(descriptor, 1000)
    return data.splitlines(keepends=True)


async def test_prints_to_files(tmp_path: Path, make_batch: MakeBatch) -> None:
    with (tmp_path / "out").open("wb") as file:
        await PrintHandler(file.fileno()).handle(make_batch(b"a" * 3_000_000, b"b"))
    assert [len(json.loads(line)["payload"]) for line in (tmp_path / "out").read_bytes().splitlines()] == [3_000_000, 1]


async def test_ends_when_the_reader_closes_the_pipe(pipe: tuple[int, int], make_batch: MakeBatch) -> None:
    os.close(pipe[0])
    with pytest.raises(OutputClosedError) as caught:
        await PrintHandler(pipe[1]).handle(make_batch(b"a"))
    assert caught.value.exit_code is ExitCode.PIPE


async def test_leaves_other_output_errors_to_the_retry_policy(make_batch: MakeBatch) -> None:
    with open("/dev/full", "wb") as full, pytest.raises(OSError, match="No space left"):
        await PrintHandler(full.fileno()).handle(make_batch(b"a"))


async def test_stuck_reader_blocks_neither_the_loop_nor_the_stop(pipe: tuple[int, int], make_batch: MakeBatch) -> None:
    reader, writer = pipe
    room = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 8192)
    handler = PrintHandler(writer)
    batch = make_batch(*[b"%04d" % n * 300 for n in range(20)])
    task = asyncio.create_task(handler.handle(batch))
    before = asyncio.get_running_loop().time()
    while _readable(reader) < room - 4096:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.get_running_loop().time() - before < 5
    out = os.read(reader, room)
    # The counted messages are exactly the whole lines written, and the pipe became full within a line.
    assert 0 < batch.handled == out.count(b"\n") < 20
    assert not out.endswith(b"\n")
    # The next batch finishes the torn line first: whatever happens, the output is NDJSON.
    await handler.handle(make_batch(b"next"))
    lines = (out + os.read(reader, room)).splitlines()
    assert [json.loads(line)["payload"][:4] for line in lines[:-1]] == [f"{n:04}" for n in range(len(lines) - 1)]
    assert len(lines) == batch.handled + 2
    assert json.loads(lines[-1])["payload"] == "next"


def _readable(descriptor: int) -> int:
    import array
    import termios

    waiting = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, waiting)
    return waiting[0]


async def test_writes_to_a_non_blocking_output(pipe: tuple[int, int], make_batch: MakeBatch) -> None:
    os.set_blocking(pipe[1], False)
    reading = asyncio.create_task(asyncio.to_thread(_read_lines, pipe[0], 3))
    await PrintHandler(pipe[1]).handle(make_batch(*[b"x" * 200_000] * 3))
    assert len(await reading) == 3


async def test_null_handler_counts_messages(make_batch: MakeBatch, clock: Any) -> None:
    handler = NullHandler()
    await handler.handle(make_batch(b"a", b"b"))
    await handler.handle(make_batch())
    assert handler.messages == 2

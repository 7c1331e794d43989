from __future__ import annotations

import asyncio
import os
import pty
import select
import threading
import tty
from pathlib import Path
from types import SimpleNamespace

import pytest

from consumerd.producer.lines import InputError, LineReader
from tests.support.waiting import cancel


async def read_all(descriptor: int, limit: int = 1 << 20) -> list[bytes]:
    reader = LineReader(descriptor, max_line_bytes=limit)
    lines: list[bytes] = []
    while (more := await reader.read()) is not None:
        assert more
        lines += more
    assert await reader.read() is None
    return lines


CASES = [
    (b"", []),
    (b"\n", [b""]),
    (b"one", [b"one"]),
    (b"one\n", [b"one"]),
    (b"one\ntwo", [b"one", b"two"]),
    (b"\n\na\n\n", [b"", b"", b"a", b""]),
    (b"\xff\x00\r\n\xfe", [b"\xff\x00\r", b"\xfe"]),
    (b"x" * 3_000_000 + b"\n" + b"y" * 10, [b"x" * 3_000_000, b"y" * 10]),
]


@pytest.mark.parametrize(("data", "lines"), CASES)
async def test_reads_files(tmp_path: Path, data: bytes, lines: list[bytes]) -> None:
    (tmp_path / "in").write_bytes(data)
    with (tmp_path / "in").open("rb") as file:
        assert await read_all(file.fileno(), 3_000_000) == lines


@pytest.mark.parametrize(("data", "lines"), CASES)
async def test_reads_pipes(pipe: tuple[int, int], data: bytes, lines: list[bytes]) -> None:
    def write() -> None:
        with os.fdopen(pipe[1], "wb") as file:
            file.write(data)

    writing = asyncio.create_task(asyncio.to_thread(write))
    assert await read_all(pipe[0], 3_000_000) == lines
    await writing


async def test_returns_lines_as_they_are_written_without_blocking(pipe: tuple[int, int]) -> None:
    reader = LineReader(pipe[0], max_line_bytes=100)
    waiting = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    os.write(pipe[1], b"half")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    assert os.get_blocking(pipe[0])  # the descriptor's mode is not changed: others may share it
    os.write(pipe[1], b" a line\nand more")
    assert await waiting == [b"half a line"]
    os.close(pipe[1])
    assert await reader.read() == [b"and more"]
    assert await reader.read() is None


async def test_watches_the_descriptor_only_while_it_waits(pipe: tuple[int, int]) -> None:
    """A descriptor that stays watched while its bytes wait would keep the loop turning."""
    reader, loop = LineReader(pipe[0], max_line_bytes=100), asyncio.get_running_loop()
    os.write(pipe[1], b"a\n")
    assert await reader.read() == [b"a"]
    assert not loop.remove_reader(pipe[0])
    waiting = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    await cancel(waiting)
    assert not loop.remove_reader(pipe[0])


async def test_can_be_cancelled_and_continued(pipe: tuple[int, int]) -> None:
    reader = LineReader(pipe[0], max_line_bytes=100)
    waiting = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    await cancel(waiting)
    assert waiting.cancelled()
    os.write(pipe[1], b"a\n")
    assert await reader.read() == [b"a"]


async def test_cancelled_read_of_a_file_ends_before_its_descriptor_may_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def read(descriptor: int, size: int) -> bytes:
        begun.set()
        go_on.wait(60)
        ended.set()
        return os.read(descriptor, size)

    def refuse(*_: object) -> None:
        raise PermissionError

    (tmp_path / "in").write_bytes(b"a\n")
    monkeypatch.setattr("consumerd.producer.lines.os", SimpleNamespace(read=read))
    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse)  # as for files, on every system
    with (tmp_path / "in").open("rb") as file:
        waiting = asyncio.create_task(LineReader(file.fileno(), max_line_bytes=100).read())
        assert await asyncio.to_thread(begun.wait, 60)
        waiting.cancel()
        for _ in range(5):  # turns of the loop, in which nothing else has to happen
            await asyncio.sleep(0)
        returned = waiting.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (returned, ended.is_set()) == (False, True)


async def test_reads_a_terminal() -> None:
    controller, terminal = pty.openpty()
    try:
        tty.setcbreak(terminal)
        reader = LineReader(terminal, max_line_bytes=100)
        os.write(controller, b"typed\n")
        assert await reader.read() == [b"typed"]
    finally:
        os.close(controller)
        os.close(terminal)


async def test_limits_each_line_and_not_their_sum(pipe: tuple[int, int]) -> None:
    reader = LineReader(pipe[0], max_line_bytes=100)
    waiting = asyncio.create_task(reader.read())
    found = []
    for part in (b"a" * 50, b"a" * 50, b"\n" + b"b" * 100, b"\n"):
        os.write(pipe[1], part)
        while select.select([pipe[0]], [], [], 0)[0] and not waiting.done():
            await asyncio.sleep(0)
        if part.startswith(b"\n"):
            found += await waiting or []
            waiting = asyncio.create_task(reader.read())
    assert found == [b"a" * 100, b"b" * 100]
    os.close(pipe[1])
    assert await waiting is None


async def test_rejects_an_endless_line(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"ok\n" + b"x" * 101)
    reader = LineReader(pipe[0], max_line_bytes=100)
    with pytest.raises(InputError, match="longer than 100 bytes"):
        await reader.read()


async def test_reports_unreadable_inputs(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(InputError, match="cannot read the input: Is a directory"):
            await read_all(directory)
    finally:
        os.close(directory)
    with pytest.raises(InputError, match="cannot read the input: Bad file descriptor"):
        await read_all(directory)
    with open(os.devnull, "rb") as null:
        assert await read_all(null.fileno()) == []

import asyncio
import os
import socket
import struct
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.storage import OsFiles, OsSegmentFile, Segment, SegmentSlice
from consumerd.storage.broker.errors import RequestRefusedError
from consumerd.storage.broker.sockets import ClientStream


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def read(stream: ClientStream) -> bytes | None:
    view = await stream.frame()
    if view is None:
        return None
    with view:
        return bytes(view)


async def send(sock: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, data)


class Observed(socket.socket):
    """Notes which options are set."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(fileno=sock.detach())
        self.options: list[Any] = []

    def setsockopt(self, *option: Any) -> None:
        self.options.append(option)
        super().setsockopt(*option)


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux lets a program ask for acknowledgements")
async def test_acknowledges_what_no_answer_will_acknowledge() -> None:
    """A JVM producer whose send buffer is smaller than its request waits 40 to 100 ms for each acknowledgement."""
    acknowledge = (socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as theirs:
        theirs.setblocking(False)
        with Observed(server.accept()[0]) as ours:
            ours.setblocking(False)
            stream = ClientStream(ours, 1 << 20)

            async def waited() -> None:
                while stream._waiter is None or not stream._reading:
                    await asyncio.sleep(0)

            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                reading = group.create_task(read(stream))
                await waited()
                assert ours.options == []  # of a client that has sent nothing
                await send(theirs, frame(b"body")[:5])
                while acknowledge not in ours.options:
                    await asyncio.sleep(0)
                await send(theirs, b"ody")
                assert await reading == b"body"
                ours.options.clear()
                stream.produced = True
                reading = group.create_task(read(stream))
                while acknowledge not in ours.options:
                    await asyncio.sleep(0)
                await send(theirs, frame(b"next"))
                assert await reading == b"next"


async def test_reads_frames_in_any_pieces(pair: tuple[socket.socket, socket.socket]) -> None:
    stream = ClientStream(pair[0], 1 << 20)
    bodies = [b"a", os.urandom(100_000), b"b" * 16_380, b"c" * 16_381, os.urandom(1 << 20), b"d", *[b"e" * 5_000] * 9]
    data = b"".join(map(frame, bodies))

    async def dribble() -> None:
        at = 0
        for size in (1, 1, 3, 7, 50_000, 2, 65_536, 1 << 19, 1, len(data)):
            await send(pair[1], data[at : at + size])
            await asyncio.sleep(0)
            at += size
        pair[1].shutdown(socket.SHUT_WR)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(dribble())
        assert [await read(stream) for _ in bodies] == bodies
        assert await read(stream) is None
        assert await read(stream) is None


async def test_reads_little_of_what_follows_a_long_request(pair: tuple[socket.socket, socket.socket]) -> None:
    """It would have to be moved to the front of the buffer, and most of it again with the next request."""
    stream = ClientStream(pair[0], 1 << 20)
    bodies = [os.urandom(200_000) for _ in range(3)]
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(send(pair[1], b"".join(map(frame, bodies)) + frame(b"x") * 300))
        for body in bodies:
            assert await read(stream) == body
            assert stream._end - stream._begin <= 1 << 10
        assert [await read(stream) for _ in range(300)] == [b"x"] * 300


async def test_parts_of_a_request_are_good_until_the_next_one_is_asked_for(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    stream = ClientStream(pair[0], 1 << 20)
    bodies = [os.urandom(size) for size in (70_000, 250_000, 300_000, 1 << 20, 1000)]
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(send(pair[1], b"".join(map(frame, bodies))))
        for body in bodies:
            view = await stream.frame()
            assert view is not None
            with view:
                part = view[10:-10]
            stream.let_go(len(body))
            await asyncio.sleep(0)
            assert part == body[10:-10]
            part.release()


@pytest.mark.parametrize("length", [0, -1, -(1 << 31), 101, (1 << 31) - 1])
async def test_rejects_impossible_lengths(pair: tuple[socket.socket, socket.socket], length: int) -> None:
    await send(pair[1], struct.pack(">i", length))
    with pytest.raises(RequestRefusedError, match=f"a request of {length} bytes is outside 1 to 100"):
        await ClientStream(pair[0], 100).frame()


@pytest.mark.parametrize("data", [b"\0\0", b"\0\0\0\x05abc"])
async def test_truncated_frame_is_the_end(pair: tuple[socket.socket, socket.socket], data: bytes) -> None:
    await send(pair[1], data)
    pair[1].shutdown(socket.SHUT_WR)
    assert await read(ClientStream(pair[0], 100)) is None


async def test_memory_follows_received_bytes_not_the_announced_length(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    stream = ClientStream(pair[0], 1 << 30)
    await send(pair[1], struct.pack(">i", 1 << 30) + bytes(100_000))
    waiting = asyncio.create_task(read(stream))
    for _ in range(3):
        await asyncio.sleep(0)
    assert stream._end > 100_000
    assert len(stream._buffer) <= 1 << 18
    stream.stop()
    assert await waiting is None


async def test_releases_the_buffer_of_a_large_request_when_idle(pair: tuple[socket.socket, socket.socket]) -> None:
    stream = ClientStream(pair[0], 1 << 24)
    body = bytes(1 << 22)
    async with asyncio.TaskGroup() as group:
        group.create_task(send(pair[1], frame(body)))
        assert await read(stream) == body
        assert len(stream._buffer) > 1 << 22
        waiting = group.create_task(read(stream))
        await asyncio.sleep(0)
        assert len(stream._buffer) == 1 << 10
        stream.stop()
        assert await waiting is None


async def test_reads_on_after_its_buffer_was_released_during_a_response(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    stream = ClientStream(pair[0], 100)
    await send(pair[1], frame(b"one"))
    assert await read(stream) == b"one"
    answer = bytes(1 << 23)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        sending = group.create_task(stream.send([answer]))
        while not stream.rest():  # until nothing more fits into the socket
            await asyncio.sleep(0)
        assert not stream._buffer
        received = 0
        while received < len(answer):
            received += len(await asyncio.get_running_loop().sock_recv(pair[1], 1 << 20))
        await sending
        reading = group.create_task(read(stream))
        await asyncio.sleep(0)
        await send(pair[1], frame(b"two"))
        assert await reading == b"two"


async def test_stop_wakes_an_idle_reader_but_what_arrived_is_still_read(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    stream = ClientStream(pair[0], 100)
    waiting = asyncio.create_task(read(stream))
    await asyncio.sleep(0)
    stream.stop()
    assert await waiting is None
    stream = ClientStream(pair[0], 100)
    await send(pair[1], frame(b"one") + frame(b"two") + frame(b"three")[:-1])
    stream.stop()
    assert [await read(stream) for _ in range(3)] == [b"one", b"two", None]


async def test_sends_parts_in_order_whatever_the_reader_does(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "f").write_bytes(content)
    file = OsFiles().open(tmp_path / "f", create=False)
    segment = Segment(tmp_path / "f", file, 0, len(content))
    parts: list[bytes | SegmentSlice] = [
        b"head",
        SegmentSlice(segment, 5, 2_900_000),
        b"mid",
        SegmentSlice(segment, 0, 10),
        SegmentSlice(segment, 100, 70_000),
        b"tail",
    ]
    expected = b"head" + content[5:2_900_005] + b"mid" + content[:10] + content[100:70_100] + b"tail"
    got = bytearray()
    loop = asyncio.get_running_loop()

    async def slow_reader() -> None:
        while len(got) < len(expected):
            got.extend(await loop.sock_recv(pair[1], 50_000))
            await asyncio.sleep(0)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(slow_reader())
        await ClientStream(pair[0], 100).send(parts)
    assert got == expected
    file.close()


async def test_truncated_file_ends_the_connection(pair: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(20_000))
    file = OsFiles().open(tmp_path / "f", create=False)
    segment = Segment(tmp_path / "f", file, 0, 30_000)
    with pytest.raises(ConnectionAbortedError, match="shorter than when the fetch began"):
        await ClientStream(pair[0], 100).send([SegmentSlice(segment, 0, 30_000)])
    file.close()


async def test_raises_when_the_reader_has_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].close()
    with pytest.raises(BrokenPipeError):
        await ClientStream(pair[0], 100).send([b"x"])
    ClientStream(pair[0], 100).close()


async def test_reads_uncached_pages_in_a_thread_first(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "f").write_bytes(content)
    file = OsFiles().open(tmp_path / "f", create=False)
    segment = Segment(tmp_path / "f", file, 0, len(content))
    cold = [(0, 1 << 20), (1 << 21, 3_000_000 - (1 << 21)), (10, 100)]
    read: list[tuple[int, int]] = []
    read_at = OsSegmentFile.read_at

    def noting(file: OsSegmentFile, position: int, length: int) -> bytes:
        if threading.current_thread() is not threading.main_thread():
            read.append((position, length))
        return read_at(file, position, length)

    monkeypatch.setattr(OsSegmentFile, "read_at", noting)
    monkeypatch.setattr(OsSegmentFile, "cached", lambda file, position, length: (position, length) not in cold)
    got = bytearray()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        sending = group.create_task(
            ClientStream(pair[0], 100).send(
                [SegmentSlice(segment, 0, 3_000_000), SegmentSlice(segment, 10, 100), SegmentSlice(segment, 20, 100)]
            )
        )
        while len(got) < 3_000_200:
            got += await asyncio.get_running_loop().sock_recv(pair[1], 1 << 20)
        await sending
    assert got == content + content[10:110] + content[20:120]
    assert read == cold
    file.close()


async def small_parts(path: Path, count: int, size: int) -> tuple[OsSegmentFile, list[bytes | SegmentSlice]]:
    path.write_bytes(bytes(size))
    file = OsFiles().open(path, create=False)
    segment = Segment(path, file, 0, size)
    return file, [part for _ in range(count) for part in (b"header", SegmentSlice(segment, 0, size))]


async def test_yields_to_others_among_thousands_of_small_parts(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, parts = await small_parts(tmp_path / "f", 3000, 100)
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)  # it need never wait for its reader
    between, longest = 0, 0
    read_at = OsSegmentFile.read_at

    def counting(file: OsSegmentFile, position: int, length: int) -> bytes:
        nonlocal between, longest
        between += 1
        longest = max(longest, between)
        return read_at(file, position, length)

    monkeypatch.setattr(OsSegmentFile, "read_at", counting)

    async def canary() -> None:
        nonlocal between
        while not sending.done():
            between = 0
            await asyncio.sleep(0)

    got = bytearray()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        sending = group.create_task(ClientStream(pair[0], 100).send(parts))
        group.create_task(canary())
        while len(got) < 3000 * 106:
            got += await asyncio.get_running_loop().sock_recv(pair[1], 1 << 20)
    assert got == (b"header" + bytes(100)) * 3000
    assert longest <= 256
    file.close()


async def test_never_holds_a_response_of_many_parts_in_memory_as_a_whole(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    file, parts = await small_parts(tmp_path / "f", 2000, 8000)
    stream = ClientStream(pair[0], 100)
    left = sum(len(part) if isinstance(part, bytes) else part.length for part in parts)
    tracemalloc.start()
    try:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(stream.send(parts))
            while left:
                left -= len(await asyncio.get_running_loop().sock_recv(pair[1], 1 << 16))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000
    file.close()


class Endless(socket.socket):
    """A client that is faster than we are: there is always more."""

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        return len(buffer)


async def test_yields_to_others_while_it_receives_a_large_request() -> None:
    length = 64 << 20
    with Endless() as sock:
        stream = ClientStream(sock, 1 << 30)
        stream._buffer[:4] = struct.pack(">i", length)
        stream._end = 4
        turns = 0
        reading = asyncio.create_task(read(stream))
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert await reading == bytes(length)
        assert turns >= length >> 22

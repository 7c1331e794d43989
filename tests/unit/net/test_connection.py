"""A pipelined connection against peers that answer, stall, lie and disconnect, on asyncio and on uvloop."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from consumerd.net.connect import connect
from consumerd.net.connection import BrokerConnection, ConnectionSettings
from consumerd.net.errors import (
    BadFrameError,
    ConnectError,
    ConnectionClosedError,
    FrameTooLargeError,
    RequestTimeoutError,
)
from tests.support.scenes import on_both_loops

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
Peer = Callable[[Talk], AbstractAsyncContextManager[int]]

HOST = "127.0.0.1"


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(frame(await read_frame(reader)))
        await writer.drain()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def check_echo(connection: BrokerConnection, text: bytes) -> None:
    assert await connection.request(frame(text)) == text


@on_both_loops
async def test_matches_pipelined_responses_to_requests(peer: Peer) -> None:
    async with peer(echo) as port:
        connection = await connect(HOST, port)
        bodies = [b"%d " % n * (n * 700 + 1) for n in range(60)]
        assert await asyncio.gather(*(connection.request(frame(body)) for body in bodies)) == bodies
        answer = await connection.request(frame(b"immutable"))
        assert type(answer) is bytes
        assert connection.in_flight == 0
        await connection.close()


@on_both_loops
async def test_sends_concurrent_requests_in_order(peer: Peer) -> None:
    seen: list[bytes] = []

    async def batch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):  # nothing is answered before all three arrived
            seen.append(await read_frame(reader))
        for body in seen:
            writer.write(frame(b"re:" + body))
        await reader.read()

    async with peer(batch) as port:
        connection = await connect(HOST, port)
        answers = await asyncio.gather(*(connection.request(frame(b"r%d" % n)) for n in range(3)))
        assert seen == [b"r0", b"r1", b"r2"]
        assert answers == [b"re:r0", b"re:r1", b"re:r2"]
        await connection.close()


@on_both_loops
async def test_keeps_responses_aligned_after_cancelled_request(peer: Peer) -> None:
    release = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies = [await read_frame(reader) for _ in range(3)]
        await release.wait()
        for body in bodies:
            writer.write(frame(body))
        await echo(reader, writer)

    async with peer(late) as port:
        connection = await connect(HOST, port)
        tasks = [asyncio.create_task(connection.request(frame(b"n%d" % n))) for n in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        assert connection.in_flight == 3
        release.set()
        assert await tasks[0] == b"n0"
        assert await tasks[2] == b"n2"
        await check_echo(connection, b"after")
        await connection.close()


@on_both_loops
async def test_closes_connection_on_request_timeout(peer: Peer) -> None:
    async with peer(silent) as port:
        connection = await connect(HOST, port, settings=ConnectionSettings(socket_timeout=0.1))
        first, second = await asyncio.gather(
            connection.request(frame(b"one")), connection.request(frame(b"two")), return_exceptions=True
        )
        assert isinstance(first, RequestTimeoutError)
        assert first.blamed
        assert f"{HOST}:{port}" in str(first)
        assert type(second) is ConnectionClosedError
        assert not second.blamed
        assert connection.closed
        with pytest.raises(ConnectionClosedError, match="older request"):
            await connection.request(frame(b"three"))
        await connection.wait_closed()


@on_both_loops
async def test_starts_timeout_when_request_becomes_oldest(peer: Peer) -> None:
    """Ten answers, each well within the limit, together far beyond it."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = await read_frame(reader)
            await asyncio.sleep(0.05)
            writer.write(frame(body))

    async with peer(slow) as port:
        connection = await connect(HOST, port, settings=ConnectionSettings(socket_timeout=0.25))
        answers = await asyncio.gather(*(connection.request(frame(b"%02d" % n)) for n in range(10)))
        assert answers == [b"%02d" % n for n in range(10)]
        await connection.close()


@on_both_loops
async def test_times_out_cancelled_request(peer: Peer) -> None:
    async with peer(silent) as port:
        connection = await connect(HOST, port, settings=ConnectionSettings(socket_timeout=0.1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.request(frame(b"x")), 0.01)
        assert not connection.closed
        await connection.wait_closed()
        assert connection.closed


@on_both_loops
async def test_applies_shorter_timeout_of_single_request(peer: Peer) -> None:
    asked = asyncio.Event()

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(await read_frame(reader)))
        await read_frame(reader)
        asked.set()
        await reader.read()

    async with peer(once) as port:
        connection = await connect(HOST, port)
        await check_echo(connection, b"arms a timer of 30 s")
        with pytest.raises(RequestTimeoutError, match=r"within 0\.05 s"):
            await connection.request(frame(b"second"), timeout=0.05)
        assert asked.is_set()


@pytest.mark.parametrize("reset", [False, True])
@on_both_loops
async def test_fails_all_waiting_requests_on_disconnect(peer: Peer, reset: bool) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            await read_frame(reader)
        if reset:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    async with peer(hang_up) as port:
        connection = await connect(HOST, port)
        errors = await asyncio.gather(
            *(connection.request(frame(b"n%d" % n)) for n in range(3)), return_exceptions=True
        )
        assert [type(error) for error in errors] == [ConnectionClosedError] * 3
        assert [getattr(error, "blamed", None) for error in errors] == [True, False, False]
        assert all(f"{HOST}:{port}" in str(error) for error in errors)
        with pytest.raises(ConnectionClosedError, match=str(port)):
            await connection.send(frame(b"late"))
        await connection.close()


@on_both_loops
async def test_delivers_responses_before_half_close(peer: Peer) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(await read_frame(reader)))
        await read_frame(reader)
        writer.write_eof()
        await reader.read()

    async with peer(half) as port:
        connection = await connect(HOST, port)
        first, second = await asyncio.gather(
            connection.request(frame(b"answered")), connection.request(frame(b"refused")), return_exceptions=True
        )
        assert first == b"answered"
        assert isinstance(second, ConnectionClosedError)
        await connection.wait_closed()


@pytest.mark.parametrize(
    ("garbage", "error", "words"),
    [
        (struct.pack(">i", -98) + b"\0\0", BadFrameError, "-98"),
        (struct.pack(">i", 1) + b"\0\0", BadFrameError, "1 bytes"),
        (struct.pack(">i", 0), BadFrameError, "0 bytes"),
        (struct.pack(">i", 1001) + b"x" * 10, FrameTooLargeError, "at most 1000"),
        (b"HTTP/1.1 400 Bad Request\r\n", FrameTooLargeError, "1213486160"),
    ],
)
@on_both_loops
async def test_rejects_invalid_frame_sizes(peer: Peer, garbage: bytes, error: type[Exception], words: str) -> None:
    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(garbage)
        await reader.read()

    async with peer(lie) as port:
        connection = await connect(HOST, port)
        with pytest.raises(error, match=words) as caught:
            await connection.request(frame(b"x"), max_response=1000)
        assert isinstance(caught.value, ConnectionClosedError)
        assert caught.value.blamed
        await connection.wait_closed()


@on_both_loops
async def test_limits_response_size_by_settings(peer: Peer) -> None:
    async with peer(echo) as port:
        connection = await connect(HOST, port, settings=ConnectionSettings(max_frame_bytes=64))
        await check_echo(connection, b"x" * 64)
        with pytest.raises(FrameTooLargeError):
            await connection.request(frame(b"x" * 65), max_response=1000)


@on_both_loops
async def test_closes_connection_on_unsolicited_bytes(peer: Peer) -> None:
    async def eager(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(b"hello"))
        await reader.read()

    async with peer(eager) as port:
        connection = await connect(HOST, port)
        await connection.wait_closed()
        with pytest.raises(ConnectionClosedError, match="bad frame"):
            await connection.request(frame(b"x"))


class Reluctant:
    """A peer that reads nothing before `read` is set; `total`: bytes that it got since."""

    def __init__(self) -> None:
        self.read = asyncio.Event()
        self.total = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.read.wait()
        while data := await reader.read(1 << 16):
            self.total += len(data)


@on_both_loops
async def test_ends_connection_once_while_flushing(peer: Peer) -> None:
    reluctant = Reluctant()
    sent = frame(b"p" * (16 << 20))  # more than sockets buffer
    async with peer(reluctant) as port:
        connection = await connect(HOST, port, settings=ConnectionSettings(write_buffer=1 << 26, close_timeout=5))
        await connection.send(sent)
        closing = asyncio.create_task(connection.close())
        await asyncio.sleep(0)
        reluctant.read.set()
        await closing
        connection.abort()
        await connection.close()
        while reluctant.total < len(sent):
            await asyncio.sleep(0.01)


@on_both_loops
async def test_send_waits_for_a_peer_that_does_not_read(peer: Peer) -> None:
    reluctant = Reluctant()
    async with peer(reluctant) as port:
        connection = await connect(HOST, port, settings=ConnectionSettings(write_buffer=1 << 16, close_timeout=5))
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while sent < 64:
                await connection.send(frame(b"p" * (1 << 20)))
                sent += 1

        task = asyncio.create_task(flood())
        before = -1
        while before != sent:  # until it stalls
            before = sent
            await asyncio.sleep(0.05)
        assert sent < 64
        reluctant.read.set()
        await task
        await connection.close()  # flushes
        while reluctant.total < 64 * ((1 << 20) + 4):
            await asyncio.sleep(0.01)


@on_both_loops
async def test_times_out_send_to_stalled_peer_but_not_to_slow_one(peer: Peer) -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 18):
            await asyncio.sleep(0.01)

    settings = ConnectionSettings(write_buffer=1024, socket_timeout=0.3)
    async with peer(slow) as port:  # in all this takes longer than 0.3 s
        connection = await connect(HOST, port, settings=settings)
        await connection.send(frame(b"p" * (16 << 20)))
        assert not connection.closed
        connection.abort()
    async with peer(silent_without_reading) as port:
        connection = await connect(HOST, port, settings=settings)
        tasks = [asyncio.create_task(connection.send(frame(b"p" * (16 << 20)))) for _ in range(2)]
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, ConnectionClosedError)
            assert "accepted no data for 0.3 s" in str(result)


@on_both_loops
async def test_fails_waiting_writer_on_disconnect(peer: Peer) -> None:
    async with peer(silent_without_reading) as port:
        connection = await connect(HOST, port, settings=ConnectionSettings(write_buffer=1024, close_timeout=0.05))
        tasks = [asyncio.create_task(connection.send(frame(b"p" * (8 << 20)))) for _ in range(3)]
        await asyncio.sleep(0.05)
        await connection.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionClosedError] * 3
        assert "by us" in str(results[0])


async def silent_without_reading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.Event().wait()


@on_both_loops
async def test_close_fails_waiting_requests_and_is_idempotent(peer: Peer) -> None:
    async with peer(silent) as port:
        connection = await connect(HOST, port)
        task = asyncio.create_task(connection.request(frame(b"x")))
        await asyncio.sleep(0)
        await connection.close()
        with pytest.raises(ConnectionClosedError, match="by us"):
            await task
        await connection.close()
        connection.abort()
        with pytest.raises(ConnectionClosedError):
            await connection.request(frame(b"x"))


@on_both_loops
async def test_posts_beside_requests_and_passes_each_outcome_on_once(peer: Peer) -> None:
    async with peer(echo) as port:
        connection = await connect(HOST, port)
        outcomes: list[bytes | ConnectionClosedError] = []
        requested = asyncio.create_task(connection.request(frame(b"n0")))
        await asyncio.sleep(0)
        assert connection.post(frame(b"n1"), outcomes.append, timeout=60)
        assert connection.in_flight == 2
        assert await requested == b"n0"
        assert await connection.request(frame(b"n2")) == b"n2"
        assert outcomes == [b"n1"]
        assert connection.post(frame(b"n3"), outcomes.append, timeout=60)
        connection.abort()
        assert [type(outcome) for outcome in outcomes] == [bytes, ConnectionClosedError]
        assert not connection.post(frame(b"n4"), outcomes.append, timeout=60)


@on_both_loops
async def test_posts_nothing_while_writers_wait(peer: Peer) -> None:
    async with peer(silent_without_reading) as port:
        connection = await connect(HOST, port, settings=ConnectionSettings(write_buffer=1024, close_timeout=0.05))
        outcomes: list[bytes | ConnectionClosedError] = []
        assert connection.post(frame(b"p" * (8 << 20)), outcomes.append, timeout=60)
        assert not connection.post(frame(b"x"), outcomes.append, timeout=60)
        assert connection.in_flight == 1
        await connection.close()
        assert len(outcomes) == 1


@on_both_loops
async def test_abort_drops_the_connection(peer: Peer) -> None:
    async with peer(echo) as port:
        connection = await connect(HOST, port, settings=ConnectionSettings(receive_buffer=1 << 16))
        await check_echo(connection, b"fine")
        connection.abort()
        assert connection.closed
        await connection.wait_closed()


@on_both_loops
async def test_raises_connect_error_when_nothing_listens() -> None:
    with socket.socket() as bound:  # bound but not listening: refused
        bound.bind((HOST, 0))
        port = bound.getsockname()[1]
        with pytest.raises(ConnectError, match=f"{HOST}:{port}"):
            await connect(HOST, port)


@pytest.mark.parametrize(
    ("host", "port"), [("a" * 300, 9092), ("\udcff", 9092), ("nul\0byte", 9092), (HOST, 70000), (HOST, -5), ("", 9)]
)
@on_both_loops
async def test_rejects_invalid_registered_addresses(host: str, port: int) -> None:
    with pytest.raises(ConnectError):
        await connect(host, port, settings=ConnectionSettings(connect_timeout=2))


@on_both_loops
async def test_times_out_connecting_to_silent_host() -> None:
    with socket.socket() as deaf:
        deaf.bind((HOST, 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        fillers = []
        try:
            for _ in range(4):  # fill the accept queue, so that the next SYN is dropped
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex((HOST, port))
                fillers.append(filler)
            with pytest.raises(ConnectError, match=r"within 0\.1 s"):
                await connect(HOST, port, settings=ConnectionSettings(connect_timeout=0.1))
        finally:
            for filler in fillers:
                filler.close()


@on_both_loops
async def test_connects_to_literal_address_without_resolver(peer: Peer) -> None:
    async with peer(echo) as port:
        busy = threading.Event()
        loop = asyncio.get_running_loop()
        threads = [loop.run_in_executor(None, busy.wait) for _ in range(100)]
        try:
            connection = await connect(HOST, port, settings=ConnectionSettings(connect_timeout=5))
            await check_echo(connection, b"there")
            connection.abort()
        finally:
            busy.set()
            await asyncio.gather(*threads)


@pytest.mark.parametrize("tls", [False, True])
@on_both_loops
async def test_tries_next_address_when_first_is_silent(peer: Peer, monkeypatch: pytest.MonkeyPatch, tls: bool) -> None:
    async def two(host: str, port: int) -> list[str]:
        return ["127.0.0.2", HOST]

    monkeypatch.setattr(sys.modules["consumerd.net.connect"], "addresses_of", two)

    async with peer(echo) as port:
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.2", port))
            deaf.listen(0)
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.2", port))
            try:
                if tls:  # which the peer does not speak
                    with pytest.raises(ConnectError, match=f"broker.example:{port}"):
                        await connect(
                            "broker.example",
                            port,
                            settings=ConnectionSettings(connect_timeout=0.5),
                            ssl=ssl.create_default_context(),
                        )
                    return
                connection = await connect("broker.example", port, settings=ConnectionSettings(connect_timeout=1))
                assert connection.address == f"broker.example:{port}"
                await check_echo(connection, b"there")
                connection.abort()
            finally:
                for filler in fillers:
                    filler.close()

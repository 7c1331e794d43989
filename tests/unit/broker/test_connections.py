"""How many clients there are, how long they may do nothing, and what they cost meanwhile."""

import asyncio
import random
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from consumerd.broker import Broker, BrokerConfig
from consumerd.broker import connections as connections_module
from consumerd.broker.sockets import Stream
from consumerd.clock import SystemClock
from consumerd.storage import OsSegmentFile
from consumerd.wire.v07 import FetchRequest, OffsetsRequest, ProduceRequest, encode_message

pytestmark = pytest.mark.asyncio

PROBE = OffsetsRequest("probe", 0, -1, 1).encode()
ANSWER = struct.pack(">ihiq", 14, 0, 1, 0)


def make(log_dir: Path, **settings: Any) -> Broker:
    config = BrokerConfig(log_dir=log_dir, port=0, use_zookeeper=False, flush_messages=1, **settings)
    return Broker(config, clock=SystemClock(), rng=random.Random(1))


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    try:
        async with asyncio.timeout(60):
            yield reader, writer
    finally:
        writer.close()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(PROBE)
    try:
        return await reader.readexactly(len(ANSWER))
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


def streams(broker: Broker) -> list[Stream]:
    return list(broker._connections._streams.values())


async def test_more_than_max_connections_are_closed_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with make(tmp_path, max_connections=2) as broker, connected(broker) as one:
        assert await ask(*one) == ANSWER
        async with connected(broker) as two:
            assert await ask(*two) == ANSWER
            for _ in range(3):
                async with connected(broker) as three:
                    assert await ask(*three) == b""
            assert await ask(*one) == await ask(*two) == ANSWER
        while broker.connections > 1:
            await asyncio.sleep(0.01)
        async with connected(broker) as again:
            assert await ask(*again) == ANSWER
    output = capfd.readouterr().out
    assert output.count("connections_refused") == 1  # said once, not for each
    assert "refused=3" in output


async def test_the_idle_are_closed_and_the_busy_are_not(tmp_path: Path) -> None:
    async with make(tmp_path, max_idle_ms=400) as broker:
        idle = [await asyncio.open_connection("127.0.0.1", broker.port) for _ in range(5)]
        half = await asyncio.open_connection("127.0.0.1", broker.port)
        half[1].write(PROBE[:9])
        async with connected(broker) as busy:
            loop = asyncio.get_running_loop()
            began = loop.time()
            while broker.connections > 1:
                assert await ask(*busy) == ANSWER
                await asyncio.sleep(0.02)
                assert loop.time() - began < 10
            assert loop.time() - began >= 0.4
            for reader, writer in [*idle, half]:
                assert await reader.read() == b""
                writer.close()
            assert await ask(*busy) == ANSWER


async def test_a_client_that_does_not_read_its_answer_is_idle_too(tmp_path: Path) -> None:
    async with make(tmp_path, max_idle_ms=400) as broker, connected(broker) as (reader, writer):
        writer.write(ProduceRequest("t", 0, encode_message(bytes(900_000)) * 20).encode() + PROBE)
        await reader.readexactly(len(ANSWER))
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(FetchRequest("t", 0, 0, 1 << 30).encode())
        while broker.connections:
            await asyncio.sleep(0.02)


async def test_a_slow_disk_does_not_make_a_client_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the broker works for a client, it is not the client who keeps the other waiting."""
    go_on, syncing = threading.Event(), threading.Event()
    sync = OsSegmentFile.sync

    def slow(file: OsSegmentFile) -> None:
        syncing.set()
        assert go_on.wait(10)
        sync(file)

    monkeypatch.setattr(OsSegmentFile, "sync", slow)
    async with make(tmp_path, max_idle_ms=100) as broker, connected(broker) as (reader, writer):
        writer.write(ProduceRequest("t", 0, encode_message(b"a")).encode() + PROBE)
        assert await asyncio.to_thread(syncing.wait, 10)
        async with connected(broker) as idle:
            assert await idle[0].read() == b""  # closed meanwhile, so the other one has been looked at, too
        go_on.set()
        assert await reader.readexactly(len(ANSWER)) == ANSWER


async def test_those_that_rest_give_their_buffers_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "_LOOK", 0.05)
    async with make(tmp_path) as broker, connected(broker) as one, connected(broker) as half:
        assert await ask(*one) == await ask(*half) == ANSWER
        half[1].write(PROBE[:9])
        while sorted(len(stream._buffer) for stream in streams(broker)) != [0, 1 << 10]:
            await asyncio.sleep(0.01)
        half[1].write(PROBE[9:])
        assert await half[0].readexactly(len(ANSWER)) == ANSWER
        assert await ask(*one) == ANSWER
        async with asyncio.timeout(60):
            while any(stream._buffer for stream in streams(broker)):
                await asyncio.sleep(0.01)
        one[1].write(ProduceRequest("t", 0, encode_message(bytes(900_000))).encode())
        assert await ask(*one) == ANSWER

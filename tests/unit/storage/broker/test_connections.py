"""Limits on the number of clients and on their idle time, and the cost of idle clients."""

import asyncio
import random
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.storage import OsSegmentFile
from consumerd.storage.broker import connections as connections_module
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.storage.broker.sockets import ClientStream
from consumerd.wire.v07 import (
    Codec,
    FetchRequest,
    MultiProduceRequest,
    OffsetsRequest,
    ProduceRequest,
    encode_message,
    encode_message_set,
    iter_outer,
)

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


def streams(broker: Broker) -> list[ClientStream]:
    return list(broker._connections._streams.values())


def hold_sync(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Make every sync of a file set the first event and wait for the second one."""
    syncing, go_on = threading.Event(), threading.Event()
    sync = OsSegmentFile.sync

    def held(file: OsSegmentFile) -> None:
        syncing.set()
        assert go_on.wait(10)
        sync(file)

    monkeypatch.setattr(OsSegmentFile, "sync", held)
    return syncing, go_on


async def test_closes_connections_beyond_max_connections_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
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


async def test_closes_idle_connections_and_keeps_busy_ones(tmp_path: Path) -> None:
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


async def test_closes_a_client_that_does_not_read_its_response(tmp_path: Path) -> None:
    async with make(tmp_path, max_idle_ms=400) as broker, connected(broker) as (reader, writer):
        writer.write(ProduceRequest("t", 0, encode_message(bytes(900_000)) * 20).encode() + PROBE)
        await reader.readexactly(len(ANSWER))
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(FetchRequest("t", 0, 0, 1 << 30).encode())
        while broker.connections:
            await asyncio.sleep(0.02)


async def test_does_not_count_a_slow_disk_as_idleness_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the broker works for a client, it is not the client who keeps the other waiting."""
    syncing, go_on = hold_sync(monkeypatch)
    async with make(tmp_path, max_idle_ms=100) as broker, connected(broker) as (reader, writer):
        writer.write(ProduceRequest("t", 0, encode_message(b"a")).encode() + PROBE)
        assert await asyncio.to_thread(syncing.wait, 10)
        async with connected(broker) as idle:
            assert await idle[0].read() == b""  # closed meanwhile, so the other one has been looked at, too
        go_on.set()
        assert await reader.readexactly(len(ANSWER)) == ANSWER


async def test_stores_large_sets_as_they_came_while_more_arrive(tmp_path: Path) -> None:
    """They are written from the buffer that receives: no next request may get into it before."""
    rng = random.Random(1)
    sizes = (100, 65_600, 200_000, 200_000, 300_000, 900_000, 70_000, 999_990)
    sets = [encode_message(rng.randbytes(size)) for size in sizes] * 2
    sets += [b"".join(sets[3:6]), b"".join(sets[:3])]
    frames = [ProduceRequest("t", 0, each).encode() for each in sets]
    frames.append(MultiProduceRequest(tuple(ProduceRequest("t", 0, each) for each in sets)).encode())
    async with make(tmp_path) as broker, connected(broker) as one, connected(broker) as two:
        for _, writer in (one, two):
            writer.write(b"".join(frames))
        assert await ask(*one) == await ask(*two) == ANSWER
        stored = (tmp_path / "t-0" / f"{0:020d}.kafka").read_bytes()
    assert len(stored) == 4 * sum(map(len, sets))
    sent = Counter(message for each in sets for message in messages_of(each))
    assert Counter(messages_of(stored)) == Counter({message: 4 * count for message, count in sent.items()})


async def test_judges_each_set_for_a_log_in_use(tmp_path: Path) -> None:
    """Sets that are stored at once are followed by all that is not: the order and the verdicts are the same."""
    plain = encode_message(b"plain")
    wrapper = encode_message_set([b"one", b"two"], codec=Codec.GZIP)
    oversized = encode_message(bytes(1001))
    sets = [plain, plain, b"", plain + b"cut", wrapper, oversized, plain * 3, wrapper + plain]
    async with make(tmp_path, max_message_bytes=1000) as broker:
        async with connected(broker) as (reader, writer):
            for each in sets:
                writer.write(ProduceRequest("t", 0, each).encode())
            assert await ask(reader, writer) == ANSWER
            writer.write(ProduceRequest("t", 0, plain[:-1] + b"?").encode())
            assert await ask(reader, writer) == b""
        stored = (tmp_path / "t-0" / f"{0:020d}.kafka").read_bytes()
        assert stored == plain * 3 + wrapper + plain * 3 + wrapper + plain
        stats = broker.stats
        assert (stats.requests["produce"].count, stats.oversized_sets, stats.refused) == (len(sets) + 1, 1, 1)
        assert (stats.produced["t", 0].messages, stats.produced["t", 0].bytes) == (11, len(stored))


def messages_of(data: bytes) -> list[bytes]:
    return [data[message.offset : message.next_offset] for message in iter_outer(data) if message.valid]


async def test_resting_connections_release_their_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def half(broker: Broker, size: int, came: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that announces a request of `size` bytes and sends `came` of them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(struct.pack(">i", size) + bytes(came))
    return reader, writer


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_partial_requests_hold_bounded_memory_and_admit_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connections_module, "_LOOK", 0.05)
    monkeypatch.setattr(connections_module, "_GRACE", 0.2)
    limit = 4 << 20
    sizes: list[int] = []
    async with make(tmp_path, queued_bytes=limit, max_request_bytes=limit) as broker:
        held = [await half(broker, limit, 3 << 20) for _ in range(6)]
        async with asyncio.timeout(30), connected(broker) as honest:
            message = encode_message(bytes(900_000))
            for _ in range(5):
                honest[1].write(ProduceRequest("t", 0, message * 3).encode())
                assert await ask(*honest) == ANSWER
                sizes.append(sum(len(stream._buffer) for stream in streams(broker)))
            for reader, _ in held:
                assert await ended(reader)
        for _, writer in held:
            writer.close()
        while broker.connections:
            await asyncio.sleep(0.01)
        assert broker._connections.memory.used == 0
    assert max(sizes) <= limit + 8 * (1 << 13)
    assert "request_memory_exhausted" in capfd.readouterr().out


async def test_closes_a_connection_whose_request_is_not_whole_in_time(tmp_path: Path) -> None:
    async with make(tmp_path, request_timeout_ms=400) as broker, connected(broker) as quiet:
        assert await ask(*quiet) == ANSWER
        reader, writer = await half(broker, 1000, 1)
        dripping = asyncio.create_task(ended(reader))
        async with asyncio.timeout(60):
            while not dripping.done():  # that something comes now and then is not enough
                writer.write(b"x")
                await asyncio.sleep(0.1)
        writer.close()
        assert await ask(*quiet) == ANSWER  # nothing of a request has come: that may take as long as it likes


async def test_keeps_a_silent_producer_connected(tmp_path: Path) -> None:
    """It would not notice, and lose what it sends next."""
    async with make(tmp_path, max_idle_ms=300) as broker, connected(broker) as producer:
        producer[1].write(ProduceRequest("t", 0, encode_message(b"one")).encode())
        assert await ask(*producer) == ANSWER
        for _ in range(3):
            async with connected(broker) as idle:
                assert await idle[0].read() == b""
        producer[1].write(ProduceRequest("t", 0, encode_message(b"two")).encode())
        assert await ask(*producer) == ANSWER
        producer[1].write(PROBE[:9])  # within a request it has no such right
        assert await producer[0].read() == b""


async def test_counts_requests_under_way_against_request_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncing, go_on = hold_sync(monkeypatch)
    async with make(tmp_path) as broker, connected(broker) as (reader, writer):
        writer.write(ProduceRequest("t", 0, encode_message(bytes(900_000))).encode())
        assert await asyncio.to_thread(syncing.wait, 10)
        (stream,) = streams(broker)
        assert broker._connections.memory.used > 900_000
        assert len(stream._buffer) < 900_000
        go_on.set()
        writer.write(PROBE)
        assert await reader.readexactly(len(ANSWER)) == ANSWER
        assert broker._connections.memory.used < 900_000

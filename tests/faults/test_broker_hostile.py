"""Clients that break the rules, stall, vanish or come in crowds: only their own connection suffers."""

import asyncio
import contextlib
import os
import random
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from consumerd.base.clock import SystemClock
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.wire.v07 import (
    FetchRequest,
    MultiFetchRequest,
    MultiProduceRequest,
    OffsetsRequest,
    ProduceRequest,
    encode_message,
)

PROBE = OffsetsRequest("probe", 0, -1, 1).encode()
PROBE_ANSWER = struct.pack(">ihiq", 14, 0, 1, 0)
BIG = encode_message(os.urandom(999_000))


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    config = BrokerConfig(log_dir=tmp_path / "log", port=0, use_zookeeper=False, flush_messages=1, partitions=2)
    async with Broker(config, clock=SystemClock(), rng=random.Random(1)) as running:
        yield running


async def connect(broker: Broker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", broker.port)


async def still_serves(broker: Broker) -> None:
    async with asyncio.timeout(60):
        reader, writer = await connect(broker)
        writer.write(PROBE)
        assert await reader.readexactly(len(PROBE_ANSWER)) == PROBE_ANSWER
        writer.close()


async def until_alone(broker: Broker) -> None:
    """Wait until every connection task has ended: nothing may linger."""
    async with asyncio.timeout(60):
        while broker.connections:
            await asyncio.sleep(0.01)


async def test_garbage(broker: Broker) -> None:
    rng = random.Random(20)
    valid = [
        FetchRequest("t", 0, 0, 100).encode(),
        MultiFetchRequest((FetchRequest("t", 0, 0, 100), FetchRequest("u", 1, 5, -3))).encode(),
        ProduceRequest("t", 0, encode_message(b"x") * 3).encode(),
        MultiProduceRequest((ProduceRequest("t", 1, encode_message(b"y", magic=0)),)).encode(),
        PROBE,
    ]

    async def one(data: bytes) -> None:
        reader, writer = await connect(broker)
        writer.write(data)
        with contextlib.suppress(OSError):
            writer.write_eof()
            await reader.read()
        writer.close()

    for _ in range(20):
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(25):
                data = bytearray(rng.choice(valid) if rng.random() < 0.8 else rng.randbytes(rng.randrange(200)))
                for _ in range(rng.randrange(4)):
                    if data:
                        data[rng.randrange(len(data))] = rng.randrange(256)
                if rng.random() < 0.3:
                    data[0:2] = b"\0\0"
                group.create_task(one(bytes(data)))
    await still_serves(broker)
    await until_alone(broker)


async def test_slow_reader_does_not_delay_other_clients(broker: Broker) -> None:
    reader, writer = await connect(broker)
    writer.write(ProduceRequest("t", 0, BIG * 20).encode() + PROBE)
    await reader.readexactly(len(PROBE_ANSWER))
    slow = socket.create_connection(("127.0.0.1", broker.port))
    for _ in range(50):
        slow.sendall(FetchRequest("t", 0, 0, 1 << 30).encode())
    for _ in range(100):
        await still_serves(broker)
    writer.write(FetchRequest("t", 0, 0, 1 << 30).encode())
    async with asyncio.timeout(60):
        assert await reader.readexactly(6) == struct.pack(">ih", 2 + 20 * len(BIG), 0)
        assert await reader.readexactly(20 * len(BIG)) == BIG * 20
    # and what the slow one gets in the end is right
    slow.setblocking(False)
    loop = asyncio.get_running_loop()
    got = bytearray()
    async with asyncio.timeout(60):
        while len(got) < 3_000_000:
            got += await loop.sock_recv(slow, 1 << 16)
    assert got == (struct.pack(">ih", 2 + 20 * len(BIG), 0) + BIG * 4)[: len(got)]
    slow.close()
    writer.close()
    await until_alone(broker)


async def test_survives_connections_reset_by_clients(broker: Broker) -> None:
    """RST in every state: before a request, within one, while an answer is on its way."""
    reader, writer = await connect(broker)
    writer.write(ProduceRequest("t", 0, BIG * 5).encode() + PROBE)
    await reader.readexactly(len(PROBE_ANSWER))
    writer.close()
    for data in (b"", PROBE[:7], FetchRequest("t", 0, 0, 1 << 30).encode() * 10, ProduceRequest("t", 0, BIG).encode()):
        for _ in range(20):
            sock = socket.create_connection(("127.0.0.1", broker.port))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(sock, data)
            sock.close()
    await still_serves(broker)
    await until_alone(broker)

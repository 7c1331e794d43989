"""The broker in memory answers as the real one on a socket does: the same requests go to both."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from consumerd.base.clock import SystemClock
from consumerd.net.connect import Connection, connect
from consumerd.net.errors import ConnectError, ConnectionClosedError
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.testing.memory_broker import MemoryBroker
from consumerd.wire.v07 import (
    EARLIEST,
    LATEST,
    Codec,
    FetchRequest,
    MultiFetchRequest,
    MultiProduceRequest,
    OffsetsRequest,
    ProduceRequest,
    Request,
    encode_message_set,
)

SET = encode_message_set([b"a", b"bc"])
PACKED = encode_message_set([b"d", b"e"], codec=Codec.GZIP)

WRITES: list[Request] = [
    ProduceRequest("t", 0, SET),
    ProduceRequest("t", 0, SET[:-1]),  # the part of a message at the end is dropped
    MultiProduceRequest((ProduceRequest("t", 1, SET), ProduceRequest("t", 0, PACKED))),
    ProduceRequest("t", 1, encode_message_set([b"x" * 1_000_001])),  # too large: dropped
]
READS: list[Request] = [
    FetchRequest("t", 0, 0, 1000),
    FetchRequest("t", 0, 0, 7),
    FetchRequest("t", 0, len(SET), 1000),
    FetchRequest("t", 0, 1_000_000, 1000),
    FetchRequest("t", 1, -1, 1000),
    FetchRequest("new", 0, 0, 1000),
    MultiFetchRequest((FetchRequest("t", 1, 0, 1000), FetchRequest("t", 0, 1_000_000, 10))),
    OffsetsRequest("t", 0, EARLIEST, 1),
    OffsetsRequest("t", 0, LATEST, 1),
]


async def answers(connection: Connection) -> list[bytes]:
    for write in WRITES:
        await connection.send(write.encode())
    return [await connection.request(read.encode()) for read in READS]


async def test_answers_as_the_real_broker(tmp_path: Path) -> None:
    config = BrokerConfig(log_dir=tmp_path, port=0, partitions=2, flush_messages=1, use_zookeeper=False)
    async with Broker(config, clock=SystemClock(), rng=random.Random(1)) as broker:
        real = await connect("127.0.0.1", broker.port)
        expected = await answers(real)
        await real.close()
    memory = MemoryBroker()
    assert await answers(await memory.connect("anywhere", 1)) == expected
    assert memory.end("t", 0) == 2 * len(SET) - len(encode_message_set([b"bc"])) + len(PACKED)
    assert len(memory.requests) == len(WRITES) + len(READS)


async def test_rejects_an_invalid_message_set() -> None:
    memory = MemoryBroker()
    connection = await memory.connect("a", 1)
    await connection.send(ProduceRequest("t", 0, SET[:-1] + b"?").encode())
    assert connection.closed
    await connection.wait_closed()
    with pytest.raises(ConnectionClosedError):
        await connection.request(FetchRequest("t", 0, 0, 10).encode())
    assert memory.end("t", 0) == 0


async def test_lets_a_test_answer_requests() -> None:
    memory = MemoryBroker()
    memory.on_request = lambda request: b"mine" if isinstance(request, FetchRequest) else OSError("away")
    connection = await memory.connect("a", 1)
    assert await connection.request(FetchRequest("t", 0, 0, 10).encode()) == b"mine"
    with pytest.raises(OSError, match="away"):
        await connection.request(OffsetsRequest("t", 0, LATEST, 1).encode())
    assert connection.closed


async def test_can_be_unreachable() -> None:
    memory = MemoryBroker()
    connection = await memory.connect("a", 1)
    memory.away = True
    with pytest.raises(ConnectError, match="a:1"):
        await memory.connect("a", 1)
    assert memory.connections == {connection}
    memory.abort()
    assert connection.closed
    assert memory.connections == set()


async def test_append_returns_the_end_of_the_log() -> None:
    memory = MemoryBroker()
    assert memory.append("t", 0, b"a") == memory.end("t", 0) == 11
    assert memory.append("t", 0, b"b", b"c", codec=Codec.GZIP) == memory.end("t", 0)
    assert memory.append("t", 1, b"a", magic=0) == 10

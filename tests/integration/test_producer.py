"""The producer against a real broker; all else is in `tests/unit/producer/v07` and simulated (`test_v07_producer`)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.net.connect import connect
from consumerd.producer import (
    Producer,
    ProducerSettings,
    StaticRouter,
)
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.testing.fault_proxy import FaultProxy
from consumerd.wire.v07 import Codec, FetchRequest, decode_batch, decode_fetch_response, iter_outer


def make_broker(log_dir: Path) -> Broker:
    config = BrokerConfig(log_dir=log_dir, port=0, use_zookeeper=False, flush_messages=1, partitions=2)
    return Broker(config, clock=SystemClock(), rng=random.Random(1))


def make_producer(port: int, **settings: Any) -> Producer:
    router = StaticRouter([("127.0.0.1", port)], rng=random.Random(2))
    chosen = ProducerSettings(**settings)
    return Producer(router, connect=connect, clock=SystemClock(), rng=random.Random(3), settings=chosen)


async def stored(port: int, topic: str, partition: int) -> list[bytes]:
    """The payloads of a partition, from the broker."""
    connection = await connect("127.0.0.1", port)
    try:
        answer = decode_fetch_response(await connection.request(FetchRequest(topic, partition, 0, 50_000_000).encode()))
    finally:
        await connection.close()
    return list(decode_batch(answer.data, 0).payloads)


LINES = [b"", b"one", b"\xff\x00\n", b"one", "привет".encode(), b"x" * 100_000]


@pytest.mark.parametrize(
    ("magic", "codec"),
    [(0, Codec.NONE), (1, Codec.NONE), (1, Codec.GZIP), (1, Codec.SNAPPY), (0, Codec.SNAPPY)],
)
async def test_stores_what_is_sent(tmp_path: Path, magic: int, codec: Codec) -> None:
    async with make_broker(tmp_path) as broker:
        async with make_producer(broker.port, magic=magic, codec=codec) as producer:
            await producer.send("t", LINES, partition=1)
            assert await stored(broker.port, "t", 1) == LINES  # at once: send waits for the broker
            await producer.send("t", [], partition=1)
            await producer.send_all([])
            await producer.send("t", [b"more"], partition=1)
        assert await stored(broker.port, "t", 1) == [*LINES, b"more"]
        connection = await connect("127.0.0.1", broker.port)
        data = decode_fetch_response(await connection.request(FetchRequest("t", 1, 0, 1 << 20).encode())).data
        await connection.close()
        outer = list(iter_outer(data))
        assert {m.codec for m in outer} == {codec}
        assert len(outer) == (7 if codec is Codec.NONE else 2)


async def test_concurrent_sends_share_a_connection_and_survive_a_cancelled_one(tmp_path: Path) -> None:
    async with make_broker(tmp_path) as broker, FaultProxy("127.0.0.1", broker.port) as proxy:
        async with make_producer(proxy.port) as producer:
            tasks = [asyncio.create_task(producer.send("t", [b"%02d" % n], partition=0)) for n in range(50)]
            tasks[25].cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(o) for n, o in enumerate(outcomes) if n != 25] == [type(None)] * 49
        assert proxy.accepted == 1
        payloads = await stored(broker.port, "t", 0)
        assert [p for p in payloads if p != b"25"] == [b"%02d" % n for n in range(50) if n != 25]

"""The asynchronous producer against a broker in a process of its own and a real ZooKeeper."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import consumerd
from consumerd.demo.processes import BrokerProcess
from consumerd.net.connect import connect
from consumerd.producer import AsyncProducer, NotArrivedError, key_index
from consumerd.wire.v07 import Codec, FetchRequest, decode_batch, decode_fetch_response, iter_outer


async def log(port: int, topic: str, partition: int) -> bytes:
    connection = await connect("127.0.0.1", port)
    try:
        request = FetchRequest(topic, partition, 0, 50_000_000)
        return decode_fetch_response(await connection.request(request.encode())).data
    finally:
        await connection.close()


async def stored(port: int, topic: str, partition: int) -> list[bytes]:
    return list(decode_batch(await log(port, topic, partition), 0).payloads)


async def test_producer_of_0_7_properties_finds_brokers_in_zookeeper(tmp_path: Path, zk_root: str) -> None:
    config = consumerd.ProducerConfig.from_properties(
        {
            "zk.connect": zk_root,
            "producer.type": "async",
            "compression.codec": "2",
            "compressed.topics": "zipped",
            "batch.size": "50",
            "queue.time": "100",
            "num.retries": "4",
        }
    )
    async with BrokerProcess(tmp_path, zk_root, partitions=3, settings={"log.flush.interval": 1}) as broker:
        async with consumerd.open_producer(config) as first:
            assert isinstance(first, AsyncProducer)
            await first.send("plain", ["first"])
            await first.send("zipped", [b"first"])
        async with consumerd.open_producer(config) as producer:
            async with asyncio.timeout(60):  # until the topic's partitions are registered, all goes to partition 0
                while len(await _registered(zk_root)) < 2:
                    await asyncio.sleep(0.05)
            for n in range(500):
                await producer.send("plain" if n % 2 else "zipped", [b"%d" % n], key=f"key {n % 7}")
            await producer.flush()
            for topic, start in (("plain", 1), ("zipped", 0)):
                wanted: list[list[bytes]] = [[], [], []]
                for n in range(start, 500, 2):
                    wanted[key_index(f"key {n % 7}", 3)].append(b"%d" % n)
                found = [await stored(broker.port, topic, p) for p in range(3)]
                assert [[m for m in payloads if m != b"first"] for payloads in found] == wanted
        codecs = {
            topic: {m.codec for p in range(3) for m in iter_outer(await log(broker.port, topic, p))}
            for topic in ("plain", "zipped")
        }
        assert codecs == {"plain": {Codec.NONE}, "zipped": {Codec.SNAPPY}}


async def _registered(zk_root: str) -> list[str]:
    import random

    from consumerd.base.clock import SystemClock
    from consumerd.net.zk import NoNode, Session

    async with Session(zk_root, clock=SystemClock(), rng=random.Random()) as zk:
        found = []
        for topic in ("plain", "zipped"):
            try:
                found += await zk.children(f"/brokers/topics/{topic}")
            except NoNode:
                continue
        return found


async def test_verifies_after_real_flushes(tmp_path: Path) -> None:
    """The broker flushes by time only: reading back has to wait for it, and what is too large is not there."""
    settings: dict[str, str | int] = {
        "log.flush.interval": 1_000_000,
        "log.default.flush.interval.ms": 300,
        "log.default.flush.scheduler.interval.ms": 100,
        "max.message.size": 1000,
    }
    async with BrokerProcess(tmp_path, None, partitions=3, settings=settings) as broker:
        config = consumerd.ProducerConfig(
            brokers=(("127.0.0.1", broker.port),),
            settings=consumerd.ProducerSettings(verify=True, verify_timeout=1.5),
        )
        async with consumerd.open_producer(config) as producer:
            for n in range(5):
                await producer.send("t", [b"%d" % n, b"same"])
            with pytest.raises(NotArrivedError, match=r"\(1 in t-2\)"):
                await producer.send("t", [b"x" * 1001], partition=2)
        found = [payload for p in range(3) for payload in await stored(broker.port, "t", p)]
        assert sorted(found) == sorted([b"same"] * 5 + [b"%d" % n for n in range(5)])

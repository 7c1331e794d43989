"""Our producer and a Jafka broker: the confirmation behind each batch works there too, and messages arrive."""

from __future__ import annotations

import asyncio
import random

import pytest

from consumerd.base.clock import SystemClock
from consumerd.handlers.mirror.placing import PlacedRouter, SourcePartition
from consumerd.handlers.mirror.topics import MirrorTopics
from consumerd.net.connect import connect
from consumerd.net.zk.session import Session
from consumerd.producer import (
    AsyncProducer,
    Producer,
    ProducerSettings,
    QueueSettings,
    Router,
    StaticRouter,
    UncertainError,
    ZooKeeperRouter,
    key_index,
)
from consumerd.wire.v07 import Codec, FetchRequest, decode_batch, decode_fetch_response
from tests.interop.conftest import JafkaBrokerFactory
from tests.support.jafka import JafkaBroker

pytestmark = [pytest.mark.interop]


def make(router: Router, codec: Codec = Codec.NONE, magic: int = 1, *, verify: bool = False) -> Producer:
    settings = ProducerSettings(codec=codec, magic=magic, resends=0, verify=verify)
    return Producer(router, connect=connect, clock=SystemClock(), rng=random.Random(1), settings=settings)


async def stored(broker: JafkaBroker, topic: str, partition: int, count: int) -> list[bytes]:
    """`count` payloads; Jafka shows only what it has flushed, which it does on a timer."""
    connection = await connect("127.0.0.1", broker.port)
    try:
        async with asyncio.timeout(120):
            while True:
                body = await connection.request(FetchRequest(topic, partition, 0, 1 << 20).encode())
                payloads = list(decode_batch(decode_fetch_response(body).data, 0).payloads)
                if len(payloads) >= count:
                    return payloads
                await asyncio.sleep(0.1)
    finally:
        await connection.close()


async def test_confirms_and_stores_batches(zk_root: str, jafka_broker: JafkaBrokerFactory) -> None:
    async with Session(zk_root, clock=SystemClock(), rng=random.Random(1)) as zk:
        broker = await jafka_broker(zk_root)
        address = StaticRouter([("127.0.0.1", broker.port)], rng=random.Random(1))
        for codec in (Codec.NONE, Codec.GZIP):
            async with make(address, codec) as producer:
                await producer.send("plain", [codec.name.encode(), b"\xff\x00", b""], partition=0)
        assert await stored(broker, "plain", 0, 6) == [b"NONE", b"\xff\x00", b"", b"GZIP", b"\xff\x00", b""]
        # It knows neither snappy nor messages of Kafka 0.6. All it does is close, so without a confirmation the
        # messages would be lost without an error.
        for producer in (make(address, Codec.SNAPPY), make(address, magic=0)):
            with pytest.raises(UncertainError, match="closed the connection"):
                await producer.send("plain", [b"refused"], partition=0)
            await producer.close()
        async with make(ZooKeeperRouter(zk, rng=random.Random(1))) as producer:
            for n in range(30):
                await producer.send("plain", [b"%d" % n], key=str(n))
        expected: list[list[bytes]] = [[], []]
        for n in range(30):
            expected[key_index(str(n), 2)].append(b"%d" % n)
        assert (await stored(broker, "plain", 0, 6 + len(expected[0])))[6:] == expected[0]
        assert await stored(broker, "plain", 1, len(expected[1])) == expected[1]


async def test_sends_in_the_background_and_verifies(zk_root: str, jafka_broker: JafkaBrokerFactory) -> None:
    async with Session(zk_root, clock=SystemClock(), rng=random.Random(1)):  # which makes the chroot
        broker = await jafka_broker(zk_root)
    router = StaticRouter([("127.0.0.1", broker.port)], rng=random.Random(1))
    queue = QueueSettings(batch_size=40)
    async with AsyncProducer(make(router, Codec.GZIP, verify=True), clock=SystemClock(), queue=queue) as producer:
        for n in range(100):
            await producer.send("queued", [b"%d" % n], partition=n % 2)
        await producer.send("queued", [b"any"])  # the partition is chosen by us, of as many as the broker has
    both = [await stored(broker, "queued", p, 50) for p in (0, 1)]
    for p in (0, 1):
        assert [payload for payload in both[p] if payload != b"any"] == [b"%d" % n for n in range(p, 100, 2)]
    assert sum(payloads.count(b"any") for payloads in both) == 1


async def test_mirrors_to_a_jafka_broker(zk_root: str, jafka_broker: JafkaBrokerFactory) -> None:
    async with Session(zk_root, clock=SystemClock(), rng=random.Random(1)) as zk:
        broker = await jafka_broker(zk_root)
        placed = PlacedRouter([("127.0.0.1", broker.port)], connect=connect)
        assert [(await placed.route("placed", SourcePartition(0, p, 4), None)).partition for p in range(4)] == [
            0,
            1,
            0,
            1,
        ]
        async with asyncio.timeout(120):
            await MirrorTopics(zk, connect=connect, clock=SystemClock()).ensure("made")
        assert await zk.children("/brokers/topics/made") == [str(broker.broker_id)]

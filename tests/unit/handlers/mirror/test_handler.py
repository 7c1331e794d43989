from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from consumerd.base.errors import HandlerFailedError
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, RetryPolicy, retrying
from consumerd.handlers.mirror.handler import MirrorHandler
from consumerd.handlers.mirror.placing import KeepingPartitioner, SourceCounts
from consumerd.net.errors import ConnectionClosedError
from consumerd.producer import NotArrivedError, Producer, ProducerSettings, UncertainError, ZooKeeperRouter
from consumerd.testing.clock import FakeClock
from consumerd.testing.memory_broker import MemoryBroker
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.v07 import Codec, ErrorCode, FetchRequest, FetchResponse, Request, decode_batch, encode_message_set

SOURCE = TopicPartition("t", 1, 2)


def batch(*payloads: bytes, partition: TopicPartition = SOURCE, codec: Codec = Codec.NONE) -> Batch:
    return Batch(partition, decode_batch(encode_message_set(payloads, codec=codec), 4000))


class Target:
    """A cluster of two brokers with two partitions each, and a handler that mirrors to it."""

    def __init__(self) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.broker = MemoryBroker()
        self.clock = FakeClock(auto=True)
        for number in (0, 1):
            self.zookeeper.put(f"/brokers/ids/{number}", b"x-1:broker-%d:9092" % number)
            self.zookeeper.put(f"/brokers/topics/t/{number}", b"2")
        self.source = MemoryZooKeeper()
        self.source.put("/brokers/topics/t/1", b"3")

    async def start(self, zk: Any, source: Any, **settings: Any) -> MirrorHandler:
        rng = random.Random(1)
        router = ZooKeeperRouter(zk, rng=rng, partitioner=KeepingPartitioner())
        producer = Producer(
            router,
            connect=self.connect,
            clock=self.clock,
            rng=rng,
            settings=ProducerSettings(**settings),
        )
        return MirrorHandler(producer, SourceCounts(source))

    async def connect(self, host: str, port: int) -> Any:
        self.reached = host
        return await self.broker.connect(host, port)

    def stored(self, partition: int) -> list[bytes]:
        return list(decode_batch(bytes(self.broker.logs.get(("t", partition), b"")), 0).payloads)


@pytest_asyncio.fixture
async def target() -> AsyncIterator[Any]:
    made = Target()
    async with made.zookeeper.session() as zk, made.source.session() as source:
        made.sessions = (zk, source)  # type: ignore[attr-defined]
        yield made


async def test_returns_once_the_target_has_the_batch(target: Any) -> None:
    handler = await target.start(*target.sessions)
    await handler.handle(batch(b"a", b"", b"\xff"))
    # 1 * 3 + 2 = 5, and 5 mod 4 = 1: broker 0, partition 1
    assert target.stored(1) == [b"a", b"", b"\xff"]
    assert target.reached == "broker-0"
    await handler.handle(batch(b"b", b"c", codec=Codec.GZIP))
    assert target.stored(1) == [b"a", b"", b"\xff", b"b", b"c"]
    assert handler.sent == 5
    await handler.stop()
    assert not target.broker.connections


async def test_raises_for_an_unconfirmed_batch(target: Any) -> None:
    handler = await target.start(*target.sessions, resends=0)
    target.broker.on_request = lambda request: (
        ConnectionClosedError("cut") if isinstance(request, FetchRequest) else None
    )
    with pytest.raises(UncertainError):
        await handler.handle(batch(b"a"))
    assert handler.sent == 0
    target.broker.on_request = lambda request: None
    await handler.handle(batch(b"a"))
    assert handler.sent == 1
    await handler.stop()


async def test_raises_permanent_failures_at_once(target: Any) -> None:
    handler = await target.start(*target.sessions, max_message_bytes=3)
    with pytest.raises(HandlerFailedError, match=r"cannot mirror t/1-2 from offset 4000: .* has 4 bytes"):
        await handler.handle(batch(b"a", b"four"))
    assert target.stored(1) == []
    target.zookeeper.put("/brokers/ids/0", b'{"host":"h","port":1,"version":1,"jmx_port":-1}')
    for _ in range(5):  # the watch gets the event
        await asyncio.sleep(0)
    with pytest.raises(HandlerFailedError, match=r"Kafka 0\.8 or later"):
        await handler.handle(batch(b"a"))
    await handler.stop()


async def test_stops_retrying_what_does_not_arrive(target: Any) -> None:
    """The target drops it each time: the retries of the mirror, endless otherwise, end here."""
    handler = await target.start(*target.sessions, verify=True, verify_timeout=1.0, max_message_bytes=10_000_000)

    def answer(request: Request) -> Any:
        if isinstance(request, FetchRequest) and request.max_size > 0:
            return FetchResponse(ErrorCode.NONE, b"").encode()[4:]
        return None

    target.broker.on_request = answer
    endless = retrying(
        handler, RetryPolicy(max_attempts=10**9), clock=target.clock, rng=random.Random(1), name="mirror"
    )
    with pytest.raises(HandlerFailedError, match=r"cannot mirror t/1-2 from offset 4000: .*could not be read back"):
        await endless.handle(batch(b"a"))
    assert target.stored(1) == [b"a"] * 3
    # Another batch, and one that arrives in between, begin to count again.
    with pytest.raises(NotArrivedError):
        await handler.handle(batch(b"b", partition=TopicPartition("t", 1, 0)))
    await handler.stop()


async def test_sends_a_large_batch_in_pieces_and_retries_the_rest(target: Any) -> None:
    sizes: list[int] = []

    class Refusing(Producer):
        async def send(self, topic: str, payloads: Any, **options: Any) -> None:
            sizes.append(len(payloads))
            if len(sizes) == 2:
                raise UncertainError("the connection ended")
            await super().send(topic, payloads, **options)

    one, rng = batch(*[b"%d" % number for number in range(45_000)], codec=Codec.GZIP), random.Random(1)
    zk, source = target.sessions
    router = ZooKeeperRouter(zk, rng=rng, partitioner=KeepingPartitioner())
    producer = Refusing(router, connect=target.connect, clock=target.clock, rng=rng)
    handler = MirrorHandler(producer, SourceCounts(source))
    with pytest.raises(UncertainError):
        await handler.handle(one)
    assert one.handled == handler.sent == 20_000
    assert one.prefix(one.handled) == one.start_offset  # only the last leaf moves the position
    await handler.handle(one)
    await handler.stop()
    assert sizes == [20_000, 20_000, 20_000, 5_000]
    assert handler.sent == 45_000
    assert [*target.stored(0), *target.stored(1)] == list(one)

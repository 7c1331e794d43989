"""The synchronous producer of 0.7, and what its settings allow."""

from __future__ import annotations

import random
from typing import Any

import pytest

from consumerd.producer import CallbackHandler, ProducerData, ProducerSettings, QueueSettings
from consumerd.producer.errors import EncodingError, NoBrokerError, NoPartitionError
from consumerd.producer.v07.routing import ANY_PARTITION
from consumerd.producer.v07.zookeeper_routing import ZooKeeperRouter
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.errors import InvalidTopicError
from consumerd.wire.v07 import Codec, FetchRequest

pytestmark = pytest.mark.asyncio


async def test_confirms_by_a_fetch_of_a_partition_that_every_broker_has(world: Any) -> None:
    async with world.producer() as producer:
        await producer.send("t", [b"x"], partition=3)
    probes = [request for request in world.broker.requests if isinstance(request, FetchRequest)]
    assert [(probe.topic, probe.partition, probe.offset, probe.max_size) for probe in probes] == [("t", 0, 0, 0)]


@pytest.mark.parametrize("given", [{"headers": (("h", b"v"),)}, {"timestamp": 7}])
async def test_sends_nothing_of_data_that_0_7_cannot_store(world: Any, given: dict[str, Any]) -> None:
    async with world.producer() as producer:
        for data in ([b"x"], [None]):
            with pytest.raises(EncodingError, match="do not support headers or timestamps"):
                await producer.send("t", data, **given)
        with pytest.raises(InvalidTopicError):
            await producer.send_all([ProducerData("t", [b"x"]), ProducerData("a/b", [b"x"])])
        assert world.produced == []


class Silent(CallbackHandler):
    def before_sending_data(self, events: Any) -> Any:
        return []


async def test_batch_of_which_callbacks_leave_nothing_is_not_sent(world: Any) -> None:
    async with world.queued(callbacks=Silent()) as producer:
        await producer.send("t", [b"x"])
        await producer.flush()
        assert (producer.stats.batches, producer.stats.sent) == (0, 0)
    assert world.produced == []


async def test_codec_is_for_all_topics_or_those_that_are_named() -> None:
    assert ProducerSettings(codec=Codec.GZIP).codec_for("t") is Codec.GZIP
    named = ProducerSettings(codec=Codec.GZIP, compressed_topics=frozenset({"t"}))
    assert [named.codec_for(topic) for topic in ("t", "u")] == [Codec.GZIP, Codec.NONE]


@pytest.mark.parametrize("given", [{"batch_size": 0}, {"queue_size": 0}])
async def test_rejects_queues_without_room(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        QueueSettings(**given)
    least: dict[str, Any] = dict.fromkeys(given, 1)
    QueueSettings(**least)


async def routes(zookeeper: MemoryZooKeeper, key: Any, partition: int | None) -> set[tuple[str, int]]:
    """The hosts and partitions that a router chooses, in many attempts."""
    session = zookeeper.session()
    await session.start()
    try:
        router = ZooKeeperRouter(session, rng=random.Random(1))
        found = [await router.route("t", key, partition) for _ in range(60)]
        await router.close()
        return {(route.host, route.partition) for route in found}
    finally:
        await session.close()


async def test_routes_to_the_partitions_of_live_brokers_and_to_the_first_of_those_without_the_topic() -> None:
    zookeeper = MemoryZooKeeper()
    for broker in (1, 2, 3):
        zookeeper.put(f"/brokers/ids/{broker}", b"creator:h%d:9092" % broker)
    assert await routes(zookeeper, None, None) == {("h1", 0), ("h2", 0), ("h3", 0)}
    assert await routes(zookeeper, None, 5) == {("h1", 5), ("h2", 5), ("h3", 5)}
    for broker, count in ((1, b"2"), (2, b"1"), (4, b"3")):  # 4 is not alive
        zookeeper.put(f"/brokers/topics/t/{broker}", count)
    assert await routes(zookeeper, None, None) == {("h1", 0), ("h1", 1), ("h2", 0), ("h3", 0)}
    assert await routes(zookeeper, None, ANY_PARTITION) == {(f"h{n}", ANY_PARTITION) for n in (1, 2, 3)}
    assert await routes(zookeeper, None, 1) == {("h1", 1)}
    with pytest.raises(NoPartitionError, match="no partition 3: its brokers have 3 each"):
        await routes(zookeeper, None, 3)
    with pytest.raises(NoBrokerError, match="broker 4"):  # a key does not move to another broker
        await routes(zookeeper, b"k", 2)

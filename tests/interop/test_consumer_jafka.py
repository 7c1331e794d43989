"""Our consumer APIs against a Jafka broker, and a connector that shares a group with a JVM member."""

from __future__ import annotations

import asyncio

import pytest
from kazoo.client import KazooClient

from consumerd import (
    EARLIEST,
    LATEST,
    ConsumerConfig,
    ConsumerConnector,
    FetchRequest,
    OffsetOutOfRangeError,
    SimpleConsumer,
    TopicPartition,
    Whitelist,
    WrongPartitionError,
)
from consumerd.net.connect import connect
from consumerd.wire.v07 import Codec, OffsetsRequest, ProduceRequest, encode_message_set
from tests.interop.conftest import JafkaBrokerFactory, JafkaConsumerFactory
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper]


async def produce(port: int, topic: str, partition: int, payloads: list[bytes], codec: Codec = Codec.NONE) -> int:
    """Append one set; where the partition's log ends then."""
    data = encode_message_set(payloads, codec=codec)
    async with SimpleConsumer("127.0.0.1", port) as consumer:
        before = await consumer.get_offsets_before(topic, partition, LATEST, 1)
        connection = await connect("127.0.0.1", port)
        await connection.send(ProduceRequest(topic, partition, data).encode())
        await connection.request(OffsetsRequest(topic, partition, LATEST, 1).encode())
        await connection.close()
        end = (before[0] if before else 0) + len(data)
        async with asyncio.timeout(120):  # until it is flushed
            while await consumer.get_offsets_before(topic, partition, LATEST, 1) != (end,):
                await asyncio.sleep(0.02)
    return end


async def test_simple_consumer_reads_a_jafka_broker(
    zk: KazooClient, zk_root: str, jafka_broker: JafkaBrokerFactory
) -> None:
    broker = await jafka_broker(zk_root, partitions=2)
    middle = await produce(broker.port, "t", 1, [b"one", b"two"])
    end = await produce(broker.port, "t", 1, [b"three", b"four"], Codec.GZIP)
    async with SimpleConsumer("127.0.0.1", broker.port) as consumer:
        assert list(await consumer.fetch("t", 1, 0, 1 << 20)) == [b"one", b"two", b"three", b"four"]
        good, bad, empty = await consumer.multifetch(
            [FetchRequest("t", 1, middle, 1 << 20), FetchRequest("t", 1, end + 1, 1), FetchRequest("t", 0, 0, 100)]
        )
        assert [(m.offset, m.index, m.next_offset, m.payload) for m in good.batch.messages()] == [
            (middle, 0, middle, b"three"),
            (middle, 1, end, b"four"),
        ]
        assert isinstance(bad.error, OffsetOutOfRangeError)
        assert list(empty.batch) == []
        assert await consumer.get_offsets_before("t", 1, EARLIEST, 1) == (0,)
        assert await consumer.get_offsets_before("t", 1, LATEST, 1) == (end,)
        with pytest.raises(WrongPartitionError):
            await consumer.fetch("t", 7, 0, 100)
        await broker.restart()
        assert len(await consumer.fetch("t", 1, 0, 1 << 20)) == 4  # over a new connection


async def test_streams_read_a_jafka_broker(zk: KazooClient, zk_root: str, jafka_broker: JafkaBrokerFactory) -> None:
    broker = await jafka_broker(zk_root, partitions=2)
    payloads = [[b"%d/%d" % (number, index) for index in range(50)] for number in range(2)]
    ends = {}
    for number in range(2):
        await produce(broker.port, "events", number, payloads[number][:20])
        await produce(broker.port, "events", number, payloads[number][20:40], Codec.GZIP)
        ends[TopicPartition("events", 0, number)] = await produce(broker.port, "events", number, payloads[number][40:])
    config = ConsumerConfig(group="g", zookeeper=zk_root, consumer_timeout=120, idle_backoff=0.1, session_timeout=4)
    async with ConsumerConnector(config) as connector:
        (stream,) = await connector.create_message_streams_by_filter(Whitelist("ev.*"))
        got = [await anext(stream) for _ in range(100)]
        stream.ack()
        for number in range(2):
            assert [m.payload for m in got if m.partition == ("events", 0, number)] == payloads[number]
        assert await connector.commit_offsets() == ends == await connector.end_offsets()
        await connector.seek(got[0].partition, EARLIEST)
        assert await anext(stream) == got[0]
    assert sorted(zk.get_children("/consumers/g/owners/events")) == []


async def test_connector_and_jvm_member_share_a_group(
    zk: KazooClient, zk_root: str, jafka_broker: JafkaBrokerFactory, jafka_consumer: JafkaConsumerFactory
) -> None:
    broker = await jafka_broker(zk_root, partitions=2)
    first = [[b"first %d/%d" % (number, index) for index in range(20)] for number in range(2)]
    second = [[b"second %d/%d" % (number, index) for index in range(20)] for number in range(2)]
    for number in range(2):
        await produce(broker.port, "t", number, first[number])
    member = await jafka_consumer(zk_root, "g", {"t": 1}, consumer_id="a")
    await until(lambda: len(member.messages()) == 40)
    config = ConsumerConfig(
        group="g", zookeeper=zk_root, consumer_id="b", consumer_timeout=120, idle_backoff=0.1, session_timeout=4
    )
    async with ConsumerConnector(config) as connector:
        (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
        await until(lambda: connector.assignment() == {TopicPartition("t", 0, 1): 0})
        for number in range(2):
            await produce(broker.port, "t", number, second[number])
        ours: list[bytes] = []
        while sum(payload.startswith(b"second") for payload in ours) < len(second[1]):
            ours.append((await anext(stream)).payload)
        # Jafka commits what it took from its stream, the last message perhaps not: it may come once more.
        assert [payload for payload in ours if payload.startswith(b"second")] == second[1]
        await until(lambda: {m.payload for m in member.messages()} >= set(second[0]))
        await member.leave()
        await until(lambda: set(connector.assignment()) == {TopicPartition("t", 0, 0), TopicPartition("t", 0, 1)})
    assert {m.payload for m in member.messages()} | set(ours) == {p for some in first + second for p in some}

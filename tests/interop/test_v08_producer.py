"""Producing to real brokers of 0.8 and later, and reading back, by ourselves and by another client."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import Any

import pytest

from consumerd.base.budget import ByteBudget
from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v08.brokers import V08Brokers
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.routing import key_partition
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.wire.v07 import EARLIEST
from consumerd.wire.v08.records import RecordCodec
from tests.support.kafka import RELEASES, SHORT_SESSION

pytestmark = pytest.mark.interop
CLOCK = SystemClock()
#: The newest one takes topic ids.
EVERYDAY = ("0.8.2.2", "4.3.1")


class Silent:
    def failed(self, partition: TopicPartition, error: Exception) -> None:
        raise AssertionError(error)

    def reset(self, partition: TopicPartition, old: int, new: int) -> None:
        raise AssertionError((partition, old, new))

    def log_changed(self, *told: object) -> None:
        raise AssertionError(told)

    def skipped(self, *told: object) -> None:
        raise AssertionError(told)

    def parked(self, *told: object) -> None:
        raise AssertionError(told)


async def read_all(client: Any, topic: str, counts: dict[int, int]) -> dict[int, list[Any]]:
    """All records of the partitions of `counts`, which have so many each."""
    pool = FetchPool(V08Brokers(client, FetchSettings(max_wait=0.1), CLOCK, random.Random(2), Silent()))
    running = asyncio.create_task(pool.run())
    await asyncio.sleep(0)
    budget = ByteBudget(64 << 20)

    async def read(partition: int, count: int) -> list[Any]:
        lane = Lane(TopicPartition.numbered(topic, partition), budget, max_bytes=16 << 20)
        pool.add(lane.partition, 0, lane)
        records: list[Any] = []
        while len(records) < count:
            got = await lane.get()
            records += got.messages()
            lane.finished(got)
        return records

    try:
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            tasks = {partition: group.create_task(read(partition, count)) for partition, count in counts.items()}
    finally:
        running.cancel()
        await asyncio.wait([running])
    return {partition: task.result() for partition, task in tasks.items()}


def codecs_of(version: str) -> list[RecordCodec]:
    return [RecordCodec.NONE, RecordCodec.GZIP, RecordCodec.SNAPPY, RecordCodec.LZ4] + [RecordCodec.ZSTD] * (
        RELEASES[version].number >= (2, 1)
    )


@pytest.mark.parametrize(
    "version", [pytest.param(name, marks=[] if name in EVERYDAY else [pytest.mark.long]) for name in RELEASES]
)
async def test_sends_everything_in_order_to_the_partition_of_its_key(
    version: str, kafka: Any, cluster_client: Any
) -> None:
    async with cluster_client(await kafka(version, partitions=3)) as client:
        sent: defaultdict[int, list[bytes]] = defaultdict(list)
        for codec in codecs_of(version):
            settings = V08ProducerSettings(codec=codec, batch_bytes=4096, acks=1 if codec is RecordCodec.GZIP else -1)
            async with V08Producer(client, settings, clock=CLOCK, rng=random.Random(1)) as producer:
                deliveries = []
                for number in range(500):
                    key, value = b"key %d" % (number % 50), b"%s %d" % (codec.name.encode(), number)
                    deliveries.append(await producer.send("events", value, key=key))
                    sent[key_partition(key, 3)].append(value)
                last = await deliveries[-1]
                assert last.offset is not None
                assert last.partition.topic == "events"
        found = await read_all(client, "events", {partition: len(values) for partition, values in sent.items()})
        assert {partition: [record.payload for record in records] for partition, records in found.items()} == sent
        assert all(record.offset == number for records in found.values() for number, record in enumerate(records))


async def test_stores_each_message_once_in_order_while_a_broker_is_down(kafka: Any, cluster_client: Any) -> None:
    broker = await kafka("3.9.1", partitions=2, config=SHORT_SESSION)
    async with cluster_client(broker) as client:
        settings = V08ProducerSettings(batch_bytes=2048, linger=0.002)
        async with V08Producer(client, settings, clock=CLOCK, rng=random.Random(1)) as producer:
            deliveries = [await producer.send("events", b"%d" % n, partition=n % 2) for n in range(1000)]
            await deliveries[-1]
            more = [await producer.send("events", b"%d" % n, partition=n % 2) for n in range(1000, 2000)]
            broker.kill()
            more += [await producer.send("events", b"%d" % n, partition=n % 2) for n in range(2000, 3000)]
            await broker.start()
            offsets = [(await delivery).offset for delivery in deliveries + more]
        found = await read_all(client, "events", {0: 1500, 1: 1500})
        for partition, records in found.items():
            assert [int(record.payload) for record in records] == list(range(partition, 3000, 2))
        # A batch that was there already when it was sent again has no offset to tell, or the one it has.
        assert all(offset in (None, n // 2) for n, offset in enumerate(offsets))


async def test_other_clients_read_keys_headers_timestamps_and_tombstones(kafka: Any, cluster_client: Any) -> None:
    consumer_module = pytest.importorskip("kafka")
    broker = await kafka("3.9.1", partitions=1)
    async with cluster_client(broker) as client:
        async with V08Producer(client, clock=CLOCK, rng=random.Random(1)) as producer:
            await producer.send("events", b"value", key=b"key", timestamp=1234, headers=(("h", b"x"), ("n", None)))
            await producer.send("events", None, key=b"gone")
            await producer.send("events", b"", timestamp=5678)

        def read() -> list[Any]:
            place = consumer_module.TopicPartition("events", 0)
            consumer = consumer_module.KafkaConsumer(bootstrap_servers=broker.address, auto_offset_reset="earliest")
            try:
                consumer.assign([place])
                consumer.seek_to_beginning(place)
                records: list[Any] = []
                for _ in range(50):
                    records += [r for found in consumer.poll(timeout_ms=200).values() for r in found]
                    if len(records) == 3:
                        break
                return records
            finally:
                consumer.close()

        first, second, third = await asyncio.to_thread(read)
        assert (first.key, first.value, first.timestamp) == (b"key", b"value", 1234)
        assert next(iter(first.headers)) == ("h", b"x")
        assert (second.key, second.value) == (b"gone", None)
        assert (third.key, third.value, third.timestamp) == (None, b"", 5678)


async def test_acks_0_reports_no_offsets(kafka: Any, cluster_client: Any) -> None:
    broker = await kafka("0.10.1.1", partitions=1)
    async with cluster_client(broker) as client:
        settings = V08ProducerSettings(acks=0, keyless="round_robin")
        async with V08Producer(client, settings, clock=CLOCK, rng=random.Random(1)) as producer:
            delivery = await producer.send("events", b"x")
            assert (await delivery).offset is None
        assert [record.payload for record in (await read_all(client, "events", {0: 1}))[0]] == [b"x"]


@pytest.mark.long
@pytest.mark.parametrize("version", ["0.11.0.3", "1.1.1"])
async def test_sends_to_a_partition_idle_beyond_its_retention(version: str, kafka: Any, cluster_client: Any) -> None:
    quickly = {"log.retention.ms": 1000, "log.retention.check.interval.ms": 200, "log.segment.delete.delay.ms": 100}
    broker = await kafka(version, partitions=1, config=quickly)
    place = TopicPartition.numbered("events", 0)
    async with cluster_client(broker) as client:
        pool = FetchPool(V08Brokers(client, FetchSettings(), CLOCK, random.Random(2), Silent()))
        async with V08Producer(client, clock=CLOCK, rng=random.Random(1)) as producer:
            for number in range(3):  # with its last message the broker forgets the producer
                delivered = await (await producer.send("events", b"%d" % number))
                assert delivered.offset == number
                async with asyncio.timeout(60):
                    while await pool.list_offsets(place, EARLIEST) != (number + 1,):
                        await asyncio.sleep(0.1)

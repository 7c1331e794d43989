"""Many messages in one call of the 0.8+ producer: the same as one call for each, also where there is no room."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from consumerd.base.errors import BrokerError
from consumerd.producer.errors import MessageSizeTooLargeError, ProducerClosedError
from consumerd.producer.v08.batches import OVERHEAD, BatchRange, Deliveries
from consumerd.producer.v08.routing import key_partition
from tests.unit.producer.v08.test_producer import PARTITIONS, MemoryCluster, producer

pytestmark = [pytest.mark.usefixtures("either_codec")]


@pytest.mark.parametrize("keyless", ["sticky", "round_robin"])
async def test_takes_messages_in_order_between_single_ones(keyless: str) -> None:
    cluster, rng = MemoryCluster(), random.Random(11)
    sent: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)
    found = []
    async with producer(cluster, batch_bytes=500, buffer_bytes=2000, linger=0.001, keyless=keyless) as ours:
        for number in range(150):
            key = rng.choice([None, None, b"k%d" % rng.randrange(20)])
            partition = rng.choice([None, None, rng.randrange(PARTITIONS)])
            values = [rng.choice([None, b"%d" % each, b"x" * rng.randrange(300)]) for each in range(rng.randrange(30))]
            headers = rng.choice([(), (("h", b"%d" % number),)])
            named: dict[str, Any] = {"key": key, "partition": partition, "timestamp": number, "headers": headers}
            if not number % 10:
                cluster.learn()
            deliveries = await ours.send_many("t", values, **named)
            single = await ours.send("t", b"one", **named)
            assert len(deliveries) == len(values)
            for delivery, value in zip([*deliveries, single], [*values, b"one"], strict=True):
                place = delivery.batch.partition.partition
                assert partition in (None, place)
                assert key is None or partition is not None or place == key_partition(key, PARTITIONS)
                message = value, key, number, headers
                sent[place].append(message)
                found.append((delivery, message))
    for delivery, message in found:
        where, offset, _ = await delivery
        record = cluster.log[where.partition][offset or 0]
        assert (record.payload, record.key, record.timestamp, record.headers) == message
    for number, log in cluster.log.items():
        assert [(each.payload, each.key, each.timestamp, each.headers) for each in log] == sent[number]
    assert max(size for request in cluster.requests for size in request.values()) <= 500
    assert ours.buffered_bytes == 0


async def test_fills_batches_as_far_as_single_messages_do() -> None:
    sizes = []
    for together in (True, False):
        cluster, rng = MemoryCluster(), random.Random(3)
        values = [b"x" * rng.randrange(200) for _ in range(500)]
        async with producer(cluster, batch_bytes=2000, linger=3600) as ours:
            if together:
                await ours.send_many("t", values, partition=1)
            else:
                for value in values:
                    await ours.send("t", value, partition=1)
        sizes.append([size for request in cluster.requests for size in request.values()])
    assert sizes[0] == sizes[1]
    assert len(sizes[0]) > 10


async def test_takes_more_than_the_buffer_as_room_becomes_free() -> None:
    cluster = MemoryCluster()
    cluster.taking.clear()
    most = 0
    values = [b"%60d" % number for number in range(3000)]

    def taken(_part: BatchRange) -> None:
        nonlocal most
        most = max(most, ours.buffered_bytes)
        if most > 4000:
            cluster.taking.set()

    async with producer(cluster, batch_bytes=1000, buffer_bytes=5000, linger=3600) as ours, asyncio.timeout(60):
        deliveries = await ours.send_many("t", values, partition=0, taken=taken)
        await ours.flush()
        assert deliveries.done
        await deliveries.confirm()
        assert ours.buffered_bytes == 0
    assert 4000 < most <= 5000
    assert [record.payload for record in cluster.log[0]] == values
    assert [delivered.offset for delivered in await deliveries] == list(range(3000))


async def test_cancelled_call_has_sent_what_it_reported_and_nothing_else() -> None:
    cluster = MemoryCluster()
    cluster.taking.clear()
    values = [b"%60d" % number for number in range(300)]
    parts: list[BatchRange] = []
    async with producer(cluster, batch_bytes=500, buffer_bytes=2000, linger=0) as ours:
        waiting = asyncio.create_task(ours.send_many("t", values, partition=0, taken=parts.append))
        for _ in range(100):  # turns of the loop, in which nothing else has to happen
            await asyncio.sleep(0)
        assert not waiting.done()
        assert ours._budget.used == ours.buffered_bytes == 2000 // (OVERHEAD + 60) * (OVERHEAD + 60)
        waiting.cancel()
        await asyncio.wait([waiting])
        cluster.taking.set()
        await ours.send("t", b"next", partition=0)
    count = len(Deliveries(parts))
    assert 0 < count < len(values)
    assert [record.payload for record in cluster.log[0]] == [*values[:count], b"next"]
    assert ours.buffered_bytes == 0


async def test_later_changes_of_the_list_have_no_effect() -> None:
    cluster = MemoryCluster()
    cluster.taking.clear()
    values = [b"%60d" % number for number in range(100)]
    expected = list(values)
    async with producer(cluster, batch_bytes=500, buffer_bytes=1000, linger=0) as ours:
        waiting = asyncio.create_task(ours.send_many("t", values, partition=0))
        await asyncio.sleep(0)
        values.clear()
        cluster.taking.set()
        await waiting
    assert [record.payload for record in cluster.log[0]] == expected


async def test_sticky_messages_fill_a_batch_before_they_change_partition() -> None:
    cluster = MemoryCluster()
    async with producer(cluster, batch_bytes=10 * (OVERHEAD + 4), linger=3600) as ours:
        places = [each.batch.partition.partition for each in await ours.send_many("t", [b"1234"] * 600)]
    runs = places[::10]
    assert all(places[number] == runs[number // 10] for number in range(600))
    assert set(runs) == set(range(PARTITIONS))


async def test_round_robin_takes_turns_within_a_call() -> None:
    cluster = MemoryCluster()
    async with producer(cluster, keyless="round_robin") as ours:
        await ours.send_many("t", [b"x"] * 90)
    assert Counter({number: len(log) for number, log in cluster.log.items()}) == {0: 30, 1: 30, 2: 30}


async def test_rejects_a_message_that_is_too_large_before_it_takes_any() -> None:
    cluster = MemoryCluster()
    async with producer(cluster, buffer_bytes=1 << 20) as ours:
        with pytest.raises(MessageSizeTooLargeError):
            await ours.send_many("t", [b"x", None, bytes(1 << 20)])
        assert ours.buffered_bytes == 0
        with pytest.raises(BrokerError, match="3 partitions"):
            await ours.send_many("t", [b"x"], partition=PARTITIONS)
        for single in (b"bytes", "text"):
            with pytest.raises(TypeError, match="list of messages"):
                await ours.send_many("t", single)  # type: ignore[arg-type]
        assert list(await ours.send_many("t", [])) == []
    with pytest.raises(ProducerClosedError):
        await ours.send_many("t", [b"x"])
    assert not cluster.log


async def test_reports_the_error_of_the_first_message_that_failed() -> None:
    cluster = MemoryCluster()
    cluster.taking.clear()
    ours = producer(cluster, batch_bytes=200, linger=0)
    await ours.start()
    deliveries = await ours.send_many("t", [b"x" * 60] * 10, partition=0)
    assert not deliveries.done
    await ours.abort()
    assert all(each.done for each in deliveries)
    with pytest.raises(ProducerClosedError):
        await deliveries.confirm()
    with pytest.raises(ProducerClosedError):
        await deliveries


async def test_deliveries_are_a_sequence() -> None:
    cluster = MemoryCluster()
    async with producer(cluster, batch_bytes=200, linger=0) as ours:
        deliveries = await ours.send_many("t", [b"%60d" % number for number in range(9)], partition=2)
        assert len(deliveries.ranges) == 5
        listed = list(deliveries)
        assert [deliveries[number] for number in range(9)] == listed
        assert deliveries[-1] == listed[-1]
        assert deliveries[2:5] == listed[2:5]
        for place in (9, -10):
            with pytest.raises(IndexError, match=f"delivery {place} of 9"):
                deliveries[place]
        assert (await deliveries[7]).offset == 7


async def test_takes_exactly_the_memory_that_a_list_needs() -> None:
    """In one step, also where that is more than is taken in advance for single messages."""
    for count, value, beside in ((300, bytes(1000), b"x"), (1, bytes((64 << 10) + 1 - OVERHEAD), b"x")):
        async with producer(MemoryCluster(), batch_bytes=1 << 20, linger=3600) as ours:
            deliveries = await ours.send_many("t", [beside, *[value] * count], partition=0)
            assert [each.messages for each in deliveries.ranges] == [1 + count]
            assert ours._budget.used == ours.buffered_bytes


async def test_takes_little_memory_in_advance_for_the_last_messages_of_a_list() -> None:
    async with producer(MemoryCluster(), batch_bytes=1 << 20, linger=3600) as ours:
        deliveries = await ours.send_many("t", [bytes(1000)] * 1050, partition=0)
        assert [each.messages for each in deliveries.ranges] == [1012, 38]
        assert ours._budget.used - ours.buffered_bytes <= 64 << 10

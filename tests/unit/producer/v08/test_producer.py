"""The producer for 0.8 and later on brokers in memory: batches, their order, their memory, and where messages go."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from itertools import chain, zip_longest
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from consumerd.producer.cluster import ClusterProducer
from consumerd.producer.errors import MessageSizeTooLargeError, NotSentError, ProducerClosedError
from consumerd.producer.v08.batches import OVERHEAD, Delivery, message_size
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.routing import key_partition
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.records import Record, decode_records
from tests.support.prepared_requests import OneBroker, one_broker, request_body

pytestmark = [pytest.mark.usefixtures("either_codec")]
PARTITIONS = 3


class MemoryCluster(OneBroker):
    """A client of one broker, which takes batches while `taking` is set."""

    def __init__(self) -> None:
        super().__init__(PARTITIONS)
        self.taking = asyncio.Event()
        self.taking.set()
        #: A request is here.
        self.asked = asyncio.Event()
        self.log: defaultdict[int, list[Record]] = defaultdict(list)
        self.requests: list[dict[int, int]] = []
        self.learn()

    def learn(self) -> None:
        """Read the metadata of the cluster again."""
        self.metadata = one_broker(PARTITIONS)

    def add_topics(self, *names: str) -> None:
        """Have more topics, with the same partitions. Messages to them cannot be sent."""
        parts = self.metadata.topics["t"].partitions
        topics = {name: TopicMetadata(0, parts) for name in ("t", *names)}
        self.metadata = ClusterMetadata(self.metadata.nodes, topics)

    async def call(self, api: Any, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        body = request_body(api, body)
        self.asked.set()
        await self.taking.wait()
        answers, sizes = [], {}
        for part in body["topic_data"][0]["partition_data"]:
            log = self.log[part["index"]]
            answers.append({"index": part["index"], "error_code": 0, "base_offset": len(log)})
            records = decode_records(part["records"], 0)
            assert records.problem is None
            log += records.messages()
            sizes[part["index"]] = sum(OVERHEAD + len(payload or b"") for payload in records.payloads)
        self.requests.append(sizes)
        return {"responses": [{"name": "t", "partition_responses": answers}]}


class StandingClock(SystemClock):
    """A clock whose time of day does not change."""

    wall = staticmethod(lambda: 1234.5678)


def producer(cluster: Any, **settings: Any) -> V08Producer:
    return V08Producer(cluster, V08ProducerSettings(**settings), clock=SystemClock(), rng=random.Random(1))


@pytest.mark.parametrize("keyless", ["sticky", "round_robin"])
async def test_sends_batches_of_the_configured_size_in_order(keyless: str) -> None:
    cluster, rng = MemoryCluster(), random.Random(7)
    sent: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)
    async with producer(cluster, batch_bytes=500, buffer_bytes=2000, linger=0.001, keyless=keyless) as ours:
        deliveries = []
        for number in range(1500):
            key = rng.choice([None, None, b"k%d" % rng.randrange(20)])
            partition = rng.choice([None, rng.randrange(PARTITIONS)])
            value = rng.choice([None, b"%d" % number, b"x" * rng.randrange(300)])
            headers = rng.choice([(), (("h", b"%d" % number),)])
            if not number % 100:
                cluster.learn()
            delivery = await ours.send("t", value, key=key, partition=partition, timestamp=number, headers=headers)
            deliveries.append((delivery, (value, key, number, headers)))
            place = delivery.batch.partition.partition
            assert partition in (None, place)
            assert key is None or partition is not None or place == key_partition(key, PARTITIONS)
            sent[place].append((value, key, number, headers))
    for delivery, message in deliveries:
        where, offset, _ = await delivery
        record = cluster.log[where.partition][offset or 0]
        assert (record.payload, record.key, record.timestamp, record.headers) == message
    for number, log in cluster.log.items():
        assert [(each.payload, each.key, each.timestamp, each.headers) for each in log] == sent[number]
    assert max(size for request in cluster.requests for size in request.values()) <= 500


async def test_sticky_partitioning_fills_a_batch_before_it_changes_partition() -> None:
    cluster = MemoryCluster()
    async with producer(cluster, batch_bytes=10 * (OVERHEAD + 4), linger=60) as ours:
        places = [(await ours.send("t", b"1234")).batch.partition.partition for _ in range(600)]
    runs = [place for number, place in enumerate(places) if not number % 10]
    assert all(places[number] == runs[number // 10] for number in range(600))
    assert set(runs) == set(range(PARTITIONS))


async def test_round_robin_is_even_when_every_message_is_a_batch() -> None:
    cluster = MemoryCluster()
    async with producer(cluster, batch_bytes=1, keyless="round_robin") as ours:
        for _ in range(90):
            await ours.send("t", b"x")
    assert Counter({number: len(log) for number, log in cluster.log.items()}) == {0: 30, 1: 30, 2: 30}


async def test_sends_batches_while_a_caller_sends_without_pause() -> None:
    cluster = MemoryCluster()
    async with producer(cluster, batch_bytes=1000, linger=60) as ours:
        most = 0
        for _ in range(3000):
            await ours.send("t", b"x" * 60)
            most = max(most, ours.buffered_bytes)
        assert most < 20_000  # of 288 000


async def test_send_waits_for_room_in_the_buffer() -> None:
    cluster = MemoryCluster()
    cluster.taking.clear()
    ours = producer(cluster, batch_bytes=100, buffer_bytes=1000, linger=0)
    await ours.start()
    size = OVERHEAD + 14
    tasks = [asyncio.create_task(ours.send("t", b"%14d" % number, partition=0)) for number in range(30)]
    for _ in range(100):  # turns of the loop, in which nothing else has to happen
        await asyncio.sleep(0)
    waiting = [task for task in tasks if not task.done()]
    assert len(waiting) == 30 - 1000 // size
    assert ours.buffered_bytes == 1000 // size * size
    for task in waiting[:5]:
        task.cancel()
    await asyncio.wait(waiting[:5])
    cluster.taking.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    await ours.flush()
    assert sum(isinstance(each, asyncio.CancelledError) for each in done) == 5
    assert len(cluster.log[0]) == 25
    assert ours.buffered_bytes == 0
    await ours.close()


async def test_memory_taken_in_advance_is_there_for_a_caller_that_needs_it() -> None:
    cluster = MemoryCluster()
    async with producer(cluster, batch_bytes=20_000, buffer_bytes=20_000, linger=3600) as ours:
        await ours.send("t", b"x" * 64, partition=0)
        assert ours.buffered_bytes == OVERHEAD + 64
        async with asyncio.timeout(60):  # only a flush would settle the first message
            await ours.send("t", b"x" * 19_000, partition=1)
        assert ours.buffered_bytes == 2 * OVERHEAD + 19_064
    assert ours.buffered_bytes == 0


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topic of each message for which a batch was looked for."""
    topics: list[str] = []
    search = V08Producer._batch

    async def noted(self: V08Producer, topic: str, *arguments: Any) -> Any:
        topics.append(topic)
        return await search(self, topic, *arguments)

    monkeypatch.setattr(V08Producer, "_batch", noted)
    return topics


async def test_memory_for_a_whole_batch_is_taken_at_once(searched: list[str]) -> None:
    """Of all messages of a batch, the first alone has to look for it."""
    cluster = MemoryCluster()
    async with producer(cluster, batch_bytes=64 << 10, linger=60) as ours:
        deliveries = [await ours.send("t", bytes(100)) for _ in range(5000)]
    await deliveries[-1]
    assert sum(map(len, cluster.log.values())) == 5000
    assert len(searched) == sum(map(len, cluster.requests))


@pytest.mark.parametrize(("buffer_bytes", "advance"), [(32 << 20, 64 << 10), (64 << 20, 64 << 10), (320_000, 10_000)])
async def test_memory_that_is_taken_in_advance_is_limited(buffer_bytes: int, advance: int) -> None:
    """For all topics together: each time to 64 KiB, or a 32nd of the buffer, divided by the topics that are filled."""
    cluster = MemoryCluster()
    cluster.add_topics("u")
    async with producer(cluster, batch_bytes=200_000, buffer_bytes=buffer_bytes, linger=3600) as ours:
        await ours.send("t", b"x")
        taken = 2 * advance  # for the message, and for its batch
        assert ours._budget.used - ours.buffered_bytes == taken
        await ours.send("u", b"x")
        taken += 2 * min(advance, buffer_bytes // 32 // 2)
        assert ours._budget.used - ours.buffered_bytes == taken
        await ours.abort()


async def test_single_messages_join_the_batch_of_a_list_without_a_search(searched: list[str]) -> None:
    async with producer(MemoryCluster(), batch_bytes=64 << 10, linger=3600) as ours:
        await ours.send_many("t", [b"x"] * 3)
        await ours.send("t", b"x")
        assert searched == ["t"]


async def test_no_memory_is_taken_in_advance_while_a_caller_waits_for_some() -> None:
    cluster = MemoryCluster()
    cluster.taking.clear()
    async with producer(cluster, batch_bytes=40_000, buffer_bytes=400_000, linger=3600) as ours:
        await ours.send("t", b"x" * 380_000, partition=0)  # of its own, so it is sent at once, and not taken
        await ours.send("t", b"x" * 64, partition=1)
        assert ours._budget.used > ours.buffered_bytes
        waiting = asyncio.create_task(ours.send("t", b"x" * 20_000, partition=2))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert ours._budget.used == ours.buffered_bytes
        cluster.taking.set()
        async with asyncio.timeout(60):
            await waiting


async def test_memory_leased_to_many_topics_is_there_for_a_message_that_needs_it() -> None:
    cluster = MemoryCluster()
    cluster.taking.clear()
    topics = [f"t{number}" for number in range(40)]
    cluster.add_topics(*topics)
    async with producer(cluster, batch_bytes=40_000, buffer_bytes=100_000, linger=3600) as ours:
        for topic in topics:
            await ours.send(topic, b"x" * 64)
        size = len(topics) * (OVERHEAD + 64)
        assert ours.buffered_bytes == size
        leased = ours._budget.used - size
        large = b"y" * (100_000 - size - OVERHEAD)
        assert leased > 1000
        async with asyncio.timeout(60):  # only a flush would settle the first messages
            await ours.send("t", large)
        assert ours._budget.used == ours.buffered_bytes == 100_000
        await ours.abort()
    assert ours.buffered_bytes == ours._budget.used == 0


async def test_gives_back_all_memory_after_messages_of_all_kinds() -> None:
    cluster, rng = MemoryCluster(), random.Random(5)
    async with producer(cluster, batch_bytes=3000, buffer_bytes=30_000, linger=0.001) as ours:
        for number in range(600):
            await ours.send(
                "t",
                rng.choice([None, b"", b"x" * rng.randrange(400)]),
                key=rng.choice([None, None, None, b"k"]),
                timestamp=rng.choice([None, number]),
            )
            assert ours.buffered_bytes == sum(
                message_size(key, value, ())
                for queue in ours._sender._queues.values()
                for batch in (*queue.sealed, queue.open)
                if batch is not None
                for key, value in zip_longest(batch.keys or (), batch.values)
            )
    assert ours.buffered_bytes == 0


async def test_stamps_messages_with_the_time_of_the_call() -> None:
    cluster = MemoryCluster()
    client: Any = cluster
    settings = V08ProducerSettings(linger=3600)
    async with V08Producer(client, settings, clock=StandingClock(), rng=random.Random(1)) as ours:
        for timestamp in (None, None, 77, None):
            await ours.send("t", b"x", timestamp=timestamp)
        await ours.send_many("t", [b"x"])
        await ours.send("t", b"x", headers=(("h", b"v"),))
    before = SystemClock().wall() * 1000
    async with producer(cluster, linger=3600) as ours:
        for _ in range(3):
            await ours.send("t", b"y")
    times: dict[bytes | None, list[int]] = {b"x": [], b"y": []}
    for record in chain(*cluster.log.values()):
        times[record.payload].append(record.timestamp)
    assert times[b"x"] == [1_234_567, 1_234_567, 77, 1_234_567, 1_234_567, 1_234_567]
    assert all(before - 1 <= time <= SystemClock().wall() * 1000 + 1 for time in times[b"y"])


async def test_closed_producer_takes_no_message_into_an_open_batch() -> None:
    cluster = MemoryCluster()
    cluster.taking.clear()
    ours = producer(cluster, linger=3600)
    await ours.start()
    await ours.send("t", b"x")
    await ours.send("t", b"y")
    closing = asyncio.create_task(ours.close())
    await asyncio.sleep(0)
    with pytest.raises(ProducerClosedError):
        await ours.send("t", b"z")
    cluster.taking.set()
    await closing
    assert sorted(record.payload or b"" for log in cluster.log.values() for record in log) == [b"x", b"y"]


async def test_a_keyed_message_keeps_its_key_between_messages_without_one() -> None:
    cluster = MemoryCluster()
    async with producer(cluster, linger=3600) as ours:
        place = (await ours.send("t", b"0")).batch.partition.partition
        for number in range(1, 6):
            await ours.send(
                "t", b"%d" % number, key=b"k" if number == 3 else None, partition=place if number == 3 else None
            )
    keys = [record.key for record in cluster.log[place]]
    assert keys == [None, None, None, b"k", None, None]


async def test_flush_waits_only_for_earlier_messages() -> None:
    cluster = MemoryCluster()
    ended = False

    async def go_on(ours: V08Producer) -> None:
        while not ended:
            await ours.send("t", b"x" * 60)

    async with producer(cluster, batch_bytes=1000, linger=60) as ours, asyncio.TaskGroup() as tasks:
        tasks.create_task(go_on(ours))
        for _ in range(5):
            before = [await ours.send("t", b"y", partition=number) for number in range(PARTITIONS)]
            async with asyncio.timeout(60):
                await ours.flush()
            assert all(delivery.done for delivery in before)
        ended = True


async def test_cancelled_close_fails_all_deliveries() -> None:
    cluster = MemoryCluster()
    cluster.taking.clear()
    ours = producer(cluster, linger=0)
    await ours.start()
    delivery = await ours.send("t", b"x")
    ending = asyncio.create_task(ours.abort())
    asyncio.get_running_loop().call_soon(ending.cancel)
    await asyncio.wait([ending])
    async with asyncio.timeout(60):
        with pytest.raises(ProducerClosedError):
            await delivery


async def test_defect_fails_all_deliveries() -> None:
    ours = producer(MemoryCluster(), linger=0)
    await ours.start()
    async with asyncio.timeout(60):
        with pytest.raises(ProducerClosedError, match="TypeError"):
            await (await ours.send("t", "text"))  # type: ignore[arg-type]  # which is the defect
        with pytest.raises(ProducerClosedError):
            await ours.send("t", b"x")
        assert ours.buffered_bytes == 0
        with pytest.raises(ExceptionGroup):
            await ours.close()


@pytest.mark.parametrize(("given", "configured"), [(0.01, 120.0), (None, 0.01)])
async def test_close_fails_what_is_not_confirmed_in_time(given: float | None, configured: float) -> None:
    cluster = MemoryCluster()
    cluster.taking.clear()
    ours = producer(cluster, delivery_timeout=configured)
    await ours.start()
    delivery = await ours.send("t", b"x")
    with capture_logs() as logs:
        async with asyncio.timeout(60):
            await ours.close(given)
    assert [(each["event"], each["batches"]) for each in logs] == [("producer_close_timed_out", 1)]
    with pytest.raises(ProducerClosedError):
        await delivery


async def test_error_in_the_block_ends_the_producer_at_once() -> None:
    cluster = MemoryCluster()
    cluster.taking.clear()
    ours = producer(cluster)
    deliveries: list[Delivery] = []

    async def fail() -> None:
        async with ours:
            deliveries.append(await ours.send("t", b"x"))
            raise ZeroDivisionError

    async with asyncio.timeout(60):
        with pytest.raises(ZeroDivisionError):
            await fail()
    with pytest.raises(ProducerClosedError):
        await deliveries[0]
    with pytest.raises(ProducerClosedError):
        await ours.send("t", b"x")


async def test_producer_that_was_never_started_can_be_closed() -> None:
    for ours in (producer(MemoryCluster()), producer(MemoryCluster())):
        await ours.abort()
        await ours.close()


async def test_flush_of_nothing_returns_at_once() -> None:
    async with producer(MemoryCluster()) as ours:
        with pytest.raises(StopIteration):
            ours.flush().send(None)


@pytest.mark.parametrize("together", [True, False])
async def test_batch_that_is_exactly_full_is_sent_and_has_room_for_no_more(together: bool) -> None:
    cluster = MemoryCluster()
    size = OVERHEAD + 10
    async with producer(cluster, batch_bytes=2 * size, buffer_bytes=8 * size, linger=3600) as ours:
        async with asyncio.timeout(60):
            if together:
                await (await ours.send_many("t", [bytes(10)] * 2, partition=0)).confirm()
            else:
                deliveries = [await ours.send("t", bytes(10), partition=0) for _ in range(2)]
                await asyncio.gather(*deliveries)
        assert cluster.requests == [{0: 2 * size}]
        await ours.send("t", bytes(10), partition=0)
        await ours.send("t", bytes(11), partition=0)
    assert cluster.requests[1:] == [{0: size}, {0: size + 1}]


async def test_takes_a_message_of_the_largest_size() -> None:
    cluster = MemoryCluster()
    most = OVERHEAD + 1000
    async with producer(cluster, batch_bytes=most, buffer_bytes=most) as ours, asyncio.timeout(60):
        await (await ours.send("t", bytes(1000)))
        await (await ours.send_many("t", [bytes(1000), b"", bytes(1000)])).confirm()
        for size in (1001, 1 << 20):
            with pytest.raises(MessageSizeTooLargeError):
                await ours.send("t", bytes(size))
            with pytest.raises(MessageSizeTooLargeError):
                await ours.send_many("t", [b"", bytes(size)])
    assert sum(map(len, cluster.log.values())) == 4


@pytest.mark.parametrize("named", [{"key": b"k"}, {"partition": key_partition(b"k", PARTITIONS)}])
@pytest.mark.parametrize("together", [True, False])
async def test_message_with_a_place_does_not_attract_those_without(named: dict[str, Any], together: bool) -> None:
    cluster = MemoryCluster()
    for seed in range(10):
        settings = V08ProducerSettings(linger=3600)
        client: Any = cluster
        async with V08Producer(client, settings, clock=SystemClock(), rng=random.Random(seed)) as ours:
            first = await ours.send("t", b"1")
            if together:
                placed = (await ours.send_many("t", [b"2", None], **named))[0]
            else:
                placed = await ours.send("t", b"2", **named)
            assert placed.batch.partition.partition == key_partition(b"k", PARTITIONS)
            later = [await ours.send("t", b"3"), (await ours.send_many("t", [b"4"]))[0]]
            later.append(await ours.send("t", b"5", headers=(("h", b"v"),)))
            assert {each.batch for each in later} == {first.batch}


async def test_many_messages_without_a_key_are_added_to_a_batch_in_one_step() -> None:
    async with producer(MemoryCluster()) as ours:
        deliveries = await ours.send_many("t", [None, b"x"] * 100)
        assert [each.messages for each in deliveries.ranges] == [200]
        assert ours.buffered_bytes == 200 * OVERHEAD + 100


async def test_messages_follow_new_metadata_of_their_topic() -> None:
    cluster = MemoryCluster()
    async with producer(cluster) as ours:
        with pytest.raises(BrokerError, match="3 partitions"):
            await ours.send("t", b"x", partition=3)
        cluster.metadata = one_broker(4)
        await (await ours.send("t", b"x", partition=3))
    assert [record.payload for record in cluster.log[3]] == [b"x"]


async def test_sends_messages_without_a_key_to_partitions_with_a_leader() -> None:
    cluster = MemoryCluster()
    parts = {n: PartitionMetadata(None if n == 1 else 0, 0, (0,), (0,), 5 * (n == 1)) for n in range(PARTITIONS)}
    for keyless in ("sticky", "round_robin"):
        cluster.metadata = ClusterMetadata(cluster.metadata.nodes, {"t": TopicMetadata(0, parts)})
        async with producer(cluster, batch_bytes=1, linger=0, keyless=keyless) as ours:
            places = {(await ours.send("t", b"x")).batch.partition.partition for _ in range(100)}
        assert places == {0, 2}
        cluster.learn()
    async with producer(cluster, batch_bytes=1, linger=0) as ours:
        assert {(await ours.send("t", b"x")).batch.partition.partition for _ in range(100)} == {0, 1, 2}


async def test_close_fails_senders_that_wait_for_room() -> None:
    cluster = MemoryCluster()
    cluster.taking.clear()
    ours = producer(cluster, batch_bytes=100, buffer_bytes=1600)
    await ours.start()
    first = [await ours.send("t", b"x" * 60) for _ in range(16)]
    waiting = asyncio.create_task(ours.send("t", b"x" * 60))
    await asyncio.wait([waiting], timeout=0.02)
    await ours.abort()
    with pytest.raises(ProducerClosedError):
        await waiting
    with pytest.raises(ProducerClosedError):
        await first[-1]
    assert ours.buffered_bytes == 0


async def test_rejects_messages_that_cannot_be_sent() -> None:
    cluster = MemoryCluster()
    ours = producer(cluster, buffer_bytes=1 << 20)
    with pytest.raises(ProducerClosedError):
        await ours.send("t", b"x")
    async with ours:
        with pytest.raises(MessageSizeTooLargeError):
            await ours.send("t", bytes(1 << 20))
        for number in (-1, PARTITIONS):
            with pytest.raises(BrokerError, match="3 partitions"):
                await ours.send("t", b"x", partition=number)
    assert not cluster.log


class Learning(MemoryCluster):
    """A cluster whose topics are not known before they are asked for."""

    def __init__(self, found: TopicMetadata | None) -> None:
        super().__init__()
        self.metadata = ClusterMetadata(self.metadata.nodes)
        self.found = found
        self.lookups: list[tuple[list[str], bool]] = []
        self.retried: list[tuple[str, float | None]] = []

    async def topics(self, names: list[str], *, create: bool) -> ClusterMetadata:
        self.lookups.append((names, create))
        self.metadata = ClusterMetadata(self.metadata.nodes, {} if self.found is None else {"t": self.found})
        return self.metadata

    leaderless = ClusterClient.leaderless

    def stale(self, topics: Any = ()) -> None:
        return

    async def retrying(self, what: str, attempt: Any, *, timeout: float | None = None) -> Any:
        self.retried.append((what, timeout))
        return await attempt()


@pytest.mark.parametrize("create", [True, False])
async def test_asks_for_a_topic_that_is_not_known_and_has_it_created_if_configured(create: bool) -> None:
    cluster = Learning(MemoryCluster().metadata.topics["t"])
    async with producer(cluster, create_topics=create) as ours:
        await (await ours.send("t", b"x", partition=PARTITIONS - 1))
        assert await ours.partition_count("t", timeout=7.0) == PARTITIONS  # known
        cluster.metadata = ClusterMetadata(cluster.metadata.nodes)
        assert await ours.partition_count("t", timeout=7.0) == PARTITIONS
    assert cluster.lookups == [(["t"], create)] * 2
    assert cluster.retried == [("partitions of t", None), ("partitions of t", 7.0)]


@pytest.mark.parametrize(
    ("found", "message"), [(None, "returned no metadata"), (TopicMetadata(3, {}), "UNKNOWN_TOPIC_OR_PARTITION")]
)
async def test_topic_that_does_not_exist_is_an_error(found: TopicMetadata | None, message: str) -> None:
    async with producer(Learning(found)) as ours:
        with pytest.raises(BrokerError, match=f"^t/0 has no leader: .*{message}"):
            await ours.send("t", b"x")


class Link(SimpleNamespace):
    """A channel to one of several brokers; one that does not lead `t` closes it on a request without an answer."""

    async def send(self, api: Any, body: dict[str, Any], **_: Any) -> None:
        if self.node != self.cluster.leading:
            self.closed = True
            return
        for part in request_body(api, body)["topic_data"][0]["partition_data"]:
            self.cluster.log[part["index"]] += decode_records(part["records"], 0).messages()


class MovingCluster(MemoryCluster):
    """Two brokers, of which the one that leads changes; metadata tell so when they count as old."""

    def __init__(self) -> None:
        self.leading = 0
        super().__init__()
        self.links: dict[int, Link] = {}

    def learn(self) -> None:
        parts = {n: PartitionMetadata(self.leading, 0, (0, 1), (0, 1), 0) for n in range(PARTITIONS)}
        self.metadata = ClusterMetadata({n: Node(n, "memory", n) for n in (0, 1)}, {"t": TopicMetadata(0, parts)})

    def stale(self, topics: Any = ()) -> None:
        self.learn()

    async def node_channel(self, node_id: int) -> Any:
        link = self.links.get(node_id)
        if link is None or link.closed:
            link = Link(node=node_id, cluster=self, closed=False, address=f"memory:{node_id}", versions=self.versions)
            self.links[node_id] = link
        return link


async def test_acks_0_follows_a_new_leader_after_a_closed_connection() -> None:
    cluster = MovingCluster()
    async with producer(cluster, batch_bytes=1, linger=0, acks=0) as ours:
        for number in range(40):
            if number == 20:
                cluster.leading = 1
            await (await ours.send("t", b"%d" % number, partition=0))
    # Only the message for which the old leader closed the connection is lost.
    assert [record.payload for record in cluster.log[0]] == [b"%d" % number for number in range(40) if number != 20]


def of_size(size: int) -> bytes:
    """A value whose message has `size` bytes."""
    return bytes(size - OVERHEAD)


async def test_memory_taken_in_advance_is_used_up_before_more_is_taken() -> None:
    used = 0
    async with producer(MemoryCluster(), batch_bytes=20_000, buffer_bytes=20_000, linger=3600) as ours:
        for size, taken in ((100, 100 + 625), (625, 0), (1000, 1000 + 625), (1000, 375 + 625)):
            await ours.send("t", of_size(size), partition=0)
            used += taken
            assert ours._budget.used == used
        assert ours.buffered_bytes == 2725


@pytest.mark.parametrize("free", [0, 1])
async def test_leased_memory_is_taken_without_a_turn_of_the_loop(free: int) -> None:
    cluster = MemoryCluster()
    cluster.add_topics("u")
    async with producer(cluster, batch_bytes=20_000, buffer_bytes=20_000, linger=3600) as ours:
        await ours.send("t", of_size(100), partition=1)
        await ours.send("u", of_size(100))
        leased = ours._budget.used - 200
        ahead = 20_000 // 32 // 2  # what is taken in advance is used up, too
        for size in (20_000 - 200 - leased - ahead - free, ahead):
            await ours.send("t", of_size(size), partition=0)
        assert ours._budget.used == ours.buffered_bytes + leased == 20_000 - free
        with pytest.raises(StopIteration):
            ours.send("t", of_size(leased + free), partition=1).send(None)
        assert ours._budget.used == ours.buffered_bytes == 20_000
        await ours.abort()


async def test_no_more_memory_is_leased_than_a_batch_may_use() -> None:
    async with producer(MemoryCluster(), batch_bytes=100_000, linger=3600) as ours:
        await ours.send("t", b"x")
        assert ours._budget.used == 99_999


@pytest.mark.parametrize(("room", "searches", "batches"), [(199, 2, [100, 100]), (200, 2, [200]), (201, 1, [200])])
async def test_batch_is_filled_up_to_its_limit(
    room: int, searches: int, batches: list[int], searched: list[str]
) -> None:
    cluster = MemoryCluster()
    async with producer(cluster, batch_bytes=room, linger=3600) as ours:
        for _ in range(2):
            await ours.send("t", of_size(100))
    assert sorted(size for request in cluster.requests for size in request.values()) == batches
    assert len(searched) == searches


async def test_leased_memory_comes_back_when_new_metadata_lead_messages_elsewhere() -> None:
    cluster, headers = MemoryCluster(), (("h", b"v"),)
    async with producer(cluster, batch_bytes=64 << 10, linger=3600) as ours:
        for number in range(1, 20):
            cluster.learn()
            await ours.send("t", b"x", headers=headers)
            assert ours.buffered_bytes == number * message_size(None, b"x", headers)


async def test_messages_with_a_place_leave_the_memory_leased_to_another_batch(searched: list[str]) -> None:
    async with producer(MemoryCluster(), batch_bytes=64 << 10, linger=3600) as ours:
        place = (await ours.send("t", b"1")).batch.partition.partition
        for _ in range(2):
            await ours.send("t", b"2", partition=(place + 1) % PARTITIONS)
        searched.clear()
        assert (await ours.send("t", b"3")).batch.partition.partition == place
        assert not searched


async def test_messages_for_a_batch_without_leased_memory_leave_that_of_another(searched: list[str]) -> None:
    cluster = MemoryCluster()
    async with producer(cluster, batch_bytes=64 << 10, linger=3600) as ours, asyncio.timeout(60):
        first = second = (await ours.send("t", b"1")).batch
        while second is first:  # new metadata may lead messages without a key elsewhere
            await ours.send("t", b"2", partition=first.partition.partition)
            cluster.learn()
            second = (await ours.send("t", b"3")).batch
        await ours.send("t", b"4", partition=first.partition.partition)
        searched.clear()
        assert (await ours.send("t", b"5")).batch is second
        assert not searched


async def test_leased_memory_does_not_count_as_messages_of_a_batch() -> None:
    async with producer(MemoryCluster(), batch_bytes=20_000, buffer_bytes=20_000, linger=3600) as ours:
        batch = (await ours.send("t", of_size(100))).batch
        place, leased = batch.partition.partition, ours._budget.used - 100
        for size in (20_000 - 100 - leased, 100):
            assert (await ours.send("t", of_size(size), partition=place)).batch is batch


async def test_messages_that_waited_join_a_batch_whose_memory_is_leased() -> None:
    cluster = MemoryCluster()
    cluster.add_topics("u")
    async with producer(cluster, batch_bytes=1000, linger=3600) as ours:
        await ours.send("u", b"x")  # so that others yield before they open a batch
        deliveries = await asyncio.gather(*(ours.send("t", b"x") for _ in range(3)))
        assert len({delivery.batch for delivery in deliveries}) == 1
        await ours.abort()


async def test_message_that_waited_fills_a_batch_exactly() -> None:
    cluster = MemoryCluster()
    async with producer(cluster, batch_bytes=200, linger=3600) as ours:
        await ours.send("t", b"x", partition=1)
        await asyncio.gather(*(ours.send("t", of_size(100), partition=0) for _ in range(2)))
    assert sorted(size for request in cluster.requests for size in request.values()) == [OVERHEAD + 1, 200]


async def test_messages_that_waited_go_to_the_partition_that_is_filled_then() -> None:
    async with producer(MemoryCluster(), batch_bytes=1) as ours:
        deliveries = await asyncio.gather(*(ours.send("t", b"x") for _ in range(60)))
        assert {delivery.batch.partition.partition for delivery in deliveries} == set(range(PARTITIONS))


@pytest.mark.parametrize(
    "fields",
    [{"headers": (("h", "text"),)}, {"headers": (("\ud800", b""),)}, {"timestamp": 1 << 70}, {"value": "text"}],
)
async def test_message_of_a_wrong_type_fails_without_the_producer(fields: dict[str, Any]) -> None:
    cluster = MemoryCluster()
    async with producer(cluster, linger=3600) as ours:
        invalid = await ours.send("t", **{"value": b"x", "partition": 0, **fields})
        other = await ours.send("t", b"other", partition=1)
        with capture_logs():
            await ours.flush()
        with pytest.raises(BrokerError, match="a batch of t/0 cannot be sent: "):
            await invalid
        assert (await other).offset == 0
        later = await ours.send("t", b"later", partition=0)
        await ours.flush()
        assert (await later).offset == 0


class SmallTopic(MemoryCluster):
    """A cluster that refuses batches of more than 1000 bytes of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    async def call(self, api: Any, body: dict[str, Any], **options: Any) -> dict[str, Any]:
        body = request_body(api, body)
        (topic,) = body["topic_data"]
        refused = [part for part in topic["partition_data"] if self._size(part["records"]) > 1000]
        self.refused += len(refused)
        topic["partition_data"] = [part for part in topic["partition_data"] if part not in refused]
        answer = await super().call(api, body, **options)
        answer["responses"][0]["partition_responses"] += [
            {"index": part["index"], "error_code": ErrorCode.MESSAGE_TOO_LARGE, "base_offset": -1} for part in refused
        ]
        return answer

    @staticmethod
    def _size(records: Any) -> int:
        return sum(len(each.payload or b"") + len(each.key or b"") for each in decode_records(records, 0).messages())


async def test_divides_a_batch_that_the_topic_does_not_take_and_makes_later_ones_smaller() -> None:
    cluster = SmallTopic()
    sent = [
        (b"%03d" % number + b"x" * (2000 if number == 150 else 90), b"k" * (number % 3) or None, number)
        for number in range(300)
    ]
    headers = [(("n", b"%d" % number),) if number % 5 == 0 else () for number in range(300)]
    async with producer(cluster, batch_bytes=1 << 20, linger=3600) as ours:
        with capture_logs() as logs:
            deliveries = [
                await ours.send("t", value, key=key, partition=1, timestamp=time, headers=header)
                for (value, key, time), header in zip(sent, headers, strict=True)
            ]
            await ours.flush()
        assert ours.buffered_bytes == 0
        assert [(each["messages"], each["partition"]) for each in logs if each["event"] == "produce_failed"] == [
            (1, "t/1")
        ]
        divided = [each["bytes"] for each in logs if each["event"] == "batch_divided"]
        assert divided == sorted(divided, reverse=True)
        assert len(divided) <= 6  # once for each smaller size
        with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
            await deliveries.pop(150)
        sent.pop(150)
        headers.pop(150)
        assert [(await each).offset for each in deliveries] == list(range(299))
        assert [(each.payload, each.key, each.timestamp) for each in cluster.log[1]] == sent
        assert [each.headers for each in cluster.log[1]] == headers
        before = cluster.refused
        later = await ours.send_many("t", [b"x" * 50] * 1000, partition=1)
        await ours.flush()
        await later.confirm()
        assert cluster.refused <= before + 2
        assert len(cluster.log[1]) == 1299


async def test_callers_of_a_divided_batch_learn_of_their_own_messages_alone() -> None:
    cluster = SmallTopic()
    async with producer(cluster, batch_bytes=1 << 20, linger=3600) as ours:
        small = await ours.send_many("t", [b"x" * 100] * 20, partition=0)
        large = await ours.send_many("t", [b"x" * 100, b"x" * 2000, b"x" * 100], partition=0)
        last = await ours.send("t", b"last", partition=0)
        with capture_logs():
            await ours.flush()
        assert [each.offset for each in await small] == list(range(20))
        await small.confirm()
        for outcome in (large, large.confirm()):
            with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
                await outcome
        assert [(await large[0]).offset, (await large[2]).offset, (await last).offset] == [20, 21, 22]
    background = ClusterProducer(producer(cluster, batch_bytes=1 << 20, linger=3600), background=True)
    async with background:
        await background.send("t", [b"x" * 100, b"x" * 2000, b"x" * 100], partition=0)
        with capture_logs(), pytest.raises(NotSentError) as caught:
            await background.flush()
        assert caught.value.count == 1


async def test_closing_fails_what_is_left_of_a_divided_batch() -> None:
    cluster = SmallTopic()
    async with producer(cluster, batch_bytes=1 << 20, linger=3600) as ours:
        many = await ours.send_many("t", [b"x" * 100] * 20, partition=0)
        cluster.taking.clear()
        flushing = asyncio.create_task(ours.flush())
        while not cluster.asked.is_set():  # the first part is at the broker
            await asyncio.sleep(0)
        await ours.abort()
        await flushing
        assert ours.buffered_bytes == 0
        with pytest.raises(ProducerClosedError):
            await many

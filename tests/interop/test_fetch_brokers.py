"""Fetching from real brokers of 0.8 and later: every format and codec, offsets, sizes, and brokers that stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from consumerd.base.budget import ByteBudget
from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConsumerdError
from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.log_changes import LogChange
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v08.brokers import V08Brokers
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connect import connect
from consumerd.wire.v07 import EARLIEST, LATEST
from consumerd.wire.v08.apis import DELETE_TOPICS, PRODUCE
from consumerd.wire.v08.message_types import ProduceRequest
from consumerd.wire.v08.records import Record, RecordCodec, encode_message_set, encode_record_batch
from consumerd.wire.v08.schema import NO_UUID
from tests.support.kafka import RELEASES, SHORT_SESSION, KafkaBroker
from tests.support.topics import create_and_lead

pytestmark = pytest.mark.interop
EVERYDAY = ("0.8.2.2", "0.10.1.1", "3.9.1")
PLACE = TopicPartition.numbered("events", 0)
CLOCK = SystemClock()


class Told:
    """A listener that records the reports of the pool."""

    def __init__(self) -> None:
        self.changes: list[tuple[LogChange, int]] = []
        self.resets: list[tuple[int, int]] = []
        self.failures: list[ConsumerdError] = []

    def failed(self, partition: TopicPartition, error: ConsumerdError) -> None:
        self.failures.append(error)

    def reset(self, partition: TopicPartition, old: int, new: int) -> None:
        self.resets.append((old, new))

    def log_changed(self, partition: TopicPartition, change: LogChange, new: int) -> None:
        self.changes.append((change, new))

    def skipped(self, partition: TopicPartition, offset: int, next_offset: int, reason: str) -> None:
        raise AssertionError(reason)

    def parked(self, partition: TopicPartition, reason: str) -> None:
        raise AssertionError(reason)


class Cluster:
    """A broker, a client of it, and a pool that fetches from it."""

    def __init__(self, broker: KafkaBroker, settings: FetchSettings) -> None:
        self.broker = broker
        client = ClientSettings(retry_timeout=60)
        opener = ChannelOpener(functools.partial(connect, settings=client.connection), client, CLOCK)
        rng = random.Random(1)
        self.client = ClusterClient([("127.0.0.1", broker.port)], opener, client, clock=CLOCK, rng=rng)
        self.told = Told()
        self.brokers = V08Brokers(self.client, settings, CLOCK, rng, self.told)
        self.pool = FetchPool(self.brokers)
        self.lane = Lane(PLACE, ByteBudget(64 << 20), max_bytes=16 << 20)

    async def create(self) -> None:
        await create_and_lead(self.client)

    async def produce(self, payloads: Sequence[bytes], codec: RecordCodec, magic: int) -> None:
        channel = await self.client.node_channel(self.broker.broker_id)
        version = min(channel.versions.pick(PRODUCE, at_most=9), (0, 2, 9)[magic])
        keys = [b"k%d" % number for number in range(len(payloads))]
        data = (
            encode_record_batch(payloads, codec=codec, keys=keys, timestamps=1234)
            if magic == 2
            else encode_message_set(payloads, magic=magic, codec=codec, keys=keys, timestamps=1234 if magic else -1)
        )
        body: ProduceRequest = {
            "acks": -1,
            "timeout_ms": 5000,
            "topic_data": [{"name": "events", "partition_data": [{"index": 0, "records": data}]}],
        }

        async def send() -> None:
            channel = await self.client.node_channel(self.broker.broker_id)
            answer = await channel.call(PRODUCE, body, version=version)
            code = answer["responses"][0]["partition_responses"][0]["error_code"]
            if error := error_of(code, "produce"):
                raise error

        await self.client.retrying("produce", send)

    async def take(self, count: int) -> list[Record]:
        """The next `count` records at least, in whole answers."""
        records: list[Any] = []
        async with asyncio.timeout(120):
            while len(records) < count:
                got = await self.lane.get()
                records += got.messages()
                self.lane.finished(got)
        return records


@pytest.fixture
def cluster(
    kafka: Any,
) -> Callable[..., contextlib.AbstractAsyncContextManager[Cluster]]:
    @contextlib.asynccontextmanager
    async def start(version: str, settings: FetchSettings | None = None, **config: int) -> AsyncIterator[Cluster]:
        made = Cluster(await kafka(version, config=config), settings or FetchSettings(max_wait=0.2))
        async with made.client:
            await made.create()
            running = asyncio.create_task(made.pool.run())
            await asyncio.sleep(0)
            try:
                yield made
            finally:
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running

    return start


def formats_of(version: str) -> list[tuple[int, RecordCodec]]:
    """(magic, codec) of all that producers can send to a broker of `version`."""
    number = RELEASES[version].number
    magics = [0] + [1] * (number >= (0, 10)) + [2] * (number >= (0, 11))
    if number >= (4,):
        magics = [2]  # and nothing older
    old = [RecordCodec.NONE, RecordCodec.GZIP, RecordCodec.SNAPPY, RecordCodec.LZ4]
    return [
        (magic, codec) for magic in magics for codec in old + [RecordCodec.ZSTD] * (magic == 2 and number >= (2, 1))
    ]


@pytest.mark.parametrize(
    "version", [pytest.param(name, marks=[] if name in EVERYDAY else [pytest.mark.long]) for name in RELEASES]
)
async def test_reads_every_format_and_codec(version: str, cluster: Any) -> None:
    async with cluster(version) as made:
        expected: list[bytes] = []
        for magic, codec in formats_of(version):
            payloads = [b"%s of magic %d, number %03d" % (codec.name.encode(), magic, n) for n in range(200)]
            await made.produce(payloads, codec, magic)
            expected += payloads
        made.pool.add(PLACE, 0, made.lane)
        records = await made.take(len(expected))
        assert [record.payload for record in records] == expected
        assert [record.offset for record in records] == list(range(len(expected)))
        assert [record.key for record in records] == [b"k%d" % (n % 200) for n in range(len(expected))]
        assert records[-1].next_offset == len(expected)
        assert (made.client.metadata.topic_id("events") != NO_UUID) is (RELEASES[version].number >= (2, 8))

        # Idle by now: news come without being asked for again and again.
        before = made.pool.counters.fetches
        await made.produce([b"news"], *formats_of(version)[0][::-1])
        assert [record.payload for record in await made.take(1)] == [b"news"]
        assert made.pool.counters.fetches - before < 5

        assert await made.pool.list_offsets(PLACE, EARLIEST) == (0,)
        assert await made.pool.list_offsets(PLACE, LATEST) == (len(expected) + 1,)

        # From the middle of a compressed batch.
        made.pool.seek(PLACE, 250)
        assert (await made.take(1))[0].offset == 250


@pytest.mark.parametrize("version", EVERYDAY)
async def test_broker_delays_its_response_until_the_minimum_is_available(version: str, cluster: Any) -> None:
    settings = FetchSettings(max_wait=60, min_bytes=100_000, poll_bytes=1024)
    magic = 2 if version == "3.9.1" else 0
    async with cluster(version, settings) as made, asyncio.timeout(50):  # less than it may wait
        await made.produce([b"first"], RecordCodec.NONE, magic)
        made.pool.add(PLACE, 0, made.lane)
        await made.take(1)  # a broker may refuse a few fetches of a topic that was created just now; the next one waits
        await made.produce([b"little"], RecordCodec.NONE, magic)
        for _ in range(6):
            await made.produce([b"x" * 1000] * 20, RecordCodec.NONE, magic)
        assert len(await made.take(1)) > 1  # not the little one alone, which would have been answered at once


@pytest.mark.parametrize(
    ("version", "sessions"),
    [
        ("0.10.1.1", False),
        ("3.9.1", True),
        *(pytest.param(name, name >= "1", marks=pytest.mark.long) for name in RELEASES if name not in EVERYDAY),
    ],
)
async def test_messages_of_idle_partitions_do_not_wait_for_a_poll(version: str, sessions: bool, cluster: Any) -> None:
    magic = 2 if RELEASES[version].number >= (0, 11) else 0
    async with cluster(version, FetchSettings(max_wait=30.0)) as made, asyncio.timeout(25):  # less than one poll
        await made.produce([b"first"], RecordCodec.NONE, magic)
        made.pool.add(PLACE, 0, made.lane)
        await made.take(1)
        for number in range(20):
            await made.produce([b"%d" % number], RecordCodec.NONE, magic)
            assert [record.payload for record in await made.take(1)] == [b"%d" % number]
        source = made.brokers._sources[made.broker.broker_id]
        assert (source._polls._session._id != 0) is sessions
        # The broker forgets the session, and another one begins.
        before = source._polls._session._id
        source._polls._session._epoch += sessions
        for number in range(2):
            await made.produce([b"%d" % number], RecordCodec.NONE, magic)
            assert [record.payload for record in await made.take(1)] == [b"%d" % number]
        assert (source._polls._session._id != before) is sessions
        assert (made.pool.counters.errors, made.pool.counters.disconnects) == ({}, 0)


async def test_resets_and_reports_an_offset_out_of_range(cluster: Any) -> None:
    async with cluster("3.9.1") as made:
        await made.produce([b"a", b"b"], RecordCodec.NONE, 2)
        made.pool.add(PLACE, 1000, made.lane)
        assert [record.payload for record in await made.take(2)] == [b"a", b"b"]
        assert made.told.resets == [(1000, 0)]


@pytest.mark.parametrize("version", ["0.8.2.2", "3.9.1"])
async def test_enlarges_the_fetch_for_an_oversize_message(version: str, cluster: Any) -> None:
    settings = FetchSettings(max_wait=0.1, size=4096, poll_bytes=1024, max_size=1 << 20)
    async with cluster(version, settings) as made:
        magic = 0 if version == "0.8.2.2" else 2
        await made.produce([b"small", b"x" * 100_000, b"after"], RecordCodec.NONE, magic)
        made.pool.add(PLACE, 0, made.lane)
        assert [len(record.payload or b"") for record in await made.take(3)] == [5, 100_000, 5]


@pytest.mark.parametrize("version", ["3.9.1", pytest.param("4.1.0", marks=pytest.mark.long)])
async def test_fetching_continues_with_the_new_id_of_a_topic_that_was_created_again(version: str, cluster: Any) -> None:
    async with cluster(version) as made:
        await made.produce([b"former 0", b"former 1"], RecordCodec.NONE, 2)
        made.pool.add(PLACE, 0, made.lane)
        assert len(await made.take(2)) == 2
        former = made.client.metadata.topic_id("events")
        topics = {"topics": [{"name": "events"}], "timeout_ms": 30_000}
        deleted = await made.client.call_node(made.broker.broker_id, DELETE_TOPICS, topics)
        assert [topic["error_code"] for topic in deleted["responses"]] == [0]
        made.client.stale(["events"])
        await made.create()
        await made.produce([b"new"], RecordCodec.NONE, 2)
        assert [record.payload for record in await made.take(1)] == [b"new"]
        assert [(change.kind, change.offset, new) for change, new in made.told.changes] == [("replaced", 2, 0)]
        assert made.told.resets == []
        assert made.client.metadata.topic_id("events") not in (former, NO_UUID)


async def test_fetching_continues_after_a_broker_restart(cluster: Any) -> None:
    async with cluster("3.9.1", **SHORT_SESSION) as made:
        await made.produce([b"before"], RecordCodec.NONE, 2)
        made.pool.add(PLACE, 0, made.lane)
        assert len(await made.take(1)) == 1
        made.broker.kill()
        await made.broker.start()
        await made.produce([b"after"], RecordCodec.NONE, 2)
        assert [record.payload for record in await made.take(1)] == [b"after"]
        made.pool.pause(PLACE)
        await made.pool.remove(PLACE)
        assert not made.pool.partitions


@pytest.mark.parametrize("version", ["3.9.1", pytest.param("4.1.0", marks=pytest.mark.long)])
async def test_waits_out_a_quota_without_losing_the_connection(version: str, cluster: Any) -> None:
    settings = FetchSettings(max_wait=0.2, size=128 << 10)
    async with cluster(version, settings, **{"quota.window.num": 2}) as made:
        quota = ("--alter", "--add-config", "consumer_byte_rate=200000", "--entity-type", "clients", "--entity-default")
        await asyncio.to_thread(made.broker.tool, "kafka.admin.ConfigCommand", *quota)
        payloads = [b"%06d" % number * 1000 for number in range(100)]
        for first in range(0, 100, 10):
            await made.produce(payloads[first : first + 10], RecordCodec.NONE, 2)
        made.pool.add(PLACE, 0, made.lane)
        assert [record.payload for record in await made.take(100)] == payloads
        counters = made.pool.counters
        assert counters.throttled > 0
        assert (counters.disconnects, dict(counters.errors)) == (0, {})

"""A real Jafka broker feeds our daemon, and our broker serves Jafka's clients: all arrives, in order, once.

Plain and gzip only: Jafka 1.2.3 does not support snappy: its broker closes the connection and its consumer stops.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.demo.audit import AuditResult, audit, merge_records
from consumerd.demo.ledger import Ledger
from consumerd.demo.processes import BrokerProcess, DaemonProcess
from consumerd.net.connect import connect
from consumerd.producer import Producer, ProducerSettings, StaticRouter
from consumerd.storage.log.dump import LogEntry, read_segment
from consumerd.wire.v07 import Codec
from tests.interop.conftest import JafkaBrokerFactory, JafkaConsumerFactory, JafkaProducerFactory
from tests.support.jafka_clients import JafkaProducer
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper]

TOPIC = "events"
BATCHES = 12
CODECS = (Codec.NONE, Codec.GZIP)
#: As Jafka numbers it.
GZIP = {"compression.codec": 1}


def our_producer(port: int, codec: Codec) -> Producer:
    return Producer(
        StaticRouter([("127.0.0.1", port)], rng=random.Random(1)),
        connect=connect,
        clock=SystemClock(),
        rng=random.Random(1),
        settings=ProducerSettings(codec=codec, resends=0),  # nothing may be stored twice
    )


def daemon(directory: Path, zookeeper: str, group: str) -> DaemonProcess:
    handler = {
        "name": "consumerd.demo.recorder:RecordHandler",
        "options": {"directory": str(directory / "records")},
    }
    return DaemonProcess(
        directory,
        {
            "group": {"id": group, "topics": {TOPIC: 1}},
            "zookeeper": {"connect": zookeeper, "session_timeout": 2.0},
            "fetch": {"size": 4000, "idle_backoff": 0.05},
            "commit": {"interval": 0.2},
            "handler": handler,
        },
    )


def entries(log_directory: Path, partition: TopicPartition) -> Iterator[LogEntry]:
    """The messages of a partition that a broker, Jafka's or ours, has stored."""
    for path in sorted((log_directory / f"{partition.topic}-{partition.partition}").iterdir()):
        yield from read_segment(path, int(path.stem))


class Feed:
    """Producers of their own for each partition, so that what a partition holds is known line by line."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._senders: dict[int, Callable[[list[bytes]], Awaitable[None]]] = {}
        self._batches = 0
        self.ledger = Ledger()

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, 0, number) for number in self._senders]

    async def add_ours(self, partition: int, port: int, codec: Codec) -> None:
        producer = await self._stack.enter_async_context(our_producer(port, codec))
        self._senders[partition] = lambda lines: producer.send(TOPIC, lines, partition=partition)

    def add_jafka(self, partition: int, producer: JafkaProducer) -> None:
        self._senders[partition] = lambda lines: producer.send(partition, lines)

    async def round(self) -> None:
        """A dozen batches to each partition, all partitions at once."""
        async with asyncio.TaskGroup() as group:
            for partition in self._senders:
                group.create_task(self._send(partition))
        self._batches += BATCHES

    async def _send(self, partition: int) -> None:
        for batch in range(self._batches, self._batches + BATCHES):
            lines = [b"%d:%d:%d \xff" % (partition, batch, line) + b"x" * line for line in range(20)]
            lines[7] = b""
            self.ledger.partition(TopicPartition(TOPIC, 0, partition)).send(lines)
            await self._senders[partition](lines)

    async def account(self, records: Path, log_directory: Path, timeout: float = 120.0) -> AuditResult:
        """Wait until our daemon got as many messages as were sent, then compare them with those the broker stored."""
        sent = sum(each.sent for each in self.ledger.partitions.values())
        give_up = time.monotonic() + timeout
        while True:
            handed = sum(len(record.messages) for record in merge_records(records.glob("*.ndjson")))
            if handed >= sent or time.monotonic() > give_up:
                break
            await asyncio.sleep(0.05)
        for partition in self.partitions:
            for entry in entries(log_directory, partition):
                assert entry.valid, entry.problem
                self.ledger.partition(partition).store(entry.offset, entry.payloads)
        return audit(self.ledger, merge_records(records.glob("*.ndjson")))


def assert_exactly_once(result: AuditResult, sent: int) -> None:
    assert result.sound, result.findings
    assert (result.produced, result.distinct, result.handled, result.duplicated) == (sent, sent, sent, 0)


async def test_daemon_reads_a_jafka_broker(
    zk: KazooClient,
    zk_root: str,
    tmp_path: Path,
    jafka_broker: JafkaBrokerFactory,
    jafka_producer: JafkaProducerFactory,
) -> None:
    broker = await jafka_broker(zk_root, partitions=4)
    async with AsyncExitStack() as stack:
        feed = Feed(stack)
        for partition, codec in enumerate(CODECS):
            await feed.add_ours(partition, broker.port, codec)
        await feed.round()
        # Jafka's producer sends to partition 0 only, as long as it does not know the topic.
        await until(lambda: zk.exists(f"/brokers/topics/{TOPIC}/0"))
        ours = await stack.enter_async_context(daemon(tmp_path, zk_root, "g"))
        for partition, settings in ((2, {}), (3, GZIP)):
            feed.add_jafka(partition, await jafka_producer(zk_root, TOPIC, settings=settings))
        await feed.round()
        async with asyncio.TaskGroup() as group:  # continues after a stop and a start
            group.create_task(feed.round())
            assert await ours.stop() == 0
        await ours.start()
        await feed.round()
        result = await feed.account(tmp_path / "records", broker.log_directory)
        assert_exactly_once(result, 20 * BATCHES * (2 + 3 * 4))
        codecs = {p.partition: {entry.codec for entry in entries(broker.log_directory, p)} for p in feed.partitions}
        assert codecs == {n: {codec} for n, codec in enumerate(CODECS * 2)}
        assert await ours.stop() == 0


async def test_our_broker_serves_producer_and_consumer_of_jafka(
    zk: KazooClient,
    zk_root: str,
    tmp_path: Path,
    jafka_consumer: JafkaConsumerFactory,
    jafka_producer: JafkaProducerFactory,
) -> None:
    settings = {"log.flush.interval": 1, "log.file.size": 20_000}
    async with AsyncExitStack() as stack:
        broker = BrokerProcess(tmp_path / "broker", zk_root, partitions=3, settings=settings)
        await stack.enter_async_context(broker)
        feed = Feed(stack)
        await feed.add_ours(0, broker.port, Codec.GZIP)
        await feed.round()
        await until(lambda: zk.exists(f"/brokers/topics/{TOPIC}/0"))
        ours = await stack.enter_async_context(daemon(tmp_path, zk_root, "ours"))
        async with asyncio.TaskGroup() as group:
            producers = [group.create_task(jafka_producer(zk_root, TOPIC, settings=codec)) for codec in ({}, GZIP)]
            member = group.create_task(jafka_consumer(zk_root, "jafka", {TOPIC: 2}))
        for number, producer in enumerate(producers, 1):
            feed.add_jafka(number, producer.result())
        await feed.round()
        await feed.round()
        sent = 20 * BATCHES * (1 + 2 * 3)
        assert_exactly_once(await feed.account(tmp_path / "records", broker.log_directory), sent)
        await until(lambda: len(member.result().messages()) >= sent)
        assert await ours.stop() == 0
        await member.result().leave()
        handed = [message.payload for message in member.result().messages()]
        for partition in feed.partitions:
            stored = list(entries(broker.log_directory, partition))
            payloads = [payload for entry in stored for payload in entry.payloads if payload]
            prefix = b"%d:" % partition.partition
            assert [payload for payload in handed if payload.startswith(prefix)] == payloads
            for group_id in ("ours", "jafka"):
                offset = zk.get(f"/consumers/{group_id}/offsets/{TOPIC}/{partition.name}")[0]
                assert int(offset) == stored[-1].next_offset, (group_id, partition)
        assert len(handed) == sent

"""Our transactions on real brokers: a producer that is killed before it commits, a fenced one, read by librdkafka."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import random
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.partition import UNKNOWN_LOG, TopicPartition
from consumerd.demo.processes import DaemonProcess
from consumerd.handlers import Batch, HandlerContext, PartitionTakenError
from consumerd.handlers.forward.handler import ForwardHandler
from consumerd.handlers.forward.mapping import BrokerMajorNumbering, TopicNaming
from consumerd.handlers.forward.settings import ForwardSettings
from consumerd.handlers.messages import KeyedMessage
from consumerd.handlers.sparse_content import SparseContent
from consumerd.member.offsets.kafka_store import KafkaOffsetStore
from consumerd.operate.admin.logs import LogRange
from consumerd.operate.admin.v08.logs import V08BrokerLogs
from consumerd.producer import ProducerFencedError, V08Producer, V08ProducerSettings
from consumerd.service.daemon.forwarding import kafka_section, make_forward_handler
from tests.support.kafka import RELEASES, SHORT_SESSION

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
#: Both versions of the protocol.
EVERYDAY = ("3.9.1", "4.3.1")
VERSIONS = [
    pytest.param(name, marks=[] if name in EVERYDAY else [pytest.mark.long])
    for name, release in RELEASES.items()
    if release.number >= (0, 11)
]
PLACE = TopicPartition.numbered("copy", 0)
PAGES = Path(__file__).parents[2] / "docs"
FORWARDED = [b"forwarded-%02d" % number for number in range(40)]
#: Sends in a transaction, and waits for its end, which is that of the process.
VICTIM = """
import asyncio, sys
import consumerd
from consumerd import TopicPartition

async def main():
    settings = consumerd.V08ProducerSettings(transactional_id="pump")
    config = consumerd.ProducerConfig(bootstrap=[sys.argv[1]], v08=settings)
    async with consumerd.open_producer(config) as producer, producer.transaction() as transaction:
        await transaction.send("copy", ["killed"])
        await transaction.send_offsets("g", {TopicPartition.numbered("copy", 0): 99})
        await producer.flush()
        print("sent", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def read_committed(address: str, topic: str, missing: Any) -> list[bytes]:
    """What a consumer of librdkafka gets of all partitions, up to their ends. Blocks."""
    if importlib.util.find_spec("confluent_kafka") is None:
        missing("confluent-kafka is not installed: see the dependency group `dev`")
    confluent_kafka: Any = importlib.import_module("confluent_kafka")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    parts = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in parts])
    found: list[bytes] = []
    ended: set[int] = set()
    while ended != set(parts):
        message = consumer.poll(30)
        assert message is not None
        if message.error() is None:
            found.append(message.value())
        else:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            ended.add(message.partition())
    consumer.close()
    return sorted(found)


async def forwarder(address: str) -> ForwardHandler:
    settings = ForwardSettings(exactly_once=True, partitions=2)
    section = kafka_section([address])
    made = make_forward_handler(section, TopicNaming("target"), BrokerMajorNumbering(), settings, request_timeout=30.0)
    await made.start(HandlerContext("copiers", "copiers_me", SystemClock()))
    return made


async def forward_with_a_zombie(address: str) -> None:
    """Two members that both believe that the partition is theirs, one after the other and in turns."""

    def batch(first: int, last: int) -> Batch:
        messages = [
            KeyedMessage(PLACE, offset, 0, offset + 1, FORWARDED[offset], None, -1, -1, ())
            for offset in range(first, last)
        ]
        return Batch(PLACE, SparseContent(messages, log=UNKNOWN_LOG, contiguous=True))

    zombie, owner = await forwarder(address), await forwarder(address)
    assert await zombie.position(PLACE) is None
    await zombie.handle(batch(0, 10))
    assert await owner.position(PLACE) == 10
    with pytest.raises(PartitionTakenError):
        await zombie.handle(batch(10, 20))
    await owner.handle(batch(10, 20))
    await zombie.handle(batch(10, 30))  # it takes the partition back, with messages that the other one has forwarded
    with pytest.raises(PartitionTakenError):
        await owner.handle(batch(20, 30))
    assert await owner.position(PLACE) == 30
    await owner.handle(batch(30, len(FORWARDED)))
    for each in (zombie, owner):
        await each.stop()


async def committed(store: KafkaOffsetStore, offset: int) -> None:
    """Return when the group has the offset: brokers write the end of a transaction after the answer."""
    async with asyncio.timeout(60):
        while await store.load([PLACE]) != {PLACE: offset}:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("version", VERSIONS)
async def test_counts_nothing_of_a_killed_or_fenced_producer(
    version: str, kafka: Any, cluster_client: Any, missing: Any
) -> None:
    broker = await kafka(version, partitions=2)
    victim = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, broker.address, stdout=asyncio.subprocess.PIPE
    )
    assert victim.stdout is not None
    async with asyncio.timeout(60):
        while await victim.stdout.readline() != b"sent\n":
            assert not victim.stdout.at_eof()
    victim.kill()
    await victim.wait()
    settings = V08ProducerSettings(transactional_id="pump")
    clock = SystemClock()
    async with cluster_client(broker) as client, cluster_client(broker) as other:
        store = KafkaOffsetStore(client, "g")
        async with V08Producer(client, settings, clock=clock, rng=random.Random(1)) as zombie:
            for number in range(3):
                async with zombie.transaction() as transaction:
                    for place in range(2):
                        await transaction.send("copy", b"%d-%d" % (number, place), partition=place)
                    await transaction.send_offsets("g", {PLACE: number + 1})
            await committed(store, 3)
            with pytest.raises(ProducerFencedError):  # noqa: PT012
                async with zombie.transaction() as transaction:
                    await (await transaction.send("copy", b"of the zombie", partition=0))
                    async with V08Producer(other, settings, clock=clock, rng=random.Random(2)) as newer:
                        await newer.init_transactions()
                        async with newer.transaction() as its:
                            await its.send("copy", b"newer", partition=0)
                            await its.send_offsets("g", {PLACE: 4})
        await committed(store, 4)
    if RELEASES[version].number >= (2, 5):
        await forward_with_a_zombie(broker.address)
        assert await asyncio.to_thread(read_committed, broker.address, "target", missing) == FORWARDED
    expected = sorted([b"newer", *(b"%d-%d" % (number, place) for number in range(3) for place in range(2))])
    assert await asyncio.to_thread(read_committed, broker.address, "copy", missing) == expected


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.9.1", "4.1.0"])
async def test_loses_and_doubles_nothing_when_daemons_and_the_broker_are_killed(
    version: str, kafka: Any, cluster_client: Any, tmp_path: Path, missing: Any
) -> None:
    broker = await kafka(version, partitions=4, config=SHORT_SESSION)
    rng, clock = random.Random(7), SystemClock()
    options = {"bootstrap": [broker.address], "topic": "target", "partitions": 2, "exactly_once": True}
    group = {"session_timeout": 3.0, "heartbeat_interval": 0.5, "rebalance_timeout": 5.0}
    daemons = [
        DaemonProcess(
            tmp_path,
            {
                "group": {"id": "copiers", "coordination": "kafka", "topics": {"source": 1}, **group},
                "kafka": {"bootstrap": [broker.address]},
                "fetch": {"size": 4_000, "isolation": "read_committed"},
                "commit": {"interval": 0.5},
                "handler": {"name": "forward", "options": options, "max_backoff": 1.0, "max_attempts": 100},
            },
            name=name,
        )
        for name in ("first", "second")
    ]
    sent: list[bytes] = []
    async with AsyncExitStack() as stack, cluster_client(broker) as client:
        for each in daemons:
            stack.callback(each.kill)
        ours = await stack.enter_async_context(V08Producer(client, clock=clock, rng=rng))

        async def produce(messages: int) -> None:
            for _ in range(messages // 20):
                batch = [b"%06d" % number for number in range(len(sent), len(sent) + 20)]
                sent.extend(batch)
                for message in batch:
                    await ours.send("source", message, partition=rng.randrange(4))
                await asyncio.sleep(0.02)

        await produce(200)
        for each in daemons:
            await each.start(60)
        for turn in range(8):
            victim = daemons[turn % 2]
            await produce(600)
            if turn == 5:
                broker.kill()
                await broker.start()
            elif turn % 4 == 3:
                victim.pause()
                await produce(600)
                victim.resume()
            else:
                victim.kill()
                await victim.start(60)
        await ours.flush()
        found: list[bytes] = []
        async with asyncio.timeout(120):
            while len(found) < len(sent):
                await asyncio.sleep(1.0)
                found = await asyncio.to_thread(read_committed, broker.address, "target", missing)
        for each in daemons:
            await each.stop()
        assert await asyncio.to_thread(read_committed, broker.address, "target", missing) == sorted(sent)
        # No transaction is open any more: who reads committed messages comes to the end.
        targets = [TopicPartition.numbered("target", number) for number in range(2)]
        logs = V08BrokerLogs(client)
        ranges = await logs.ranges(targets)
        assert await logs.readable_ends(targets) == {
            each: found.end for each, found in ranges.items() if isinstance(found, LogRange)
        }
        assert len(ranges) == len(targets)


async def test_runs_the_programs_of_the_pages(kafka: Any, cluster_client: Any, tmp_path: Path, missing: Any) -> None:
    broker = await kafka("3.9.1", partitions=1)

    async def run(page: str, name: str) -> None:
        text = (PAGES / page).read_text("utf-8")
        (code,) = re.findall(rf"```python\n# {name}\n(.*?)```", text, re.DOTALL)
        program = tmp_path / name
        program.write_text(code.replace("kafka1:9092", broker.address), "utf-8")
        process = await asyncio.create_subprocess_exec(sys.executable, str(program))
        assert await asyncio.wait_for(process.wait(), 60) == 0

    await run("producer.md", "transfer.py")
    for topic, expected in (("orders", [b"coffee"]), ("payments", [b"3.20"])):
        assert await asyncio.to_thread(read_committed, broker.address, topic, missing) == expected
    async with cluster_client(broker) as client:
        async with V08Producer(client, clock=SystemClock(), rng=random.Random(1)) as producer:
            await producer.send_many("orders", [b"tea", b"last"])
        await run("library.md", "enrich.py")
        assert await asyncio.to_thread(read_committed, broker.address, "copies", missing) == [
            b"coffee",
            b"last",
            b"tea",
        ]
        # A transaction's marker has an offset, too: coffee, its marker, tea, last.
        assert await KafkaOffsetStore(client, "copy").load([TopicPartition.numbered("orders", 0)]) == {
            TopicPartition.numbered("orders", 0): 4
        }

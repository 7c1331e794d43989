"""The library on real brokers: one producer and one connector for every dialect, chosen by their configuration."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from consumerd import (
    ConsumerConfig,
    ConsumerConnector,
    KeyedMessage,
    MessageStream,
    Plain,
    ProducerConfig,
    TopicPartition,
    Whitelist,
    open_producer,
)
from consumerd.base.errors import BrokerError
from consumerd.demo.ports import free_port
from consumerd.member.offsets.kafka_store import CommittedOffset, KafkaOffsetStore
from consumerd.producer import NotSentError
from consumerd.producer.v08.routing import key_partition
from tests.support.kafka import RELEASES, KafkaBroker

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper]

TOPIC, PARTITIONS = "events", 4
PLACES = [TopicPartition.numbered(TOPIC, number) for number in range(PARTITIONS)]
#: The coordination of groups, by release.
MATRIX = [("0.8.2.2", "zookeeper"), ("0.10.1.1", "zookeeper"), ("0.10.1.1", "kafka"), ("3.9.1", "kafka")]


class Ground:
    """A broker, and the configuration of the library: ZooKeeper alone, or the broker's address alone."""

    def __init__(self, broker: KafkaBroker, version: str, zookeeper: str, coordination: str) -> None:
        self.headers = RELEASES[version].number >= (0, 11)
        self._where: dict[str, Any] = (
            {"zookeeper": zookeeper} if coordination == "zookeeper" else {"bootstrap": [f"127.0.0.1:{broker.port}"]}
        )

    def consumer(self, **settings: Any) -> ConsumerConfig:
        quick = {"commit_interval": 0.2, "max_wait": 0.1, "heartbeat_interval": 0.3, "connection_timeout": 30.0}
        return ConsumerConfig(group="g", **self._where, **{**quick, **settings})

    def producer(self, **settings: Any) -> ProducerConfig:
        return ProducerConfig(**self._where, **settings)


async def take(streams: Iterable[MessageStream], count: int) -> list[tuple[int, KeyedMessage]]:
    """The next `count` messages of all streams together, handled, each with the number of its stream."""
    found: list[tuple[int, Any]] = []
    enough = asyncio.Event()

    async def read(stream: MessageStream) -> None:
        async for message in stream:
            found.append((stream.number, message))
            stream.ack()
            if len(found) >= count:
                enough.set()

    readers = [asyncio.create_task(read(stream)) for stream in streams]
    try:
        async with asyncio.timeout(60):
            await enough.wait()
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return found


@pytest.mark.parametrize(("version", "coordination"), MATRIX)
async def test_producer_and_connector_need_configuration_only(
    version: str, coordination: str, kafka: Any, zk_root: str
) -> None:
    broker = await kafka(version, partitions=PARTITIONS)
    ground = Ground(broker, version, zk_root, coordination)
    headers = (("from", b"here"),) if ground.headers else ()
    keys = [f"key {number}" for number in range(20)]
    async with open_producer(ground.producer()) as producer:
        for key in keys:
            await producer.send(TOPIC, [f"{key}, {n}" for n in range(5)], key=key, headers=headers)
    async with ConsumerConnector(ground.consumer()) as connector:
        streams = (await connector.create_message_streams({TOPIC: 2}))[TOPIC]
        found = await take(streams, 100)
        assert [number for number, _ in found if number not in (0, 1)] == []
        messages = [message for _, message in found]
        assert all(isinstance(message, KeyedMessage) and message.headers == headers for message in messages)
        for key in keys:
            mine = [message for message in messages if message.key == key.encode()]
            assert [message.payload for message in mine] == [f"{key}, {n}".encode() for n in range(5)]
            assert {message.partition.partition for message in mine} == {key_partition(key.encode(), PARTITIONS)}

        # Every partition feeds the stream that the assignment says, and both streams have their share.
        assignment = connector.assignment()
        assert sorted(assignment) == PLACES
        assert Counter(assignment.values()) == {0: 2, 1: 2}
        assert all(assignment[message.partition] == number for number, message in found)

        # Positions.
        ends = await connector.end_offsets()
        assert sum(ends.values()) == 100
        assert {place: connector.position(place) for place in PLACES} == ends
        assert await connector.commit_offsets() == ends
        assert await connector.committed() == ends
        assert set((await connector.lag()).values()) == {0}
        most = max(ends, key=lambda place: ends[place])
        assert await connector.seek(most, 1) == 1
        again = await take(streams, ends[most] - 1)
        assert [(message.partition, message.offset) for _, message in again] == [
            (most, offset) for offset in range(1, ends[most])
        ]

    # The next member continues there, and shares the partitions with one that joins later.
    async with open_producer(ground.producer(background=True)) as producer:
        for number in range(200):
            await producer.send(TOPIC, [f"later {number}"])
    async with ConsumerConnector(ground.consumer()) as one, ConsumerConnector(ground.consumer()) as other:
        streams = await one.create_message_streams_by_filter(Whitelist("ev.*"))
        later = {message.payload for _, message in await take(streams, 200)}
        assert later == {b"later %d" % number for number in range(200)}
        more = (await other.create_message_streams({TOPIC: 1}))[TOPIC]

        async def iterate(stream: MessageStream) -> None:
            async for _ in stream:
                pass

        readers = [asyncio.create_task(iterate(stream)) for stream in (*streams, *more)]
        async with asyncio.timeout(60):
            while {len(one.assignment()), len(other.assignment())} != {2}:
                await asyncio.sleep(0.05)
        assert sorted([*one.assignment(), *other.assignment()]) == PLACES
    await asyncio.gather(*readers)


@pytest.mark.parametrize("coordination", ["zookeeper", "kafka"])
async def test_commits_to_both_stores_with_metadata_in_kafka(
    coordination: Any, kafka: Any, cluster_client: Any, zk: Any, zk_root: str
) -> None:
    broker = await kafka("0.10.1.1", partitions=1)
    at = [f"127.0.0.1:{broker.port}"]
    async with open_producer(ProducerConfig(bootstrap=at)) as producer:
        await producer.send(TOPIC, [b"1", b"2", b"3"])
    config = ConsumerConfig(
        group="g", zookeeper=zk_root, bootstrap=at, coordination=coordination, offsets="both", metadata="by me"
    )
    async with ConsumerConnector(config) as connector:
        await take((await connector.create_message_streams({TOPIC: 1}))[TOPIC], 3)
        assert await connector.commit_offsets() == {PLACES[0]: 3}
    assert zk.get(f"/consumers/g/offsets/{TOPIC}/0")[0] == b"3"
    async with cluster_client(broker) as client:
        assert await KafkaOffsetStore(client, "g").read(PLACES[:1]) == {PLACES[0]: CommittedOffset(3, "by me")}


async def test_connects_to_a_sasl_listener_given_or_found_in_zookeeper(
    kafka: Any, zk_root: str, tmp_path: Path
) -> None:
    login, plain, secure = tmp_path / "jaas.conf", free_port(), free_port()
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    login.write_text(f'KafkaServer {{ {module} username="admin" password="a" user_admin="a" user_alice="b"; }};\n')
    listeners = f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{secure}"
    await kafka(
        "0.10.1.1",
        partitions=1,
        port=plain,
        jvm=[f"-Djava.security.auth.login.config={login}"],
        config={"listeners": listeners, "sasl.enabled.mechanisms": "PLAIN"},
    )
    places: list[dict[str, Any]] = [{"zookeeper": zk_root}, {"bootstrap": [f"127.0.0.1:{secure}"]}]
    for number, where in enumerate(places):
        asked: list[int] = []

        def alice(asked: list[int] = asked) -> Plain:
            asked.append(1)
            return Plain("alice", "b")

        async with open_producer(ProducerConfig(**where, sasl=alice)) as producer:
            await producer.send(TOPIC, [b"%d" % number])
        async with ConsumerConnector(ConsumerConfig(group=f"g{number}", **where, sasl=alice)) as connector:
            found = await take((await connector.create_message_streams({TOPIC: 1}))[TOPIC], number + 1)
        assert [message.payload for _, message in found] == [b"0", b"1"][: number + 1]
        assert len(asked) >= 2
    with pytest.raises(BrokerError, match="closed the connection during authentication with PLAIN"):
        async with open_producer(ProducerConfig(**places[1], sasl=lambda: Plain("alice", "wrong"), session_wait=1.0)):
            pass


async def test_runs_the_programs_of_the_pages(kafka: Any, tmp_path: Path) -> None:
    broker = await kafka("3.9.1", partitions=1)
    printed = b""
    for page in ("producer.md", "library.md"):
        text = (Path(__file__).parents[2] / "docs" / page).read_text("utf-8")
        program = tmp_path / page.replace(".md", ".py")
        (code,) = re.findall(r"```python\n# cluster\.py\n(.*?)```", text, re.DOTALL)
        program.write_text(code.replace("kafka1:9092", f"127.0.0.1:{broker.port}"), "utf-8")
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(program), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        printed, errors = await asyncio.wait_for(process.communicate(), 90)
        assert (process.returncode, errors) == (0, b"")
    assert [line for line in printed.decode().splitlines() if line.startswith("orders ")] == [
        "orders 0 0 b'ann' b'coffee'", "orders 0 1 b'ann' b'tea'", "orders 0 2 None b'last'",
    ]  # fmt: skip


@pytest.mark.parametrize("version", ["0.10.1.1", "3.9.1"])
async def test_flush_reports_refused_background_messages(version: str, kafka: Any, zk_root: str) -> None:
    broker = await kafka(version, config={"message.max.bytes": "10000"})
    ground = Ground(broker, version, zk_root, "kafka")
    async with open_producer(ground.producer(background=True)) as producer:
        await producer.send(TOPIC, [b"fits"])
        await producer.flush()
        await producer.send(TOPIC, [b"x" * 50_000])
        await producer.send(TOPIC, [b"x" * 400] * 100)  # more than the broker takes at once
        with pytest.raises(NotSentError, match="1 queued message was not sent") as caught:
            await producer.flush()
        assert caught.value.count == 1
        await producer.flush()  # told once
    async with open_producer(ground.producer()) as producer:
        with pytest.raises(Exception, match="MESSAGE_TOO_LARGE"):
            await producer.send(TOPIC, [b"x" * 50_000])

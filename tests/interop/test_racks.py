"""Three real brokers in three racks: who serves a member that names its rack, and what happens when that one dies."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from consumerd.base.budget import ByteBudget
from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v08.brokers import V08Brokers
from consumerd.net.client.channel import Channel
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.net.client.factory import make_client
from consumerd.net.client.fetching import FetchedPartitions, fetch_partitions
from consumerd.net.connection import ConnectionSettings
from consumerd.wire.v08.apis import PRODUCE
from consumerd.wire.v08.message_types import ProduceRequest
from consumerd.wire.v08.records import encode_record_batch
from tests.support.kafka import SHORT_SESSION, KafkaBroker
from tests.support.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.interop, pytest.mark.long]
OURS = 2
PARTITIONS = 3
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def in_its_rack(directory: Path, release: Any, zookeeper: str | None, **options: Any) -> KafkaBroker:
    options["config"] = {
        **options["config"], **SHORT_SESSION,
        "broker.rack": f"rack-{options['broker_id']}", "replica.selector.class": SELECTOR,
    }  # fmt: skip
    return KafkaBroker(directory, release, zookeeper, **options)


async def produce(client: ClusterClient, number: int, payloads: list[bytes]) -> None:
    body: ProduceRequest = {
        "acks": -1,
        "timeout_ms": 5000,
        "topic_data": [{"name": "t", "partition_data": [{"index": number, "records": encode_record_batch(payloads)}]}],
    }

    async def send() -> None:
        node = await client.leader("t", number)
        channel = await client.node_channel(node.id)
        answer = await channel.call(PRODUCE, body, version=channel.versions.pick(PRODUCE, at_most=9))
        if error := error_of(answer["responses"][0]["partition_responses"][0]["error_code"], "produce"):
            client.stale(["t"])
            raise error

    await client.retrying("produce", send, timeout=60)


@pytest.mark.parametrize("version", ["2.8.2", "3.9.1", "4.1.0"])
async def test_reads_from_the_broker_of_the_own_rack(
    version: str, kafka_cluster: Callable[..., KafkaCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = kafka_cluster(version, partitions=PARTITIONS, make=in_its_rack)
    ports = {f"127.0.0.1:{broker.port}": number for number, broker in brokers.brokers.items()}
    served: Counter[int] = Counter()

    async def counted(channel: Channel, *arguments: Any, received: Any = None, **options: Any) -> FetchedPartitions:
        if received is None:  # the end of a session
            return await fetch_partitions(channel, *arguments, **options)

        def count(fetched: FetchedPartitions) -> None:
            served[ports[channel.address]] += sum(len(part.data) for part in fetched.partitions.values())
            received(fetched)

        return await fetch_partitions(channel, *arguments, received=count, **options)

    monkeypatch.setattr("consumerd.member.fetch.v08.exchange.fetch_partitions", counted)
    clock, rng = SystemClock(), random.Random(1)
    addresses = [("127.0.0.1", broker.port) for broker in brokers.brokers.values()]
    client = make_client(
        addresses, ConnectionSettings(socket_timeout=5), client_id="c", tls=None, sasl=None, clock=clock, rng=rng,
        rack=f"rack-{OURS}",
    )  # fmt: skip
    async with brokers, client:

        async def led() -> set[int]:
            await client.refresh(["t"], create=True)
            return {(await client.leader("t", number)).id for number in range(PARTITIONS)}

        assert len(await client.retrying("create the topic", led, timeout=60)) == 3  # each leads one of them
        pool = FetchPool(V08Brokers(client, FetchSettings(size=64 << 10), clock, rng, cast("Any", None)))
        places = [TopicPartition.numbered("t", number) for number in range(PARTITIONS)]
        lanes = {place: Lane(place, ByteBudget(64 << 20), max_bytes=16 << 20) for place in places}
        positions = dict.fromkeys(places, 0)
        task = asyncio.create_task(pool.run())

        async def exchanged(first: int, rounds: int) -> None:
            """Produce to all partitions, and take it from each in order."""
            for turn in range(first, first + rounds):
                expected = [b"%d-%d" % (turn, each) + b"." * 1000 for each in range(100)]
                for number in range(PARTITIONS):
                    await produce(client, number, expected)
                for place, lane in lanes.items():
                    # A request that timed out at the brokers was sent again, and may be in the log twice.
                    found: dict[bytes | None, None] = {}
                    while len(found) < len(expected):
                        batch = await lane.get()
                        assert batch.start_offset == positions[place]
                        positions[place] = batch.next_offset
                        found |= dict.fromkeys(each for each in batch.payloads if each in expected)
                        lane.finished(batch)
                    assert [*found] == expected

        async with asyncio.timeout(150):
            for place, lane in lanes.items():
                pool.add(place, 0, lane)
            await exchanged(0, 20)
            assert served[OURS] > 0.95 * served.total() > 5_000_000
            # It dies: the leaders serve. It comes back: it does again.
            brokers.brokers[OURS].kill()
            served.clear()
            await exchanged(20, 3)
            assert served[OURS] == 0
            await brokers.brokers[OURS].start()
            await brokers.wait_until_whole()
            turn = 23
            while not served[OURS] > 0.95 * served.total():
                served.clear()
                await exchanged(turn, 1)
                turn += 1
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

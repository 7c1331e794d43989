"""The lag of groups of the 0.7 protocol, which a broker and a consumer that are not ours keep in ZooKeeper."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable

import pytest
from kazoo.client import KazooClient

from consumerd.base.clock import SystemClock
from consumerd.net.connect import connect
from consumerd.producer import Producer, ProducerSettings, StaticRouter
from tests.interop.conftest import JafkaBrokerFactory, JafkaConsumerFactory
from tests.support.exporter import exporting

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper, pytest.mark.timeout(180)]
TOPIC = "events"
#: A message of 0.7 has a head of 10 bytes.
PAYLOAD, STORED = b"x" * 90, 100


async def samples(scrape: Callable[[], Awaitable[list[str]]]) -> dict[tuple[str, ...], float]:
    """The values by the metric's name, the group (or topic) and the partition."""
    found = {}
    for line in await scrape():
        if line.startswith("kafka_"):
            name, labels, value = re.fullmatch(r"kafka_(\w+)\{(.*)\} (\S+)", line).groups()  # type: ignore[union-attr]
            named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            place = [named[key] for key in ("group", "partition") if key in named]
            found[name.removeprefix("consumergroup_"), *place] = float(value)
    return found


async def until(
    scrape: Callable[[], Awaitable[list[str]]], right: Callable[[dict[tuple[str, ...], float]], bool]
) -> dict[tuple[str, ...], float]:
    give_up = time.monotonic() + 60
    while not right(found := await samples(scrape)):
        assert time.monotonic() < give_up, found
        await asyncio.sleep(0.05)
    return found


async def test_exports_bytes_and_seconds_of_a_group_in_zookeeper(
    zk: KazooClient, zk_root: str, jafka_broker: JafkaBrokerFactory, jafka_consumer: JafkaConsumerFactory
) -> None:
    broker = await jafka_broker(zk_root)
    router = StaticRouter([("127.0.0.1", broker.port)], rng=random.Random(1))
    settings = ProducerSettings(resends=0)
    async with Producer(
        router, connect=connect, clock=SystemClock(), rng=random.Random(1), settings=settings
    ) as producer:
        await producer.send(TOPIC, [PAYLOAD] * 5, partition=0)
        await producer.send(TOPIC, [PAYLOAD], partition=1)
        member = await jafka_consumer(
            zk_root, "reading", {TOPIC: 1}, settings={"autocommit.interval.ms": 100, "autooffset.reset": "smallest"}
        )
        async with exporting("--zookeeper", zk_root, "--interval", "0.2", "--cluster-name", "old") as scrape:
            ends = {("partition_latest_offset", "0-0"): 5 * STORED, ("partition_latest_offset", "0-1"): STORED}
            found = await until(
                scrape, lambda found: found.get(("group_sum_lag", "reading")) == 0 and ends.items() <= found.items()
            )
            assert found["group_offset", "reading", "0-0"] == 5 * STORED
            assert found["group_max_lag_seconds", "reading"] == 0
            member.kill()
            zk.ensure_path("/consumers/behind/offsets/events")
            for number in (b"0-0", b"0-1"):
                zk.create(f"/consumers/behind/offsets/{TOPIC}/{number.decode()}", b"0")
            await producer.send(TOPIC, [PAYLOAD] * 3, partition=0)
            found = await until(scrape, lambda found: found.get(("group_max_lag_seconds", "reading"), 0) >= 1)
            assert found["group_sum_lag", "reading"] == found["group_lag", "reading", "0-0"] == 3 * STORED
            assert found["group_lag_seconds", "reading", "0-1"] == 0
            assert found["group_sum_lag", "behind"] == 9 * STORED
            # Messages of 0.7 have no timestamps, and these are older than the exporter.
            assert not {key for key in found if "seconds" in key[0] and "behind" in key}

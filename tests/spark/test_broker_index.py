"""Segments that a real Kafka 3.9 wrote, read from its disk in parts that begin where its own index says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from tests.support.kafka import KafkaBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "100000",
    "min.cleanable.dirty.ratio": "0.01",
    "index.interval.bytes": "2000",
}
BATCH = 150


def produce(address: str, topic: str, count: int, *, first: int = 0, key_every: int = 1) -> None:
    """Messages of 100 B, in batches of 150. Each `key_every`-th has a key of its own; the others have the same one."""
    # With numbers of the producer, a batch that is sent again (to a leader that is not yet one) keeps its place.
    settings = {"enable.idempotence": True, "batch.num.messages": BATCH, "linger.ms": 1000, "batch.size": 1_000_000}
    producer = Producer({"bootstrap.servers": address, **settings})
    for number in range(first, first + count):
        key = b"last" if number % key_every else b"%d" % number
        producer.produce(topic, b"%0100d" % number, key, 0)
    assert producer.flush(60) == 0


def rows(spark: SparkSession, path: Path, topic: str, **options: Any) -> tuple[list[tuple[int, int]], int]:
    """The offset and the number in the value of each row, in order, and how many tasks found some."""
    frame = spark.read.format("consumerd").options(path=str(path), subscribe=topic, **options).load()
    found = frame.select("offset", F.col("value").cast("string").cast("int"), F.spark_partition_id()).collect()
    return sorted((row[0], row[1]) for row in found), len({row[2] for row in found})


def test_tasks_that_share_a_segment_of_a_broker_read_each_offset_once(spark: SparkSession, broker: KafkaBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    for made in admin.create_topics([NewTopic("events", 1, 1, config={"index.interval.bytes": "4096"})]).values():
        made.result(60)
    produce(broker.address, "events", 6000)
    broker.kill()
    folder = broker.log_directory / "events-0"
    (segment,) = folder.glob("*.log")
    assert segment.with_suffix(".index").stat().st_size
    found, tasks = rows(spark, broker.log_directory, "events", maxSplitBytes="64k")
    assert found == [(number, number) for number in range(6000)]
    assert segment.stat().st_size / 100_000 < tasks < segment.stat().st_size / 60_000


def test_tasks_that_share_a_compacted_segment_of_a_broker_read_each_offset_once(
    spark: SparkSession, broker: KafkaBroker
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    for made in admin.create_topics([NewTopic("keyed", 1, 1, config=COMPACTED)]).values():
        made.result(60)
    sent = 9000  # ten segments, whose last one stays as it is; of the messages before, two of three go
    produce(broker.address, "keyed", sent, key_every=3)
    compacted = asyncio.run(broker.wait_compacted("keyed-0"))
    broker.kill()
    whole, segments = rows(spark, broker.log_directory, "keyed", maxSplitBytes=0)
    found, tasks = rows(spark, broker.log_directory, "keyed", maxSplitBytes="8k")
    assert found == whole
    assert tasks > 2 * segments
    last = max(number for number in range(compacted) if number % 3)
    kept = [number for number in range(sent) if number % 3 == 0 or number == last or number >= compacted]
    assert found == [(number, number) for number in kept]

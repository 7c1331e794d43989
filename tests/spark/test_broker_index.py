"""Segments that a real Kafka 3.9 wrote, read from its disk in parts that begin where its own index says."""

from __future__ import annotations

from contextlib import suppress
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
    settings = {"batch.num.messages": BATCH, "linger.ms": 1000, "batch.size": 1_000_000}
    producer = Producer({"bootstrap.servers": address, **settings})
    for number in range(first, first + count):
        key = b"last" if number % key_every else b"%d" % number
        producer.produce(topic, b"%0100d" % number, key, 0)
    assert producer.flush(60) == 0


def stored(folder: Path) -> int:
    """The bytes of the segments that count, while the cleaner replaces some of them."""
    sizes = 0
    for path in folder.glob("*.log"):
        with suppress(FileNotFoundError):
            sizes += path.stat().st_size
    return sizes


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
    folder = broker.log_directory / "keyed-0"
    sent = 3000
    produce(broker.address, "keyed", sent, key_every=3)
    while stored(folder) > 60 * sent:  # of more than 100 bytes each, two of three are for the cleaner
        produce(broker.address, "keyed", 1500, first=sent, key_every=3)
        sent += 1500
        assert sent < 60_000, "nothing was compacted"
    broker.kill()
    whole, segments = rows(spark, broker.log_directory, "keyed", maxSplitBytes=0)
    found, tasks = rows(spark, broker.log_directory, "keyed", maxSplitBytes="8k")
    assert found == whole
    assert tasks > 2 * segments
    assert all(offset == number for offset, number in found)
    offsets = [offset for offset, _ in found]
    assert set(range(0, sent, 3)) <= set(offsets), "the only message of its key stays"
    assert len(offsets) < sent - BATCH, "the cleaner left gaps"

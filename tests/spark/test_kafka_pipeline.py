"""From topics of a real Kafka 3.9 to silver: keys, headers, codecs, transactions, compaction, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.spark.land import land
from consumerd.spark.reconcile import reconcile
from consumerd.spark.reconcile_result import PartitionCheck, ReconcileResult
from consumerd.spark.refine import refine
from consumerd.spark.spec import PipelineSpec, parse_spark
from consumerd.spark.tables import open_table
from tests.spark.test_spark_docs import run
from tests.support.kafka import KafkaBroker
from tests.support.lake_tables import change_batch

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
Sent = dict[tuple[str, int, int], tuple[bytes | None, bytes | None]]
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "1500",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}


class Topics:
    """Two topics: `events` with two partitions, and `keyed`, which is compacted; `sent` is what was committed there."""

    def __init__(self, address: str) -> None:
        self.sent: Sent = {}
        self._servers: dict[str, Any] = {"bootstrap.servers": address}
        admin = AdminClient(self._servers)
        topics = [NewTopic("events", 2, 1), NewTopic("keyed", 1, 1, config=COMPACTED)]
        for made in admin.create_topics(topics).values():
            made.result(60)

    def produce(self, topic: str, count: int, *, codec: str = "none", commit: bool | None = None) -> None:
        """`commit`: what becomes of the transaction; without one if None."""
        transaction = {} if commit is None else {"transactional.id": f"{topic}-{codec}"}
        # Without numbers of the producer, a batch whose answer is missing would be stored twice.
        settings = {"enable.idempotence": True, "compression.type": codec, "linger.ms": 5, "batch.num.messages": 10}
        producer = Producer({**self._servers, **settings, **transaction})
        if commit is not None:
            producer.init_transactions(60)
            producer.begin_transaction()

        def delivered(error: object, message: Any) -> None:
            assert error is None
            if commit is not False:
                self.sent[message.topic(), message.partition(), message.offset()] = message.key(), message.value()

        for number in range(count):
            value = json.dumps({"id": number, "codec": codec}).encode() if number % 10 else b"\xff no json"
            producer.produce(
                topic, value, b"key %d" % (number % 7), 0 if topic == "keyed" else number % 2,
                headers=[("codec", codec.encode()), ("none", None)] if number % 3 else None,
                on_delivery=delivered,
            )  # fmt: skip
        assert producer.flush(60) == 0
        if commit is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)(60)

    def kept(self, topic: str, partition: int) -> set[int]:
        """The offsets that a consumer of another implementation finds now."""
        consumer = Consumer({
            **self._servers, "group.id": "looking", "enable.partition.eof": True, "isolation.level": "read_committed",
        })  # fmt: skip
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: set[int] = set()
        while (message := consumer.poll(30)) is not None:
            if message.error() is not None:
                break
            found.add(int(message.offset() or 0))
        consumer.close()
        return found

    def compact(self, broker: KafkaBroker) -> set[int]:
        """Give the keys of `keyed` new values, and wait until old ones are compacted; returns the remaining offsets."""
        self.produce("keyed", 120)  # the active segment keeps 30 at most, and those before one for each of 7 keys
        asyncio.run(broker.wait_compacted("keyed-0"))
        sent = {offset for topic, _, offset in self.sent if topic == "keyed"}
        kept = self.kept("keyed", 0)
        assert kept <= sent
        assert len(kept) < len(sent) / 2
        return kept


def declared(root: Path, broker: KafkaBroker, **source: Any) -> PipelineSpec:
    table = {
        "source": {
            "bootstrap": broker.address,
            "subscribe": "events,keyed",
            "kafka.isolation.level": "read_committed",
            "includeHeaders": True,
            "maxOffsetsPerTrigger": 250,
            "maxRecordsPerPartition": 70,
            **source,
        },
        "refine": {"fields": {"id": "bigint not null", "codec": "string"}},
    }
    return parse_spark({"spark": {"root": str(root / "lake"), "pipelines": {"p": table}}}, "test").pipeline("p")


def check(result: ReconcileResult, topic: str) -> PartitionCheck:
    return next(each for each in result.partitions if (each.topic, each.broker_partition) == (topic, "0"))


def rewrite(spark: SparkSession, path: str, expression: str, column: str = "value") -> None:
    """Give a column of a table's first batch other values; rows where that is null go."""

    def change(rows: DataFrame) -> DataFrame:
        return rows.withColumn(column, F.expr(expression)).where(F.col(column).isNotNull())

    change_batch(spark, path, change)


def test_lands_refines_and_reconciles_topics_of_kafka(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = Topics(broker.address)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        topics.produce("events", 40, codec=codec)
    topics.produce("events", 30, codec="lz4", commit=True)
    topics.produce("events", 30, codec="lz4", commit=False)
    kept = topics.compact(broker)
    pipeline = declared(tmp_path, broker)
    first = land(spark, pipeline)
    assert first.batches >= 2
    topics.produce("events", 30, codec="gzip", commit=True)
    second = land(spark, pipeline)
    refine(spark, pipeline)
    bronze = open_table(spark, pipeline.bronze)
    rows = bronze.read().collect()
    expected = {place: sent for place, sent in topics.sent.items() if place[0] == "events" or place[2] in kept}
    assert len(rows) == first.rows + second.rows == len(expected)
    assert {
        (row["topic"], row["partition"], row["offset"]): (bytes(row["key"]), bytes(row["value"])) for row in rows
    } == expected
    assert {row["codec"] for row in rows if row["topic"] == "events"} == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert all(row["timestamp"] is not None and row["timestampType"] == 0 for row in rows)
    assert {tuple(each["key"] for each in row["headers"] or ()) for row in rows} == {(), ("codec", "none")}
    clean = reconcile(spark, pipeline)
    assert (clean.is_clean, clean.gaps, clean.duplicates) == (True, 0, 0)
    assert clean.rows_refined + clean.rows_quarantined == clean.rows_landed == len(expected)
    assert all(each.expected == each.landed and each.same_hash for each in clean.partitions)
    assert check(clean, "events").empty.count >= 2, "markers and an aborted transaction"

    # Messages that are compacted away after they were landed, one that is lost, and one whose key is another one.
    topics.compact(broker)
    lost = min(place[2] for place in expected if place[:2] == ("events", 0))
    altered = min(place[2] for place in expected if place[:2] == ("events", 1))
    rewrite(spark, pipeline.bronze, f"IF(topic = 'events' AND partition = 0 AND offset = {lost}, NULL, value)")
    there = f"topic = 'events' AND partition = 1 AND offset = {altered}"
    rewrite(spark, pipeline.bronze, f"IF({there}, CAST('other' AS binary), key)", "key")
    wrong = reconcile(spark, pipeline)
    assert [str(each) for each in check(wrong, "events").gaps.first] == [f"[{lost}, {lost + 1})"]
    other = next(each for each in wrong.partitions if (each.topic, each.broker_partition) == ("events", "1"))
    assert [str(each) for each in other.altered.first] == [f"[{altered}, {altered + 1})"]
    keyed = check(wrong, "keyed")
    assert (keyed.is_clean, keyed.same_hash, keyed.compacted.count > 0) == (True, None, True)
    assert wrong.gaps == 1

    # The page's own example.
    run("kafka.py", **{"kafka1:9092,kafka2:9092": broker.address, '"clicks"': '"events"'})
    counted = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("|")][1:]
    total = sum(int(count) for _, _, count in counted)
    assert total == len([place for place in topics.sent if place[0] == "events"])

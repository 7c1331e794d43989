"""A topic of a real Kafka that is deleted and created again between two runs of a pipeline on the same checkpoint."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import KafkaException, NewTopic

from consumerd.embedded import MissingRuntimeError
from consumerd.spark.aggregate import aggregate, current_windows
from consumerd.spark.land import land
from consumerd.spark.reconcile import reconcile
from consumerd.spark.refine import refine
from consumerd.spark.source.errors import DataLossError
from consumerd.spark.spec import parse_spark
from consumerd.spark.tables import open_table
from tests.support.kafka import RELEASES, KafkaBroker, kafka_jars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from consumerd.java import JavaRuntime
    from consumerd.spark.spec import PipelineSpec

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
#: librdkafka prints ids in base64, Kafka's own tools in the alphabet for URLs.
URL_SAFE = str.maketrans("+/", "-_")


@pytest.fixture
def broker(java: JavaRuntime, tmp_path: Path, missing: Callable[[str], NoReturn]) -> Iterator[KafkaBroker]:
    release = RELEASES["3.9.1"]
    try:
        jars = kafka_jars(release)
    except MissingRuntimeError as error:
        missing(str(error))
    made = KafkaBroker(tmp_path / "broker", release, None, java=java, jars=jars, broker_id=1)
    asyncio.run(made.start())
    yield made
    made.kill()


class Events:
    """The topic `events` with one partition."""

    def __init__(self, address: str) -> None:
        self._servers: dict[str, Any] = {"bootstrap.servers": address}
        self._admin = AdminClient(self._servers)
        self.id = self._create()

    def recreate(self) -> None:
        """Delete the topic and create another one of its name."""
        former = self.id
        for deleted in self._admin.delete_topics(["events"], operation_timeout=30).values():
            deleted.result(60)
        self.id = self._create()
        assert self.id != former

    def produce(self, log: str, count: int) -> None:
        producer = Producer({**self._servers, "linger.ms": 5})
        failed: list[object] = []
        for number in range(count):
            value = json.dumps({"id": number, "log": log, "at": 1_700_000_000_000}).encode()
            producer.produce("events", value, on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(60) == 0
        assert not failed

    def _create(self) -> str:
        end = time.monotonic() + 60
        while True:
            try:
                for made in self._admin.create_topics([NewTopic("events", 1, 1)]).values():
                    return str(made.result(60) or self._described())
            except KafkaException:
                if time.monotonic() > end:  # while the former topic is being deleted
                    raise
                time.sleep(0.2)

    def _described(self) -> str:
        (found,) = self._admin.describe_topics(TopicCollection(["events"])).values()
        return str(found.result(60).topic_id).translate(URL_SAFE)


def declared(root: Path, broker: KafkaBroker, **source: Any) -> PipelineSpec:
    table = {
        "source": {"bootstrap": broker.address, "subscribe": "events", "maxOffsetsPerTrigger": 120, **source},
        "refine": {
            "fields": {"id": "bigint not null", "log": "string", "at": "timestamp_ms"},
            "event_time": "at",
        },
        "aggregate": {"window": "1 minute", "watermark": "1 minute", "group_by": ["log"]},
    }
    return parse_spark({"spark": {"root": str(root / "lake"), "pipelines": {"p": table}}}, "test").pipeline("p")


def test_a_topic_that_was_created_again_is_data_loss_or_lands_whole(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    events = Events(broker.address)
    strict, lenient = declared(tmp_path, broker), declared(tmp_path, broker, failOnDataLoss=False)
    events.produce("former", 200)
    assert land(spark, strict).rows == 200
    refine(spark, strict)
    assert reconcile(spark, strict).is_clean
    former = events.id
    events.recreate()
    events.produce("new", 300)

    with pytest.raises(DataLossError) as caught:
        land(spark, strict)
    said = str(caught.value)
    assert "events/0" in said
    assert former in said
    assert events.id in said
    assert "up to 200" in said
    assert "failOnDataLoss" in said

    assert land(spark, lenient).rows == 300
    bronze = open_table(spark, lenient.bronze).read()
    found = {(row["topic_id"], row["offset"]): json.loads(row["value"]) for row in bronze.collect()}
    assert {(topic_id, offset, value["log"]) for (topic_id, offset), value in found.items()} == {
        *((former, offset, "former") for offset in range(200)),
        *((events.id, offset, "new") for offset in range(300)),
    }
    refined = refine(spark, lenient)
    assert (refined.rows_silver, refined.duplicates) == (300, 0)
    silver = open_table(spark, lenient.silver).read().groupBy("topic_id", "log").count().collect()
    assert {tuple(row) for row in silver} == {(former, "former", 200), (events.id, "new", 300)}
    aggregate(spark, lenient)
    windows = current_windows(spark, lenient).select("log", "count").collect()
    assert {tuple(row) for row in windows} == {("former", 200), ("new", 300)}
    result = reconcile(spark, lenient)
    assert result.is_clean, result.as_json()
    named = {each.broker_partition: (each.landed, each.refined) for each in result.partitions}
    assert named == {f"0@{former}": (200, 200), "0": (300, 300)}
    assert reconcile(spark, lenient, shallow=True).is_clean

    # The pipeline knows the new log now, so it is strict again.
    events.produce("new", 10)
    assert land(spark, strict).rows == 10

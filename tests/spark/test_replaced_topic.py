"""A topic of a real Kafka that is deleted and created again between two runs of a pipeline on the same checkpoint."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer

from consumerd.spark.aggregate import aggregate, current_windows
from consumerd.spark.beginning import begin
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.data_file import DataFileWriter
from consumerd.spark.land import land
from consumerd.spark.reconcile import reconcile
from consumerd.spark.refine import refine
from consumerd.spark.source.errors import DataLossError
from consumerd.spark.spec import PipelineSpec, parse_spark
from consumerd.spark.tables import open_table
from consumerd.wire.v08.records import encode_record_batch
from tests.support.kafka import KafkaBroker
from tests.support.topics import create_topic, recreate_topic, topic_id
from tests.unit.spark.source.v08.fake_broker import V08Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


class Events:
    """The topic `events` with one partition."""

    def __init__(self, address: str) -> None:
        self._address = address
        create_topic(address, "events")
        self.id = topic_id(address, "events")

    def recreate(self) -> None:
        recreate_topic(self._address, "events")
        former, self.id = self.id, topic_id(self._address, "events")
        assert self.id != former

    def produce(self, log: str, count: int, *, transaction: bool = False) -> None:
        """In a transaction, the end of which takes an offset."""
        named = {"transactional.id": log} if transaction else {}
        producer = Producer({"bootstrap.servers": self._address, "linger.ms": 5, **named})
        if transaction:
            producer.init_transactions(60)
            producer.begin_transaction()
        failed: list[object] = []
        for number in range(count):
            value = json.dumps({"id": number, "log": log, "at": 1_700_000_000_000}).encode()
            producer.produce("events", value, on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(60) == 0
        assert not failed
        if transaction:
            producer.commit_transaction(60)


def declared(root: Path, broker: KafkaBroker | V08Broker, **source: Any) -> PipelineSpec:
    table = {
        "source": {
            "bootstrap": f"127.0.0.1:{broker.port}",
            "subscribe": "events",
            "maxOffsetsPerTrigger": 120,
            **source,
        },
        "refine": {
            "fields": {"id": "bigint not null", "log": "string", "at": "timestamp_ms"},
            "event_time": "at",
        },
        "aggregate": {"window": "1 minute", "watermark": "1 minute", "group_by": ["log"]},
    }
    document = {"spark": {"root": str(root / "lake"), "pipelines": {"p": table}}}
    return parse_spark(document, "test").pipeline("p")


def test_a_topic_that_was_created_again_is_data_loss_or_lands_whole(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    events = Events(broker.address)
    strict, lenient = declared(tmp_path, broker), declared(tmp_path, broker, failOnDataLoss=False)
    events.produce("former", 200, transaction=True)
    assert land(spark, strict).rows == 200
    refine(spark, strict)
    assert reconcile(spark, strict).is_clean, "which proves that offset 200 has no message"
    former = events.id
    events.recreate()
    events.produce("new", 300)

    with pytest.raises(DataLossError) as caught:
        land(spark, strict)
    said = str(caught.value)
    assert "events/0" in said
    assert former in said
    assert events.id in said
    assert "up to 201" in said
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


def forget_logs(pipeline: PipelineSpec) -> None:
    """Make a pipeline one of an earlier release, which knew nothing of logs: neither its checkpoint nor its table."""
    checkpoint, bronze = Path(pipeline.checkpoint("land")), Path(pipeline.bronze)
    for path in [*(checkpoint / "offsets").glob("[0-9]*"), checkpoint / "began.json"]:
        path.write_text(re.sub(r'{"offset": ?(\d+),[^}]+}', r"\1", path.read_text()))
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        assert "topic_id" not in path.read_text()
    table = open_lake_table(pipeline.bronze)
    (batches,), writer, rows = table.batches(), table.owner(), table.dataset().to_table()
    rows = rows.drop(["topic_id", "leader_epoch"])
    assert writer is not None
    shutil.rmtree(bronze)
    for batch in batches:
        with DataFileWriter(pipeline.bronze, rows.schema) as file:
            for each in rows.filter(pc.field("batch") == batch).to_batches():
                file.write(each)
            written = file.close()
        table = open_lake_table(pipeline.bronze)
        table.commit([written] if written else [], writer=writer, batch=batch, schema=rows.schema)


@pytest.mark.long  # every day: tests/unit/spark/source/test_replaced_logs.py, with the offsets of such a checkpoint
def test_a_pipeline_of_an_earlier_release_takes_up_its_log(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    events = Events(broker.address)
    strict, lenient = (declared(tmp_path, broker, failOnDataLoss=fails) for fails in (True, False))
    events.produce("former", 200)
    land(spark, strict)
    forget_logs(strict)
    refine(spark, strict)
    events.produce("former", 100)
    assert land(spark, strict).rows == 100
    assert refine(spark, strict).rows_silver == 100
    result = reconcile(spark, strict)
    assert result.is_clean, result.as_json()
    assert [(each.broker_partition, each.landed) for each in result.partitions] == [("0", 300)]
    former = events.id
    events.recreate()
    events.produce("new", 150)
    with pytest.raises(DataLossError, match=f"events/0 was read up to 300 in the log with topic id {former}"):
        land(spark, strict)
    assert land(spark, lenient).rows == 150
    assert refine(spark, lenient).rows_silver == 150
    result = reconcile(spark, lenient)
    assert result.is_clean, result.as_json()
    assert {each.broker_partition: (each.landed, each.refined) for each in result.partitions} == {
        f"0@{former}": (300, 300),
        "0": (150, 150),
    }


def test_a_topic_that_was_created_again_before_the_first_batch(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    events = Events(broker.address)
    strict, lenient = declared(tmp_path, broker), declared(tmp_path, broker, failOnDataLoss=False)
    events.produce("former", 200)
    asked = begin(spark, strict, {**strict.source, "startingOffsets": '{"events": {"0": 50}}'})
    fixed = {"offset": 50, "topic_id": events.id, "leader_epoch": 0}
    assert json.loads(asked["startingOffsets"]) == {"events": {"0": fixed}}
    former = events.id
    events.recreate()
    events.produce("new", 300)
    with pytest.raises(DataLossError, match=f"events/0 was to be landed from 50 in the log with topic id {former}"):
        land(spark, strict)
    assert land(spark, lenient).rows == 300
    result = reconcile(spark, lenient)
    assert result.is_clean, result.as_json()
    assert [(each.broker_partition, each.start, each.landed) for each in result.partitions] == [("0", 0, 300)]


class ElectedLog:
    """Partition 0 of `events` at a broker in memory: of each message the leader epoch, and the name of its log."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, str]] = []
        self.broker = V08Broker(self._answer, last=0, ids=(b"0123456789abcdef",))

    def produce(self, epoch: int, name: str, count: int) -> None:
        self.messages += [(epoch, name)] * count
        epochs = [epoch for epoch, _ in self.messages]
        self.broker.epochs = [(each, epochs.index(each)) for each in sorted(set(epochs))]
        self.broker.last = len(epochs)

    def elect_one_that_has(self, count: int) -> None:
        del self.messages[count:]

    def _answer(self, _: int, body: dict[str, Any]) -> dict[str, Any]:
        start = body["topics"][0]["partitions"][0]["fetch_offset"]
        values = ((offset, *self.messages[offset]) for offset in range(start, len(self.messages)))
        data = b"".join(
            encode_record_batch(
                [json.dumps({"id": offset, "log": name, "at": 1_700_000_000_000}).encode()],
                base_offset=offset,
                leader_epoch=epoch,
            )
            for offset, epoch, name in values
        )
        part = {"partition_index": 0, "error_code": 0, "high_watermark": len(self.messages), "records": data}
        return {"responses": [{"topic": "events", "partitions": [part]}]}


@pytest.mark.long  # every day: its parts, and tests/unit/spark/source/v08/test_epochs.py
def test_messages_after_an_unclean_election_are_data_loss_or_land_under_identities_of_their_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = ElectedLog()
    with log.broker as broker:
        strict, lenient = declared(tmp_path, broker), declared(tmp_path, broker, failOnDataLoss=False)
        log.produce(3, "former", 100)
        assert land(spark, strict).rows == 100
        refine(spark, strict)
        assert reconcile(spark, strict).is_clean
        log.elect_one_that_has(60)
        log.produce(5, "new", 150)

        with pytest.raises(
            DataLossError, match="events/0 was read up to 100 in leader epoch 3, and the log was cut off"
        ):
            land(spark, strict)
        assert land(spark, lenient).rows == 150
        rows = open_table(spark, lenient.bronze).read().collect()
        found = sorted((row["leader_epoch"], row["offset"], json.loads(row["value"])["log"]) for row in rows)
        former = [(3, offset, "former") for offset in range(100)]
        assert found == former + [(5, offset, "new") for offset in range(60, 210)]
        refined = refine(spark, lenient)
        assert (refined.rows_silver, refined.duplicates) == (150, 0)
        result = reconcile(spark, lenient)
        assert result.is_clean, result.as_json()
        (topic_id,) = {row["topic_id"] for row in rows}
        named = {each.broker_partition: (each.landed, each.refined) for each in result.partitions}
        assert named == {"0": (210, 210), f"0@{topic_id}:3:100": (40, 40)}

        # The pipeline knows the new log now, so it is strict again.
        log.produce(5, "new", 10)
        assert land(spark, strict).rows == 10


def test_a_log_that_was_cut_off_before_the_first_batch(spark: SparkSession, tmp_path: Path) -> None:
    log = ElectedLog()
    with log.broker as broker:
        strict, lenient = declared(tmp_path, broker), declared(tmp_path, broker, failOnDataLoss=False)

        def start(pipeline: PipelineSpec) -> Any:
            asked = begin(spark, pipeline, {**pipeline.source, "startingOffsets": "latest"})
            return json.loads(asked["startingOffsets"])["events"]["0"]

        log.produce(3, "former", 100)
        begun = start(strict)
        assert (begun["offset"], begun["leader_epoch"]) == (100, 3)
        log.elect_one_that_has(60)
        log.produce(5, "new", 150)
        with pytest.raises(
            DataLossError, match="events/0 was to be landed from 100 in leader epoch 3, and the log was"
        ):
            start(strict)
        assert start(lenient) == begun | {"offset": 60}
        assert start(strict) == begun | {"offset": 60}, "it is fixed again"

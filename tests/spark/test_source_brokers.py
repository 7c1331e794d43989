"""The data source on live brokers, found in ZooKeeper: what was produced is what is read."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from consumerd.spark.source.v07.commits import ZooKeeperCommitter
from consumerd.testing.brokers import LoopbackBroker
from consumerd.testing.plugin import BrokerFactory
from consumerd.wire.compression import Codec

Rows = list[tuple[str, str, int, int, bytes]]
COLUMNS = ("topic", "broker_partition", "offset", "index", "value")


@pytest.fixture
def brokers(consumerd_broker_factory: BrokerFactory, zk_root: str) -> list[LoopbackBroker]:
    """Two brokers with two partitions each and many small segments."""
    settings: dict[str, str | int] = {"log.file.size": 4000}
    return [
        consumerd_broker_factory(broker_id=number, partitions=2, zookeeper=zk_root, settings=settings)
        for number in (0, 3)
    ]


def produce(brokers: Iterable[LoopbackBroker], topic: str, *, sets: int = 6) -> None:
    rng = random.Random(topic)
    for broker in brokers:
        for partition in (0, 1):
            for _ in range(sets):
                payloads = [rng.randbytes(rng.randint(0, 300)) for _ in range(8)]
                broker.produce(topic, payloads, partition=partition, codec=rng.choice(list(Codec)))


def stored(brokers: Iterable[LoopbackBroker], *topics: str) -> Rows:
    found = [message for broker in brokers for topic in topics for message in broker.messages(topic)]
    return sorted((each.partition.topic, each.partition.name, each.offset, each.index, each.payload) for each in found)


def rows_of(frame: DataFrame) -> Rows:
    return sorted((*row[:4], bytes(row[4])) for row in frame.select(*COLUMNS).collect())


def committed(zookeeper: str, group: str) -> dict[str, Any]:
    """The output of `consumerd group lag`."""
    command = [sys.executable, "-m", "consumerd", "group", "lag", "--zookeeper", zookeeper, "--group", group, "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    return found


def test_batch_reads_what_was_produced(spark: SparkSession, brokers: list[LoopbackBroker], zk_root: str) -> None:
    produce(brokers, "clicks", sets=4)
    produce(brokers[1:], "views", sets=1)
    source = {"zookeeper": zk_root, "maxSplitBytes": "3k"}
    both = spark.read.format("consumerd").options(**source, subscribePattern="clicks|v.*s").load()
    assert rows_of(both) == stored(brokers, "clicks", "views")

    end = brokers[0].end("clicks", 1)
    listed = {
        "brokers": f"0={brokers[0].address}",
        "assign": '{"clicks": ["0-1"]}',
        "startingOffsets": '{"clicks": {"0-1": -2}}',
        "endingOffsets": json.dumps({"clicks": {"0-1": end}}),
    }
    alone = spark.read.format("consumerd").options(**listed).load()
    assert rows_of(alone) == [row for row in stored(brokers, "clicks") if row[1] == "0-1"]


def test_stream_reads_everything_once_and_commits_offsets_for_lag_tools(
    spark: SparkSession, brokers: list[LoopbackBroker], zk_root: str, tmp_path: Path
) -> None:
    def run(**options: str) -> list[int]:
        """Rows of each batch with any."""
        given = {"zookeeper": zk_root, "subscribe": "clicks", "startingOffsets": "earliest", **options}
        query = (
            spark.readStream.format("consumerd").options(**given).load().select(*COLUMNS)
            .writeStream.format("parquet").option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return [rows for each in query.recentProgress if (rows := json.loads(each.json)["numInputRows"])]

    produce(brokers, "clicks")
    total = sum(broker.end("clicks", partition) for broker in brokers for partition in (0, 1))
    assert len(run(maxBytesPerTrigger=str(total // 3), groupId="lag", commitOffsets="true")) >= 3
    behind = committed(zk_root, "lag")["total"]
    assert 0 < behind < total

    last = max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    assert ZooKeeperCommitter(zk_root, "lag").commit(json.loads(last.read_text().splitlines()[-1])) > 0
    found = committed(zk_root, "lag")
    assert found["total"] == 0
    assert {each["committed"] for each in found["partitions"].values()} == {
        broker.end("clicks", partition) for broker in brokers for partition in (0, 1)
    }
    produce(brokers[:1], "clicks")
    assert len(run()) == 1
    assert rows_of(spark.read.parquet(str(tmp_path / "out"))) == stored(brokers, "clicks")

    brokers[0].stop()
    first = sorted((brokers[0].log_directory / "clicks-0").glob("*.kafka"))[:2]
    kept = stored(brokers, "clicks")
    for path in first:
        path.unlink()
    brokers[0].start()
    offsets = json.dumps({"clicks": {"0-0": 0, "0-1": -1, "3-0": -1, "3-1": -1}})
    trimmed = {"zookeeper": zk_root, "subscribe": "clicks", "startingOffsets": offsets}
    with pytest.raises(AnalysisException, match="DataLossError: startingOffsets names offset 0 of clicks/0-0, whose"):
        spark.read.format("consumerd").options(**trimmed).load().collect()
    rest = spark.read.format("consumerd").options(**trimmed, failOnDataLoss="false").load()
    assert rows_of(rest) == [row for row in stored(brokers, "clicks") if row[1] == "0-0"]
    assert len(rest.collect()) < len([row for row in kept if row[1] == "0-0"])


def test_stream_refuses_a_group_that_is_in_use(
    spark: SparkSession, brokers: list[LoopbackBroker], zk_root: str, tmp_path: Path
) -> None:
    produce(brokers[:1], "clicks", sets=1)
    options = {"zookeeper": zk_root, "subscribe": "clicks", "commitOffsets": "true", "groupId": "theirs"}
    command = [sys.executable, "-m", "consumerd", "consume", "--zookeeper", zk_root, "--topic", "clicks", "--group"]
    with subprocess.Popen([*command, "theirs"], stdout=subprocess.PIPE) as member:
        assert member.stdout is not None
        try:
            member.stdout.readline()
            query = (
                spark.readStream.format("consumerd").options(**options).load()
                .writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
            )  # fmt: skip
            with pytest.raises(StreamingQueryException, match="RefusedError: the group theirs is in use"):
                query.awaitTermination(60)
        finally:
            member.kill()

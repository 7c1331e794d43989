"""The real 0.7.2's logs through Spark: what its own classes made of them, wrappers included, however they are split."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

CODECS = {"NoCompressionCodec": "none", "GZIPCompressionCodec": "gzip", "SnappyCompressionCodec": "snappy"}


@pytest.fixture
def logs(golden: Path) -> Path:
    return golden / "kafka-0.7.2" / "logs"


def read(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("consumerd").options(path=str(path), broker=0, subscribePattern=".*", **options).load()


def dumped(logs: Path, name: str) -> dict[str, tuple[list[tuple[int, str]], dict[int, Any]]]:
    """By the partition's folder: what the real consumer saw (position to commit, payload), outer messages by offset."""
    found: dict[str, tuple[list[tuple[int, str]], dict[int, Any]]] = defaultdict(lambda: ([], {}))
    for file, seen in sorted(json.loads((logs / f"{name}.dump.json").read_text()).items()):
        leaves, shallow = found[file.split("/")[0]]
        leaves += [(leaf["offset_reported"], leaf["payload_hex"]) for leaf in seen["consumer_view"]]
        shallow |= {outer["offset"]: outer for outer in seen["shallow"]}
    return {folder: seen for folder, seen in found.items() if seen[0]}


@pytest.mark.parametrize(("name", "max_split_bytes"), [("producer-mix", "2000"), ("wire-broker", "64m")])
def test_reads_recorded_logs_as_the_real_consumer_does(
    spark: SparkSession, logs: Path, name: str, max_split_bytes: str
) -> None:
    expected = dumped(logs, name)
    frame = read(spark, logs / name, maxSplitBytes=max_split_bytes)
    by_folder = defaultdict(list)
    for row in frame.orderBy("topic", "broker_partition", "offset", "index").collect():
        by_folder[f"{row.topic}-{row.partition}"].append(row)
    assert by_folder.keys() == expected.keys()
    for folder, rows in by_folder.items():
        leaves, shallow = expected[folder]
        assert [(row.next_offset, row.value.hex()) for row in rows] == leaves, folder
        for number, row in enumerate(rows):
            first = next(at for at, each in enumerate(rows) if each.offset == row.offset)
            assert row["index"] == number - first
            assert row.codec == CODECS[shallow[row.offset]["codec"]]
            assert (row.broker, row.broker_partition) == (0, f"0-{row.partition}")
            assert (row.crc_ok, row._corrupt) == (True, None)
            assert (row.key, row.timestamp, row.timestampType) == (None, None, None)
    if max_split_bytes == "2000":
        assert frame.rdd.getNumPartitions() > len(json.loads((logs / f"{name}.dump.json").read_text()))


def test_loses_only_the_damaged_part_of_a_log(spark: SparkSession, logs: Path) -> None:
    """The flaws are where the real broker's recovery cut, and what it kept is what we read before them."""
    before, after = logs / "recovery-before" / "log", logs / "recovery-after" / "log"
    flaws = {
        (row.topic, row.offset, row.next_offset): row
        for row in read(spark, before, failOnDataLoss=False).where("not crc_ok").collect()
    }
    assert {key for key in flaws if key[0] not in {"torn-header", "torn3"}} == {
        ("badcrc-mid", 8942, 9115),
        ("badcrc-older", 0, 23),
        ("garbage", 11169, 11224),
        ("zeros", 11169, 11269),
    }
    assert all(row._corrupt and (row.value is None) == ("badcrc" not in row.topic) for row in flaws.values())
    whole = (
        read(spark, before, failOnDataLoss=False, mode="DROPMALFORMED").groupBy("topic").agg(sql.count("*").alias("n"))
    )
    kept = (
        read(spark, after, failOnDataLoss=False, mode="DROPMALFORMED").groupBy("topic").agg(sql.count("*").alias("n"))
    )
    counts = {row.topic: row.n for row in whole.collect()}
    recovered = {row.topic: row.n for row in kept.collect()}
    assert recovered.keys() == counts.keys()
    assert all(counts[topic] >= count for topic, count in recovered.items())
    # Recovery loses the messages after a corrupt one, too; we continue after it.
    assert {topic for topic, count in recovered.items() if counts[topic] > count} == {"badcrc-mid"}

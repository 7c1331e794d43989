"""The data source on directories of segments: what was written is what is read, in batches and in streams."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from consumerd.wire.v07 import Codec, encode_message_set

Rows = list[tuple[int, int, int, bytes]]


class Archive:
    """Segments of a topic `t` in a folder, and what is in them: (partition, offset, index, value)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: Rows = []
        self.ends: dict[int, int] = {}
        self._random = random.Random(7)

    def add_segment(self, partition: int, size: int = 20_000, topic: str = "t") -> Path:
        """A segment with sets of all codecs, where the last one ended."""
        path = self.folder / f"{topic}-{partition}" / f"{self.ends.get(partition, 0):020d}.kafka"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        self.grow(path, partition, size)
        return path

    def grow(self, path: Path, partition: int, size: int) -> None:
        start = end = self.ends.get(partition, 0)
        with path.open("ab") as file:
            while end - start < size:
                payloads = [self._random.randbytes(self._random.randint(0, 200)) for _ in range(7)]
                codec = self._random.choice(list(Codec))
                data = encode_message_set(payloads, codec=codec)
                at = end
                for index, payload in enumerate(payloads):
                    self.rows.append((partition, at, 0 if codec is Codec.NONE else index, payload))
                    at += 10 + len(payload) if codec is Codec.NONE else 0
                file.write(data)
                end += len(data)
        self.ends[partition] = end


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "logs")


def batch(spark: SparkSession, archive: Archive, **options: Any) -> DataFrame:
    return spark.read.format("consumerd").options(path=str(archive.folder), **{"subscribe": "t", **options}).load()


def rows_of(frame: DataFrame) -> Rows:
    return rows_and_tasks(frame)[0]


def rows_and_tasks(frame: DataFrame) -> tuple[Rows, int]:
    """The rows, and how many tasks had any."""
    found = frame.select("partition", "offset", "index", "value", F.spark_partition_id()).collect()
    return sorted((row[0], row[1], row[2], bytes(row[3])) for row in found), len({row[4] for row in found})


def test_batch_reads_each_message_once_with_any_splits(spark: SparkSession, archive: Archive) -> None:
    for partition in (0, 1):
        for _ in range(2):
            archive.add_segment(partition, 16_000)
    assert rows_and_tasks(batch(spark, archive)) == (sorted(archive.rows), 4)
    cut = batch(spark, archive, maxSplitBytes="6k")
    rows, tasks = rows_and_tasks(cut)
    assert rows == sorted(archive.rows)
    assert tasks >= 11

    middle = sorted(row[1] for row in archive.rows if row[0] == 1)[len(archive.rows) // 4]
    filtered = cut.filter(f"topic = 't' AND partition = 1 AND offset >= {middle}")
    wanted = sorted(row for row in archive.rows if row[0] == 1 and row[1] >= middle)
    rows, tasks = rows_and_tasks(filtered)
    assert rows == wanted
    assert filtered.rdd.getNumPartitions() == tasks, "the others are not even started"

    starts = json.dumps({"t": {"0": -1, "1": middle}})
    assert rows_and_tasks(batch(spark, archive, startingOffsets=starts, minPartitions=5))[0] == wanted
    few = (
        spark.newSession().read.format("consumerd").schema("offset bigint, index int")
    )  # which finds the format itself
    assert few.options(path=str(archive.folder), subscribe="t").load().count() == len(archive.rows)


def test_error_ends_with_the_invalid_option(spark: SparkSession, archive: Archive) -> None:
    archive.add_segment(0)
    wrong = {
        "unknown option subscribed, did you mean 'subscribe'?": {"subscribed": "t"},
        "option mode must be one of PERMISSIVE, DROPMALFORMED, FAILFAST, not 'PERMISIVE'": {"mode": "PERMISIVE"},
        "topic tt does not exist, did you mean 't'?": {"subscribe": "t,tt"},
        "option startingOffsets names 1 of t/0, where no message begins; the message around it begins at 0": {
            "startingOffsets": '{"t": {"0": 1}}'
        },
        "option maxBytesPerTrigger is not supported in a batch; remove it": {"maxBytesPerTrigger": "1m"},
    }
    for sentence, options in wrong.items():
        with pytest.raises(AnalysisException) as failure:
            batch(spark, archive, **options).collect()
        lines = [line for line in str(failure.value).splitlines() if "Error: " in line]
        assert lines[-1].endswith(f"Error: {sentence}")


def test_stream_continues_from_its_checkpoint_and_sees_growth(
    spark: SparkSession, archive: Archive, tmp_path: Path
) -> None:
    source = {"path": str(archive.folder), "subscribePattern": "[s-u]", "startingOffsets": "earliest"}
    ends: list[dict[str, dict[str, int]]] = []

    def run(**more: str) -> int:
        """Everything that is there; returns the number of batches with rows."""
        stream = spark.readStream.format("consumerd").options(**source, **more).load()
        query = (
            stream.select("partition", "offset", "index", "value")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        progress = [json.loads(each.json) for each in query.recentProgress]
        ends.append(json.loads(json.dumps(progress[-1]["sources"][0]["endOffset"])))
        return sum(each["numInputRows"] > 0 for each in progress)

    paths = [archive.add_segment(partition, 12_000) for partition in (0, 1)]
    assert run(maxBytesPerTrigger="8k") >= 3
    assert run() == 0
    torn = paths[0].stat().st_size
    archive.grow(paths[0], 0, 1000)
    whole = paths[0].read_bytes()
    paths[0].write_bytes(whole[: torn + 5])  # another process is writing
    archive.add_segment(2)
    assert run() == 1
    assert ends[-1]["t"]["0"] == torn
    paths[0].write_bytes(whole)
    archive.add_segment(0)
    assert run(maxSplitBytes="4k") == 1
    assert ends[-1] == {"t": {str(partition): end for partition, end in archive.ends.items()}}
    assert rows_of(spark.read.parquet(str(tmp_path / "out"))) == sorted(archive.rows)

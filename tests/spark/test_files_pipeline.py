"""From what the daemon's `files` handler stored to silver, and whether it is all there, once."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch
from consumerd.handlers.builtin.files import FilesHandler
from consumerd.spark.land import land
from consumerd.spark.reconcile import reconcile
from consumerd.spark.reconcile_result import PartitionCheck, ReconcileResult
from consumerd.spark.refine import refine
from consumerd.spark.spec import PipelineSpec, parse_spark
from consumerd.spark.tables import open_table
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set
from tests.support.lake_tables import change_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BAD = {7, 30, 31, 80}


def value(number: int) -> bytes:
    return b"\xff\x00 no json" if number in BAD else json.dumps({"id": number, "text": 'a "quoted"\n'}).encode()


def log_of(seed: int, sets: int) -> bytes:
    numbers = iter(range(1000))
    return b"".join(
        encode_message_set(
            [value(next(numbers)) for _ in range(1 + (n + seed) % 3)],
            codec=(Codec.NONE, Codec.GZIP, Codec.SNAPPY)[n % 3],
        )
        for n in range(sets)
    )


LOGS = {TopicPartition("t", 0, 0): log_of(0, 40), TopicPartition("t", 3, 1): log_of(1, 25)}
IDENTITIES = {
    (partition.broker, partition.partition, message[0], message[1], message[3])
    for partition, log in LOGS.items()
    for message in decode_batch(log, 0).messages()
}


async def consume(directory: Path, share: float) -> None:
    """Store each log from its position up to this share, as the daemon does, in batches of any size."""
    rng = random.Random(share)
    handler = FilesHandler(directory)
    for partition, log in LOGS.items():
        position = await handler.position(partition) or 0
        while position < len(log) * share:
            batch = decode_batch(log[position : position + rng.randrange(300, 900)], position)
            await handler.handle(Batch(partition, batch))
            position = batch.next_offset
    await handler.stop()


def declared(root: Path, **source: str) -> PipelineSpec:
    table = {
        "source": {"files": str(root / "consumed"), "subscribe": "t"} | source,
        "refine": {"fields": {"id": "bigint not null"}},
    }
    return parse_spark({"spark": {"root": str(root / "lake"), "pipelines": {"p": table}}}, "test").pipeline("p")


def check(result: ReconcileResult, name: str) -> PartitionCheck:
    return next(each for each in result.partitions if each.broker_partition == name)


def rewrite(spark: SparkSession, path: str, condition: str) -> int:
    """Keep only rows of a table's first batch that meet a condition; how many went."""
    return change_batch(spark, path, lambda rows: rows.where(condition))


# Every day: the demo lands, refines and reconciles such files (tests/integration/test_demo.py), test_reconcile.py names
# each defect, and tests/unit/spark/source/files reads the files.
@pytest.mark.long
def test_lands_refines_and_reconciles_the_files_of_the_daemon(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = declared(tmp_path, maxBytesPerTrigger="4k")
    asyncio.run(consume(tmp_path / "consumed", 0.6))
    first = land(spark, pipeline)
    refine(spark, pipeline)
    asyncio.run(consume(tmp_path / "consumed", 1.0))
    second = land(spark, pipeline)
    ahead = reconcile(spark, pipeline, shallow=True)
    assert ahead.is_clean, "what refine has not come to is not missing"
    assert sum(each.pending for each in ahead.partitions) == second.rows > 0
    bronze = open_table(spark, pipeline.bronze)
    rows = bronze.read().select("broker", "partition", "offset", "index", "value").collect()
    assert len(rows) == len(IDENTITIES) == first.rows + second.rows
    assert {(*row[:4], bytes(row[4])) for row in rows} == IDENTITIES
    refined = refine(spark, pipeline)
    clean = reconcile(spark, pipeline)
    assert clean.is_clean
    assert (clean.rows_landed, clean.rows_refined + clean.rows_quarantined) == (len(IDENTITIES), len(IDENTITIES))
    assert clean.rows_quarantined == sum(identity[4] == value(7) for identity in IDENTITIES)
    assert not any(each.pending for each in clean.partitions)
    assert [(each.broker_partition, each.start, each.end) for each in clean.partitions] == [
        (partition.name, 0, len(log)) for partition, log in LOGS.items()
    ]
    assert all(each.expected == each.landed for each in clean.partitions)

    # In one partition a row of silver is lost, and a quarantined one is there twice. In the other one the beginning is
    # lost in bronze, and the file that it came from was deleted.
    victim = open_table(spark, pipeline.silver).read(to=0).where("broker = 0").orderBy("offset").first()
    assert victim is not None
    here = f"broker = 0 AND offset = {victim['offset']} AND index = {victim['index']}"
    assert rewrite(spark, pipeline.silver, f"NOT ({here})") == 1
    quarantine = open_table(spark, pipeline.quarantine)
    twice = quarantine.read().where("broker = 0").orderBy("offset").limit(1).localCheckpoint()
    writer = json.loads(Path(pipeline.checkpoint("refine"), "metadata").read_text())["id"]
    assert refined.last_batch is not None
    quarantine.append(twice, writer=writer, batch=refined.last_batch + 1)
    file = min((tmp_path / "consumed/t/3-1").glob("*.ndjson"))
    end = int(file.stem.partition("-")[2])
    file.unlink()
    gone = rewrite(spark, pipeline.bronze, f"NOT (broker = 3 AND offset < {end})")
    assert gone > 0
    wrong = reconcile(spark, pipeline)
    broken = check(wrong, "0-0")
    assert [(each.start, each.start_index) for each in broken.unrefined.first] == [(victim["offset"], victim["index"])]
    (again,) = twice.collect()
    assert [(each.start, each.start_index) for each in broken.surplus.first] == [(again["offset"], again["index"])]
    assert (broken.gaps.count, broken.unexpected.count, broken.same_hash) == (0, 0, True)
    lost = check(wrong, "3-1")
    assert [str(each) for each in lost.gaps.first] == [f"[0, {end})"]
    assert not lost.is_clean
    # With failOnDataLoss = false, the messages count as lost before they landed: nothing shows otherwise.
    lenient = check(reconcile(spark, declared(tmp_path, failOnDataLoss="false"), shallow=True), "3-1")
    assert [str(each) for each in lenient.trimmed.first] == [f"[0, {end})"]
    assert (lenient.gaps.count, lenient.is_clean) == (0, False)

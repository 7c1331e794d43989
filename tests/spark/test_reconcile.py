"""Reconcile names what is missing, twice or altered in a pipeline's tables, and says nothing of intact ones."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from consumerd.base.errors import NotFoundError
from consumerd.spark.land import land
from consumerd.spark.reconcile import reconcile
from consumerd.spark.reconcile_result import PartitionCheck, ReconcileResult
from consumerd.spark.spec import PipelineSpec
from consumerd.spark.tables import open_table
from consumerd.wire.compression import compress
from consumerd.wire.v07 import Codec, decode_batch, encode_message, encode_message_set
from tests.support.lake_tables import change_batch

#: An empty compressed message: a place in the log without a message.
EMPTY = encode_message(compress(Codec.GZIP, b""), codec=Codec.GZIP)


def write_log(root: Path, partition: int, sets: list[bytes]) -> list[tuple[int, int, int, bytes]]:
    """Two segments of these message sets; their messages as (offset, index, next_offset, payload)."""
    folder = root / f"t-{partition}"
    folder.mkdir(parents=True)
    middle = len(sets) // 2
    first = b"".join(sets[:middle])
    (folder / f"{0:020}.kafka").write_bytes(first)
    (folder / f"{len(first):020}.kafka").write_bytes(b"".join(sets[middle:]))
    return list(decode_batch(b"".join(sets), 0).messages())


def message_sets(seed: int, count: int) -> list[bytes]:
    rng = random.Random(seed)
    return [
        encode_message_set(
            [json.dumps({"id": 1000 * seed + n, "pad": "x" * rng.randrange(50)}).encode() for _ in range(1 + n % 3)],
            codec=(Codec.NONE, Codec.GZIP, Codec.SNAPPY)[n % 3],
        )
        for n in range(count)
    ]


@pytest.fixture
def logs(tmp_path: Path) -> dict[int, list[tuple[int, int, int, bytes]]]:
    sets = message_sets(1, 60)
    return {
        0: write_log(tmp_path / "logs", 0, [*sets[:20], EMPTY, *sets[20:]]),
        1: write_log(tmp_path / "logs", 1, message_sets(2, 40)),
        2: write_log(tmp_path / "logs", 2, message_sets(3, 20)),
    }


@pytest.fixture
def pipeline(tmp_path: Path, logs: object) -> PipelineSpec:
    source = {"path": str(tmp_path / "logs"), "broker": "0", "subscribe": "t", "maxBytesPerTrigger": "4000"}
    return PipelineSpec("p", str(tmp_path / "lake"), source)


def check(result: ReconcileResult, partition: int = 0) -> PartitionCheck:
    return next(each for each in result.partitions if each.broker_partition == f"0-{partition}")


def test_intact_tables_are_clean_and_every_defect_is_named(
    spark: SparkSession, pipeline: PipelineSpec, logs: dict[int, list[tuple[int, int, int, bytes]]]
) -> None:
    with pytest.raises(NotFoundError, match="run land first"):
        reconcile(spark, pipeline)
    landed = land(spark, pipeline)
    assert landed.batches > 1
    clean = reconcile(spark, pipeline)
    assert clean.is_clean
    for partition, messages in logs.items():
        found = check(clean, partition)
        assert (found.start, found.end) == (0, messages[-1][2])
        assert found.expected == found.landed == found.compared == len(messages)
        assert (found.missing, found.duplicates, found.same_hash) == (0, 0, True)
        assert found.empty.count == (partition == 0)
    # The hash is Spark's own.
    content = F.xxhash64("topic", "broker_partition", "offset", "index", "value").cast("decimal(38,0)")
    sums = open_table(spark, pipeline.bronze).read().groupBy("partition").agg(F.sum(content).alias("digest"))
    assert {row["partition"]: int(row["digest"]) % (1 << 64) for row in sums.collect()} == {
        partition: check(clean, partition).digest for partition in logs
    }
    (hole,) = check(clean).empty.first
    assert hole.end - hole.start == len(EMPTY)
    shallow = reconcile(spark, pipeline, shallow=True)
    assert shallow.is_clean
    assert check(shallow).empty == check(clean).empty
    assert check(shallow).expected is None

    # One leaf within a compressed message and all that is at a later offset in 0; a part of the first batch
    # again in 1; another value in 2.
    wrapper = next(message for message in logs[0] if message[1] == 1)
    whole = next(message for message in logs[0] if message[0] > wrapper[0] + 300 and message[0] < message[2])
    missing = 1 + sum(message[0] == whole[0] for message in logs[0])
    again = open_table(spark, pipeline.bronze).read(to=0).where("partition = 1 AND offset > 0").localCheckpoint()
    copied = again.count()
    assert copied > 2
    lost = F.expr(f"partition = 0 AND (offset = {whole[0]} OR offset = {wrapper[0]} AND index = 1)")
    altered = F.expr("partition = 2 AND offset = 0")
    change_batch(
        spark,
        pipeline.bronze,
        lambda rows: rows.where(~lost).withColumn("value", F.when(altered, F.lit(b"!")).otherwise(F.col("value"))),
    )
    query = json.loads((Path(pipeline.base) / "_checkpoints/land/metadata").read_text())["id"]
    assert landed.last_batch is not None
    open_table(spark, pipeline.bronze).append(again, writer=query, batch=landed.last_batch + 1)

    wrong = reconcile(spark, pipeline)
    assert not wrong.is_clean
    assert [str(stretch) for stretch in check(wrong).gaps.first] == [
        f"[{wrapper[0]}.1, {wrapper[0]}.2)" if wrapper[2] == wrapper[0] else f"[{wrapper[0]}.1, {wrapper[2]})",
        f"[{whole[0]}, {whole[2]})",
    ]
    assert (wrong.gaps, check(wrong).missing, check(wrong).duplicates) == (2, missing, 0)
    assert (check(wrong, 1).gaps.count, check(wrong, 1).duplicates) == (0, copied)
    assert (check(wrong, 2).gaps.count, check(wrong, 2).duplicates, check(wrong, 2).missing) == (0, 0, 0)
    assert [check(wrong, partition).same_hash for partition in logs] == [False, False, False]
    assert [check(wrong, partition).altered.count for partition in logs] == [0, 0, 1]
    (other,) = check(wrong, 2).altered.first
    assert (other.start, other.end) == (0, logs[2][0][2])
    shallow = reconcile(spark, pipeline, shallow=True)
    assert check(shallow).gaps == check(wrong).gaps
    assert check(shallow).empty == check(clean).empty
    assert [check(shallow, partition).is_clean for partition in logs] == [False, False, True]

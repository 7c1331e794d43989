"""Tables that are written without Spark have the rows that Spark computes: sums of xxhash64 over all columns agree."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import MapType

from consumerd.spark.lake.land import land
from consumerd.spark.lake.refine_step import refine
from consumerd.spark.lake.row_hash import content_hashes
from consumerd.spark.parsing import REASON, declared_fields, parse
from consumerd.spark.source.columns import IDENTITY
from consumerd.spark.spec import PipelineSpec
from consumerd.wire.v07 import encode_message_set
from tests.spark.test_decode import SPEC, generated
from tests.unit.spark.lake.test_land import InlinePool


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch) -> None:
    for step in ("land", "refine_step"):
        monkeypatch.setattr(f"consumerd.spark.lake.{step}.WorkerPool", InlinePool)


def files_of(table: str) -> list[str]:
    """The files of a Delta table, without our code."""
    return [uri.removeprefix("file://") for uri in DeltaTable(table).file_uris()]


def sums(frame: DataFrame, *columns: str) -> Any:
    """The number of rows, and the sum of their hashes over these columns."""

    def hashable(name: str) -> Column:
        return F.map_entries(name) if isinstance(frame.schema[name].dataType, MapType) else F.col(name)

    hashed = F.xxhash64(*map(hashable, columns)).cast("decimal(38,0)")
    return frame.agg(F.count(F.lit(1)), F.sum(hashed)).first()


def check_landed(spark: SparkSession, pipeline: PipelineSpec) -> DataFrame:
    """Land without Spark, compare with what Spark reads, and return the rows of bronze."""
    land(pipeline, workers=2)
    read = spark.read.format("consumerd").options(**pipeline.source).load()
    files = files_of(pipeline.bronze)
    bronze = spark.read.parquet(*files)
    found = sums(bronze, *read.columns)
    assert found == sums(read, *read.columns)
    assert found[0] > 50
    ours = 0
    for file in files:
        rows = pq.read_table(file, columns=["topic", "broker_partition", "offset", "index", "value", "key"])
        for names in (
            rows.select(["topic", "broker_partition"]).group_by(["topic", "broker_partition"]).aggregate([]).to_pylist()
        ):
            fits = pc.and_(*(pc.equal(rows[name], value) for name, value in names.items()))
            for each in rows.filter(fits).combine_chunks().to_batches():
                hashes = content_hashes(each, names["topic"], names["broker_partition"])
                ours += sum(hashes.cast(pa.uint64()).view(pa.int64()).to_pylist())
    assert ours == sums(bronze, "topic", "broker_partition", "offset", "index", "value")[1]
    return bronze


@pytest.mark.parametrize("name", ["producer-mix", "wire-broker"])
def test_bronze_of_recorded_logs(spark: SparkSession, golden: Path, tmp_path: Path, name: str) -> None:
    source = {"path": str(golden / "kafka-0.7.2" / "logs" / name), "broker": "0", "subscribePattern": ".*"}
    check_landed(spark, PipelineSpec("p", str(tmp_path / "lake"), source))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [3_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_all_tables_of_generated_messages(spark: SparkSession, tmp_path: Path, count: int) -> None:
    rng = random.Random(count)
    segment = tmp_path / "log" / "t-0" / f"{0:020}.kafka"
    segment.parent.mkdir(parents=True)
    with segment.open("wb") as file:
        for first in range(0, count, 1000):
            file.write(encode_message_set([generated(rng) for _ in range(first, min(count, first + 1000))]))
    source = {"path": str(tmp_path / "log"), "broker": "0", "subscribe": "t"}
    pipeline = PipelineSpec("p", str(tmp_path / "lake"), source, refine=SPEC)
    bronze = check_landed(spark, pipeline)
    rows = parse(bronze, SPEC).select(*bronze.columns, *declared_fields(SPEC), REASON)
    refine(pipeline, workers=2)
    for table, columns, kept in (
        (pipeline.silver, [*IDENTITY, *SPEC.columns], F.col(REASON).isNull()),
        (pipeline.quarantine, [*IDENTITY, "value", REASON], F.col(REASON).isNotNull()),
    ):
        found = sums(spark.read.parquet(*files_of(table)), *columns)
        assert found == sums(rows.where(kept), *columns)
        assert found[0] > count // 20

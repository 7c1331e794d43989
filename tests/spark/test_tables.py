"""Parquet tables with a real Spark: what is written once is read once, as a whole and as a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consumerd.errors import NotFoundError
from consumerd.spark.tables import TableOwnedError, TableSchemaError, open_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from consumerd.spark.tables import Table


def numbers(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end, numPartitions=2).selectExpr("id", "cast(id as string) text", "current_timestamp() t")


def ids(table: Table) -> list[int]:
    return sorted(row.id for row in table.read().select("id").collect())


def streamed(table: Table, into: Path, limit: int | None = None) -> list[list[int]]:
    """What each micro-batch of an AvailableNow query over the table held; `into` is its checkpoint."""
    seen: list[list[int]] = []
    query = (
        table.read_stream(limit)
        .writeStream.foreachBatch(lambda frame, _: seen.append(sorted(row.id for row in frame.collect())))
        .option("checkpointLocation", str(into))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return seen


def test_batches_are_written_once_and_read_once(spark: SparkSession, tmp_path: Path) -> None:
    table = open_table(spark, str(tmp_path / "t"))
    assert not table.exists
    with pytest.raises(NotFoundError, match="there is no table at"):
        table.read()
    assert table.append(numbers(spark, 0, 10), writer="w", batch=0)
    assert not table.append(numbers(spark, 0, 10), writer="w", batch=0)
    assert table.append(numbers(spark, 10, 13), writer="w", batch=1)
    assert table.append(numbers(spark, 0, 0), writer="w", batch=2)
    assert ids(table) == list(range(13))
    assert [row.id for row in table.read(after=0).orderBy("id").collect()] == [10, 11, 12]
    assert table.batches() == (range(3),)
    assert table.last_batch == 2
    assert not list((tmp_path / "t/_staging").iterdir())
    with pytest.raises(TableOwnedError, match="another checkpoint"):
        table.append(numbers(spark, 0, 1), writer="other", batch=3)
    with pytest.raises(TableSchemaError, match="'text'"):
        table.append(spark.range(3).selectExpr("id", "1 text"), writer="w", batch=3)
    assert table.append(spark.range(20, 21).selectExpr("id", "2.5 price"), writer="w", batch=3)
    (late,) = table.read(after=2).collect()
    assert (late.id, late.text, float(late.price), late.batch) == (20, None, 2.5, 3)
    assert streamed(table, tmp_path / "c", 2) == [list(range(13)), [20]]
    assert table.append(numbers(spark, 30, 32), writer="w", batch=4)
    assert streamed(table, tmp_path / "c", 2) == [[30, 31]]

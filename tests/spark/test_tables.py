"""Tables with a real Spark: what is written once is read once, as a whole and as a stream."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.base.errors import ConfigError, NotFoundError
from consumerd.spark.run import STEPS, perform
from consumerd.spark.spec import parse_spark
from consumerd.spark.tables import open_table
from consumerd.spark.tables.convert import convert_pipeline
from consumerd.spark.tables.errors import TableOwnedError, TablePathError, TableSchemaError
from consumerd.spark.tables.files import HadoopFiles
from consumerd.spark.tables.table import BatchTable
from tests.support.lake_tables import WRITER, merged_name, write_earlier_table, write_rows


def numbers(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end, numPartitions=2).selectExpr("id", "cast(id as string) text", "current_timestamp() t")


def ids(table: BatchTable) -> list[int]:
    return sorted(row.id for row in table.read().select("id").collect())


def streamed(table: BatchTable, into: Path, limit: int | None = None) -> list[list[int]]:
    """The rows of each micro-batch of an AvailableNow query over the table; `into` is its checkpoint."""
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


@pytest.mark.timeout(300, func_only=True)
def test_writes_and_reads_each_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    table = open_table(spark, str(tmp_path / "t"))
    assert not table.exists
    with pytest.raises(NotFoundError, match=r"table .* does not exist: run"):
        table.read()
    assert table.append(numbers(spark, 0, 10), writer="w", batch=0)
    assert not table.append(numbers(spark, 0, 10), writer="w", batch=0)
    assert table.append(numbers(spark, 10, 13), writer="w", batch=1)
    assert table.append(numbers(spark, 0, 0), writer="w", batch=2)
    assert ids(table) == list(range(13))
    assert [row.id for row in table.read(after=0).orderBy("id").collect()] == [10, 11, 12]
    assert table.batches() == (range(3),)
    assert table.last_batch == 2
    assert {path.name for path in (tmp_path / "t").iterdir() if path.is_dir()} == {"_delta_log"}
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
    # A stream goes on where it was while files of batches that it has read are merged with others.
    assert table.append(numbers(spark, 40, 42), writer="w", batch=5)
    merged = table.compact(1 << 20)
    assert (merged.files_before > 5, merged.files_after) == (True, 1)
    assert streamed(table, tmp_path / "c", 2) == [[40, 41]]
    assert [row.id for row in table.read(after=2, to=4).orderBy("id").collect()] == [20, 30, 31]
    assert ids(table) == [*range(13), 20, 30, 31, 40, 41]


def test_reads_a_table_in_the_earlier_layout_and_no_step_does(spark: SparkSession, tmp_path: Path) -> None:
    refined = {"fields": {"page": "string", "at": "timestamp"}, "event_time": "at"}
    declared = {"source": {"path": str(tmp_path)}, "refine": refined, "aggregate": {}}
    document = {"spark": {"root": str(tmp_path), "pipelines": {"p": declared}}}
    pipeline = parse_spark(document, "test").pipeline()
    for path in (pipeline.bronze, pipeline.silver):
        write_earlier_table(Path(path))
    write_rows(Path(pipeline.silver, merged_name(3, 4)), [3, 4])  # read in part
    for path in (pipeline.bronze, pipeline.silver):
        table = open_table(spark, path)
        assert table.batches() == (range(7),)
        assert [row.page for row in table.read().orderBy("batch").collect()] == ["p0", "p1", "p2", "p3", "p4", "p6"]
        assert [row.page for row in table.read(2, 5).orderBy("batch").collect()] == ["p3", "p4"]
        for call in (lambda table=table: table.compact(1), table.read_stream):
            with pytest.raises(TablePathError, match="run `consumerd spark convert`"):
                call()
    for step in STEPS:
        with pytest.raises(TablePathError, match=r"holds a table in the earlier .*: run `consumerd spark convert`"):
            perform(step, spark, pipeline, {})
    convert_pipeline(pipeline)
    table = open_table(spark, pipeline.bronze)
    new = table.read(5).withColumn("page", F.lit("p7"))
    assert table.append(new, writer=WRITER, batch=7)
    assert [row.page for row in table.read(4).orderBy("batch").collect()] == ["p6", "p7"]


def test_tables_work_on_hadoop_file_systems(spark: SparkSession, tmp_path: Path) -> None:
    files = HadoopFiles(spark, f"file://{tmp_path}")
    root = f"file://{tmp_path}"
    assert files.create(f"{root}/a", b"first")
    assert not files.create(f"{root}/a", b"second")
    assert files.read(f"{root}/a") == b"first"
    files.replace(f"{root}/a", b"third")
    assert files.read(f"{root}/a") == b"third"
    assert files.read(f"{root}/b") is None
    files.make_directory(f"{root}/from/deep")
    assert [(each.name, each.is_directory) for each in files.entries(root)] == [
        ("a", False),
        ("from", True),
    ]
    assert files.entries(f"{root}/nowhere", missing_ok=True) == []
    files.remove_tree(f"{root}/from")
    files.remove_tree(f"{root}/from")
    assert not files.exists(f"{root}/from")
    with pytest.raises(TablePathError, match="as a glob pattern"):
        open_table(spark, f"{tmp_path}/a{{b}}")
    with pytest.raises(ConfigError, match="'orc' is not a table format"):
        open_table(spark, str(tmp_path), "orc")

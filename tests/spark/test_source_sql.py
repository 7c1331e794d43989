"""The source in SQL: tables and views of a catalog, and a sentence for those who want to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from consumerd.wire.v07 import encode_message_set

LINES = 20


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    log = tmp_path / "archive" / "t-0"
    log.mkdir(parents=True)
    (log / f"{0:020}.kafka").write_bytes(encode_message_set([b"%d" % number for number in range(LINES)]))
    return tmp_path / "archive"


@pytest.fixture
def sql(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[str], DataFrame]]:
    """Run a statement in a database of its own."""
    spark.sql(f"CREATE DATABASE consumerd_tests LOCATION '{tmp_path}/database'")
    spark.sql("USE consumerd_tests")
    yield spark.sql
    spark.sql("USE default")
    spark.sql("DROP DATABASE consumerd_tests CASCADE")


def counts(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


def test_reads_through_tables_and_views_of_a_catalog(
    spark: SparkSession, sql: Callable[[str], DataFrame], archive: Path
) -> None:
    sql(f"CREATE TABLE t USING consumerd OPTIONS (path '{archive}', broker 3, subscribe 't') COMMENT 'what it is'")
    select = "SELECT broker, count(*), count(DISTINCT value) FROM {} GROUP BY broker"
    assert counts(sql(select.format("t"))) == [(3, LINES, LINES)]
    assert counts(sql("SELECT CAST(value AS string) FROM t WHERE offset = 0")) == [("0",)]
    sql(f"CREATE TABLE located USING consumerd OPTIONS (subscribe 't', broker 3) LOCATION '{archive}'")
    assert counts(sql(select.format("located"))) == [(3, LINES, LINES)]
    sql("CREATE VIEW seen AS SELECT broker, value FROM t")
    assert counts(sql(select.format("seen"))) == [(3, LINES, LINES)]
    sql(f"CREATE TEMPORARY VIEW now USING consumerd OPTIONS (path '{archive}', broker 4, subscribe 't')")
    assert counts(sql(select.format("now"))) == [(4, LINES, LINES)]
    later = spark.read.option("startingOffsets", "latest").table("t")
    assert later.count() == 0, "options of a read go before those of the table"
    assert spark.readStream.option("maxBytesPerTrigger", "1m").table("t").isStreaming
    sql("DROP TABLE t")
    assert (archive / "t-0").is_dir(), "what a table shows is not its own"


def test_rejects_invalid_table_options_with_one_sentence(sql: Callable[[str], DataFrame], archive: Path) -> None:
    for statement, sentence in (
        (f"CREATE TABLE u USING consumerd OPTIONS (path '{archive}', subscrbe 't')", "did you mean 'subscribe'?"),
        (
            "CREATE TABLE u USING consumerd OPTIONS (bootstrap 'k:1', subscribe 't', `kafka.sasl.password` 'x')",
            "would be kept in the catalog for everybody to see; use kafka.sasl.password.file",
        ),
    ):
        with pytest.raises(AnalysisException) as caught:
            sql(statement)
        assert sentence in str(caught.value).splitlines()[0]
    sql(f"CREATE TABLE u (offset bigint) USING consumerd OPTIONS (path '{archive}', subscribe 't')")
    with pytest.raises(AnalysisException, match="a table keeps its options only if CREATE TABLE names no columns"):
        sql("SELECT * FROM u").collect()


def test_rejects_writes_as_the_source_is_read_only(
    spark: SparkSession, sql: Callable[[str], DataFrame], archive: Path, tmp_path: Path
) -> None:
    sql(f"CREATE TABLE t USING consumerd OPTIONS (path '{archive}', subscribe 't')")
    rows = spark.range(3)
    stream = spark.readStream.format("rate").load().writeStream.format("consumerd")
    for write in (
        lambda: sql("INSERT INTO t SELECT * FROM t"),
        lambda: rows.write.format("consumerd").mode("append").save(),
        lambda: rows.write.format("consumerd").mode("overwrite").option("brokers", "0=127.0.0.1:1").save(),
        lambda: stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(),
    ):
        with pytest.raises(PySparkException, match="the data source consumerd is read only: write tables with parquet"):
            write()

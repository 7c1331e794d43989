"""Tables with a real Spark: what is written once is read once, as a whole and as a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from consumerd.base.errors import ConfigError, NotFoundError
from consumerd.spark.tables import open_table
from consumerd.spark.tables.convert import convert_table
from consumerd.spark.tables.errors import TableOwnedError, TablePathError, TableSchemaError
from consumerd.spark.tables.files import HadoopFiles
from consumerd.spark.tables.layout import merged_name, parse_folders, resolve
from consumerd.spark.tables.parquet import ParquetTable

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from consumerd.spark.tables.table import BatchTable


def numbers(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end, numPartitions=2).selectExpr("id", "cast(id as string) text", "current_timestamp() t")


def bulky(spark: SparkSession, start: int, end: int) -> DataFrame:
    """One file of rows whose size compression cannot change much."""
    text = ", ".join(f"sha2(concat(id, '-{n}'), 512)" for n in range(20))
    return spark.range(start, end, numPartitions=1).selectExpr("id", f"concat({text}) text")


def ids(table: BatchTable) -> list[int]:
    return sorted(row.id for row in table.read().select("id").collect())


def held(folder: Path) -> list[int]:
    """The rows that a reader finds from the names of folders; faster than Spark."""
    found: list[int] = []
    for each in resolve(parse_folders(path.name for path in folder.iterdir())):
        for file in (folder / each.folder.name).glob("*.parquet"):
            rows = pq.ParquetFile(file).read(columns=["id", "batch"]).to_pylist()
            found += [row["id"] for row in rows if each.first <= row["batch"] <= each.last]
    return sorted(found)


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


def test_reads_a_table_in_the_earlier_layout(spark: SparkSession, tmp_path: Path) -> None:
    earlier = open_table(spark, str(tmp_path / "t"), "parquet")
    assert earlier.append(numbers(spark, 0, 3), writer="w", batch=0)
    table = open_table(spark, str(tmp_path / "t"))
    assert ids(table) == [0, 1, 2]
    assert streamed(table, tmp_path / "c") == [[0, 1, 2]]
    with pytest.raises(TablePathError, match="earlier Parquet format: turn it into a Delta table"):
        table.append(numbers(spark, 3, 4), writer="w", batch=1)
    assert convert_table(table.path).written == 0
    table = open_table(spark, table.path)
    assert table.append(numbers(spark, 3, 4), writer="w", batch=1)
    assert ids(table) == [0, 1, 2, 3]
    assert streamed(table, tmp_path / "c") == [[3]]


class Crash(Exception):  # noqa: N818 - it is none of ours
    """The process ends here."""


class CrashingFiles:
    """Operations on files until the process dies before, or right after, one that changes something."""

    CHANGES = ("create", "replace", "rename_directory", "make_directory", "remove_tree")

    def __init__(self, inner: Any, at: int) -> None:
        self._inner = inner
        self._left = at

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._inner, name)
        if name not in self.CHANGES:
            return operation

        def changed(*arguments: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                raise Crash
            result = operation(*arguments)
            self._left -= 1
            if self._left == 0:
                raise Crash
            return result

        return changed


@pytest.mark.timeout(300, func_only=True)
def test_survives_a_compaction_killed_anywhere_while_a_stream_reads(spark: SparkSession, tmp_path: Path) -> None:
    table = open_table(spark, str(tmp_path / "t"), "parquet")
    assert isinstance(table, ParquetTable)
    for batch in range(5):
        assert table.append(bulky(spark, batch * 10, batch * 10 + 10), writer="w", batch=batch)
    expected = list(range(50))
    assert streamed(table, tmp_path / "c", 2)[:2] == [list(range(20)), list(range(20, 40))]
    size = sum(file.stat().st_size for file in tmp_path.glob("t/batch=*/*.parquet"))
    target = size * 2 // 3  # three of the five at most
    at = 0
    while True:
        at += 1
        files, table.files = table.files, CrashingFiles(table.files, at)
        try:
            result = table.compact(target, keep_seconds=0)
        except Crash:
            continue
        finally:
            table.files = files
            assert held(tmp_path / "t") == expected
            assert table.batches() == (range(5),)
        break
    assert at > 6  # before and after: making a folder, each of two renames, each removal
    assert result.files_after == 2
    assert sorted(folder.name for folder in (tmp_path / "t").glob("batch=*")) == [merged_name(0, 2), merged_name(3, 4)]
    assert not list((tmp_path / "t/_staging").iterdir())
    # The stream stood at the end; now its next batch is merged with ones that it has read already.
    assert table.append(bulky(spark, 50, 60), writer="w", batch=5)
    assert not table.append(bulky(spark, 0, 10), writer="w", batch=1)
    assert table.compact(target).merged == 1
    assert ids(table) == list(range(60))
    assert streamed(table, tmp_path / "c", 2) == [list(range(50, 60))]
    assert streamed(table, tmp_path / "anew", 4) == [list(range(40)), list(range(40, 60))]
    assert [row.id for row in table.read(after=3, to=4).orderBy("id").collect()] == list(range(40, 50))
    again = table.compact(target)
    assert (again.merged, again.files_before) == (0, again.files_after)


def test_survives_an_append_killed_anywhere(spark: SparkSession, tmp_path: Path) -> None:
    at = 0
    while True:
        at += 1
        path = tmp_path / f"t{at}"
        table = open_table(spark, str(path), "parquet")
        assert isinstance(table, ParquetTable)
        files, table.files = table.files, CrashingFiles(table.files, at)
        try:
            written = table.append(numbers(spark, 0, 3).coalesce(1), writer="w", batch=0)
        except Crash:
            written = None
        table.files = files
        again = open_table(spark, str(path), "parquet").append(numbers(spark, 0, 3).coalesce(1), writer="w", batch=0)
        assert held(path) == [0, 1, 2]
        if written is not None:
            break
    assert (written, again) == (True, False)
    assert at > 6


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
    files.make_directory(f"{root}/to")
    assert not files.rename_directory(f"{root}/from", f"{root}/to")
    assert files.rename_directory(f"{root}/from", f"{root}/other")
    assert [(each.name, each.is_directory) for each in files.entries(root)] == [
        ("a", False),
        ("other", True),
        ("to", True),
    ]
    assert files.entries(f"{root}/nowhere", missing_ok=True) == []
    files.remove_tree(f"{root}/other")
    files.remove_tree(f"{root}/other")
    assert not files.exists(f"{root}/other")
    with pytest.raises(TablePathError, match="in an object store"):
        open_table(spark, "s3a://bucket/table", "parquet")
    with pytest.raises(TablePathError, match="as a glob pattern"):
        open_table(spark, f"{tmp_path}/a{{b}}")
    with pytest.raises(ConfigError, match="'orc' is not a table format"):
        open_table(spark, str(tmp_path), "orc")

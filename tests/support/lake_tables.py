"""Tables of the pipeline as no part of consumerd changes them: rows that are lost, altered or there twice."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.data_file import DataFileWriter
from consumerd.spark.lake.delta import DeltaLakeTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def change_batch(spark: SparkSession, path: str, change: Callable[[DataFrame], DataFrame], batch: int = 0) -> int:
    """Put other rows in the place of a batch's; returns how many fewer there are."""
    table = open_lake_table(path)
    files = table.files(batch - 1, batch)
    rows = change(spark.read.parquet(*(f"{path}/{each.path}" for each in files))).toArrow()
    replace_files(path, [each.path for each in files], rows)
    return sum(each.rows for each in files) - int(rows.num_rows)


def replace_files(path: str, files: list[str], rows: pa.Table | None = None) -> None:
    """Commit rows in the place of files; without rows these are lost."""
    table = DeltaTable(path)
    now = time.time_ns() // 1_000_000
    actions: list[AddAction | RemoveAction] = [RemoveAction(each, True, now, None, {}) for each in files]
    if rows is not None:
        schema = open_lake_table(path).schema()
        with DataFileWriter(path, schema) as writer:
            for each in rows.select(schema.names).cast(schema).to_batches():
                writer.write(each)
            written = writer.close()
        if written is not None:
            statistics = {"numRecords": written.rows, "minValues": written.minimums, "maxValues": written.maximums}
            actions.append(AddAction(written.path, written.size, {}, now, True, json.dumps(statistics)))
    table.create_write_transaction(actions, "append", table.schema())


def list_late(monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> list[int]:
    """Have listings of Delta's log lack up to three of its newest commits, each time others.

    Returns a list that gets the number of commits that each such listing lacked.
    """
    found = DeltaLakeTable._open
    lacking: list[int] = []

    def late(self: DeltaLakeTable) -> DeltaTable | None:
        table = found(self)
        if table is not None and rng.random() < 0.3:
            former = max(0, table.version() - rng.randint(1, 3))
            lacking.append(table.version() - former)
            return DeltaTable(self.path, version=former)
        return table

    monkeypatch.setattr(DeltaLakeTable, "_open", late)
    return lacking


#: Columns and owner of `write_earlier_table`.
COLUMNS = pa.schema(
    [("page", pa.string()), ("at", pa.timestamp("us", "UTC")), ("ms", pa.int32()), ("batch", pa.int64())]
)
WRITER = "c0ffee"
_FIELDS = [("page", "string"), ("at", "timestamp"), ("ms", "integer"), ("batch", "long")]


def write_rows(folder: Path, batches: list[int], schema: pa.Schema = COLUMNS) -> None:
    """A file as Spark wrote it, with a row of each batch."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"page": f"p{batch}", "at": 1_000_001 * (batch + 1), "ms": batch, "batch": batch} for batch in batches]
    name = f"part-{len(list(folder.iterdir())):05}-5ad9-c000.zstd.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / name, use_deprecated_int96_timestamps=True)


def write_earlier_table(table: Path) -> None:
    """Batches 0 to 6; 0 to 3 were merged, first 0 and 1; 4 has no column `ms` yet; 5 has no rows."""
    write_rows(table / batch_name(0), [0])
    write_rows(table / merged_name(0, 1), [0, 1])
    write_rows(table / merged_name(0, 3), [0, 1])
    write_rows(table / merged_name(0, 3), [2, 3])
    write_rows(table / batch_name(4), [4], COLUMNS.remove(2))
    write_rows(table / batch_name(5), [])
    write_rows(table / batch_name(6), [6])
    write_rows(table / "_staging" / "append-7-feed", [7])
    described = {"type": "struct", "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in _FIELDS
    ]}  # fmt: skip
    (table / "_schema.json").write_text(json.dumps(described))
    (table / "_table.json").write_text(json.dumps({"consumerd_table": 1, "kind": "parquet", "writer": WRITER}))


def batch_name(batch: int) -> str:
    """The folder of one batch in the earlier Parquet layout."""
    return f"batch={batch:020d}"


def merged_name(first: int, last: int) -> str:
    """The folder of batches that compaction merged."""
    return f"batch={first:020d}-{last:020d}"


def rows_of(path: Path, columns: list[str]) -> list[tuple[object, ...]]:
    """The rows of a table, read without our code."""
    if not (path / "_delta_log").exists():
        return []
    files = DeltaTable(str(path)).file_uris()
    tables = [pq.ParquetFile(file.removeprefix("file://")).read(columns=columns) for file in files]
    return [row for each in tables for row in zip(*(each[name].to_pylist() for name in columns), strict=True)]

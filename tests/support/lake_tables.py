"""Tables of the pipeline as no part of consumerd changes them: rows that are lost, altered or there twice."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.data_file import DataFileWriter

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


def rows_of(path: Path, columns: list[str]) -> list[tuple[object, ...]]:
    """The rows of a table, read without our code."""
    if not (path / "_delta_log").exists():
        return []
    files = DeltaTable(str(path)).file_uris()
    tables = [pq.ParquetFile(file.removeprefix("file://")).read(columns=columns) for file in files]
    return [row for each in tables for row in zip(*(each[name].to_pylist() for name in columns), strict=True)]

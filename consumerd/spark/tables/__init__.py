"""Tables of the pipeline: batches that are written once, read as a whole or as a stream, and compacted.

In: frames with the number of their batch. Out: tables, in which each batch is committed once.

Files in reading order: table, lake, store_options, files, batch_stream, parquet, layout, schema, convert, errors.

Easy to miss:

- `FileSystem.rename` of Hadoop moves a folder *into* one that exists; `FileContext.rename` refuses.
- A commit by rename is not atomic on S3 and similar stores, where a rename is a copy that readers can see half done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from consumerd.spark.lake import open_lake_table
from consumerd.spark.tables.table import BatchTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.lake.table import LakeTable


@overload
def open_table(spark: None, path: str, format: Literal["delta"] | str = "delta") -> LakeTable: ...
@overload
def open_table(spark: SparkSession, path: str, format: Literal["delta", "parquet"] | str = "delta") -> BatchTable: ...
def open_table(
    spark: SparkSession | None,
    path: str,
    format: Literal["delta", "parquet"] | str = "delta",  # noqa: A002 - Spark's word
) -> BatchTable | LakeTable:
    """The table at `path`, which need not exist yet. Raises TablePathError, ConfigError for an unknown format.

    A table that exists in the earlier Parquet layout is opened for reading as that, whatever the format: its `append`
    raises TablePathError unless the format is `parquet`. Without a session, and without a JVM, it is a LakeTable, whose
    `dataset()` pyarrow, pandas and others read.
    """
    if spark is None:
        return open_lake_table(path, format)
    from consumerd.spark.tables.parquet import ParquetTable  # noqa: PLC0415 - executors do not need it

    if format == "parquet":
        return ParquetTable(spark, path)
    from consumerd.spark.tables.lake import LakeBatchTable  # noqa: PLC0415 - likewise

    table = LakeBatchTable(spark, path, format)
    return table if table.exists else ParquetTable.existing(spark, path) or table

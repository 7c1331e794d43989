"""Tables of the pipeline: batches that are written once, read as a whole or as a stream, and compacted.

In: frames with the number of their batch. Out: tables, in which each batch is committed once.

Files in reading order: table, lake, store_options, files, batch_stream, layout, parquet, convert, errors.

Easy to miss:

- `FileSystem.rename` of Hadoop moves a folder *into* one that exists; `FileContext.rename` refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from consumerd.spark.lake import open_lake_table
from consumerd.spark.tables.table import BatchTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.lake.table import LakeTable


@overload
def open_table(spark: None, path: str, format: Literal["delta", "iceberg"] | str = "delta") -> LakeTable: ...
@overload
def open_table(spark: SparkSession, path: str, format: Literal["delta", "iceberg"] | str = "delta") -> BatchTable: ...
def open_table(
    spark: SparkSession | None,
    path: str,
    format: Literal["delta", "iceberg"] | str = "delta",  # noqa: A002 - Spark's word
) -> BatchTable | LakeTable:
    """The table at `path`, which need not exist yet. Raises TablePathError, ConfigError for an unknown format.

    A table that exists in the earlier Parquet layout can be read with a session, whatever the format; what would write
    to it raises TablePathError. Without a session, and without a JVM, the table is a LakeTable, whose `dataset()`
    pyarrow, pandas and others read.
    """
    if spark is None:
        return open_lake_table(path, format)
    from consumerd.spark.tables.files import has_jvm, locate  # noqa: PLC0415 - executors do not need it
    from consumerd.spark.tables.lake import LakeBatchTable  # noqa: PLC0415 - likewise
    from consumerd.spark.tables.parquet import ParquetTable  # noqa: PLC0415 - likewise

    if has_jvm(spark):
        located, files = locate(spark, path)
        earlier = ParquetTable(spark, located.rstrip("/"), files)
        if earlier.exists:
            return earlier
    return LakeBatchTable(spark, path, format)

"""Tables of the pipeline: batches that are written once, read as a whole or as a stream, and compacted.

In: frames with the number of their batch. Out: directories of files, each batch renamed into place once.

Files in reading order: table, layout, files, parquet, delta, schema, batch_stream, errors.

Easy to miss:

- `FileSystem.rename` of Hadoop moves a folder *into* one that exists; `FileContext.rename` refuses.
- A commit by rename is not atomic on S3 and similar stores, where a rename is a copy that readers can see half done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from consumerd.base.errors import ConfigError
from consumerd.spark.tables.table import BatchTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_table(spark: SparkSession, path: str, format: Literal["parquet", "delta"] | str = "parquet") -> BatchTable:  # noqa: A002 - Spark's word
    """The table at `path`, which need not exist yet. Raises TablePathError, ConfigError for an unknown format."""
    if format == "parquet":
        from consumerd.spark.tables.parquet import ParquetTable  # noqa: PLC0415 - executors do not need it

        return ParquetTable(spark, path)
    if format == "delta":
        from consumerd.spark.tables.delta import DeltaTable  # noqa: PLC0415 - likewise

        return DeltaTable(spark, path)
    raise ConfigError(f"{format!r} is not a table format: must be parquet or delta.")

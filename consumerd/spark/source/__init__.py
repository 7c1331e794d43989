"""The data source: partitions of live 0.7 brokers and of archives as rows of a DataFrame.

What executors load are `datasource`, `options`, `columns`, `split`, `rows`, `reading` and the modules that these
import: of consumerd they take `wire` and `storage` alone, and with `kafka_client`, for brokers of 0.8 and later,
`client`, `net` and `clock`. Whatever plans in the driver stands beside them and is imported by nothing at the top of
these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("consumerd")` known to a session that has not found it by itself (see `pyspark_consumerd`)."""
    from consumerd.spark.source.datasource import ConsumerdDataSource  # noqa: PLC0415 - executors have no need of it

    spark.dataSource.register(ConsumerdDataSource)

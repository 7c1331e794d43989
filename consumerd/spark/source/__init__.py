"""The data source `consumerd`: partitions of brokers, archives and the files handler's output as rows of a DataFrame.

`v07`, `v08` and `files` each hold one kind of log; what they share is here. Executors load `datasource` and the modules
that it imports, with `wire` and `storage` of consumerd and nothing else, and for brokers of 0.8 and later also
`v08.reading`, with `client`, `net` and `clock`. The modules that plan (`discovery`, `planning` and every `origin`) run
in the driver; nothing that an executor loads imports them at its top.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("consumerd")` known to a session that has not found it by itself (see `pyspark_consumerd`)."""
    from consumerd.spark.source.datasource import ConsumerdDataSource  # noqa: PLC0415 - executors have no need of it

    spark.dataSource.register(ConsumerdDataSource)

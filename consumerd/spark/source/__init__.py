"""The data source `consumerd`: partitions of brokers, archives and the files handler's output as rows of a DataFrame.

`v07`, `v08` and `files` each hold one kind of log; what they share is here. Executors load `datasource` and the modules
that it imports, with `wire` and `storage` of consumerd and nothing else, and for brokers of 0.8 and later also
`v08.reading`, with `client`, `net` and `clock`. The modules that plan (`discovery`, `planning` and every `origin`) run
in the driver; nothing that an executor loads imports them at its top.

In: the options of a reader. Out: rows, from splits that are planned in the driver and read by executors.

Files in reading order: datasource, reading, options, kafka_options, option_values, option_texts, request,
choice, filters, discovery, split, logs, offsets, planning, columns, errors.

Easy to miss:

- Spark asks the source of a stream for its first offsets again at each attempt of the first batch: `latest` is a
  different offset then.
- Spark does not call `commit` of a source for the last batch of a query: offsets for lag tools are written after its
  end, too.
- Spark rejects a reader with `pushFilters` where push-down is switched off, so the class of the reader depends on that
  setting.
- Spark passes a Python source neither the needed columns nor a place to report its lag (`metrics`). It passes the
  options of a catalog table when the table is created, never when it is read: only the schema is kept.
- A record of 0.8 or later does not show the offset of the next one: gaps by compaction and transactions change, and
  splits end in them.
- Spark plans the read of a Python source in the driver with the workers' PYSPARK_PYTHON: a relative path has to exist
  there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("consumerd")` known to a session that has not found it by itself (see `pyspark_consumerd`)."""
    from consumerd.spark.source.datasource import ConsumerdDataSource  # noqa: PLC0415 - executors have no need of it

    spark.dataSource.register(ConsumerdDataSource)

"""Lets Spark find the data source by itself: it looks for `DefaultSource` in top-level modules named `pyspark_*`."""

from consumerd.spark.source.datasource import ConsumerdDataSource as DefaultSource

__all__ = ["DefaultSource"]

"""Spark: the data source `consumerd` and the pipeline on top of it. The only room that imports pyspark.

`consumerd.spark.source` reads partitions into DataFrames and is what executors import; everything beside it runs in the
driver. This file imports nothing, so that executors load no more than they use.
"""

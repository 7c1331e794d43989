"""Two tables: the messages of an archive, each once, and how many of them each partition has.

Spark finds the data source `consumerd` by itself where the package is installed.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

#: Names the directory of the archive: `--conf spark.consumerd.archive=/archive`.
ARCHIVE = "spark.consumerd.archive"


@dp.table
def clicks() -> DataFrame:
    """What the archive has, and what is added to it: each update reads what is new."""
    spark = SparkSession.active()
    return (
        spark.readStream.format("consumerd")
        .option("path", spark.conf.get(ARCHIVE) or "")
        .option("broker", "0")
        .option("subscribe", "clicks")
        .option("startingOffsets", "earliest")
        .load()
    )


@dp.materialized_view
def clicks_per_partition() -> DataFrame:
    """Messages of each partition, computed again by each update."""
    messages = SparkSession.active().read.table("clicks")
    return messages.groupBy("topic", "broker_partition").agg(
        F.count("*").alias("messages"), F.max("next_offset").alias("end")
    )

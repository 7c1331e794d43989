"""Count the most frequent words in a directory of `.kafka` segments with Spark, without a broker.

    python top_words.py /archive clicks

Also runs under spark-submit; executors need the environment that `make spark-package` builds.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from consumerd.spark.session import build_session
from consumerd.spark.source import register

#: Broker whose log directory the archive is; part of a message's identity.
BROKER = "0"


def top_words(spark: SparkSession, archive: str, topic: str, number: int = 10) -> DataFrame:
    """Columns `word` and `count`, the most frequent first."""
    register(spark)
    messages = (
        spark.read.format("consumerd")
        .option("path", archive)
        .option("broker", BROKER)
        .option("subscribe", topic)
        .schema("value binary")  # only this column is made
        .load()
    )
    words = messages.select(f.explode(f.split(f.col("value").cast("string"), r"\s+")).alias("word"))
    counted = words.where("word <> ''").groupBy("word").count()
    return counted.orderBy(f.desc("count"), "word").limit(number)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python top_words.py ARCHIVE TOPIC")
    session = build_session("local[2]", app_name="top words")
    top_words(session, sys.argv[1], sys.argv[2]).show(truncate=False)
    session.stop()

"""Rows per second of the data source beside Spark's own Kafka source: the same topic of a real broker, in one run.

One broker of 3.9.1 (KRaft) on loopback with a topic of four partitions, read whole on `local[2]`. `value` counts the
rows and sums the lengths of their values, `full` has each source make all columns that it has, for a sink that drops
them. Jars of Spark's source come by Maven with the installed Spark's version. Queries take turns, and the median of the
rounds' ratios counts.

    python -m benchmarks spark_kafka [--messages 2000000] [--rounds 5] [--codec none] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from benchmarks import surroundings
from benchmarks.kafka import BATCH_BYTES, PARTITIONS, RELEASE, Bench
from benchmarks.kafka_clients import cluster
from benchmarks.kafka_job import Job
from benchmarks.race import Measurement, compared, laps, quiet, rates, show_if_possible
from benchmarks.spark import SESSION, summed
from consumerd.base.java import find_java
from consumerd.spark.session import build_session
from consumerd.spark.source import register
from tests.support.kafka import RELEASES, KafkaBroker
from tests.support.maven import fetch_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "spark_kafka"
#: The peer.
KAFKA_SOURCE = "Spark's Kafka source"
PAYLOAD_BYTES = 100
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def source_jars() -> list[Path]:
    """The jars of Spark's Kafka source that pyspark does not have. Raises MissingRuntimeError. Blocks."""
    present = {path.name.rpartition("-")[0] for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    wanted = fetch_jars([f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"])
    return [path for path in wanted if path.name.rpartition("-")[0] not in present]


def dropped(frame: DataFrame) -> None:
    """Make all columns of all rows."""
    frame.write.format("noop").mode("overwrite").save()


def measure(spark: SparkSession, address: str, topic: str, count: int, rounds: int, codec: str) -> list[Measurement]:
    """All queries in turns."""
    kind = f"{PAYLOAD_BYTES} B{'' if codec == 'none' else f', {codec}'}, local[2]"

    def source(name: str, option: str) -> DataFrame:
        reader = spark.read.format(name).option(option, address)
        return reader.options(subscribe=topic, startingOffsets="earliest").load()

    frames = {
        surroundings.codec(): source("consumerd", "bootstrap"),
        KAFKA_SOURCE: source("kafka", "kafka.bootstrap.servers"),
    }
    first, second = (summed(frame, count) for frame in frames.values())  # also warms up
    if first != second:
        raise SystemExit(f"the values have {first} bytes for one source and {second} for the other")
    results: list[Measurement] = []
    queries: dict[str, Callable[[DataFrame], object]] = {"value": partial(summed, expected=count), "full": dropped}
    for name, query in queries.items():
        seconds = laps({subject: partial(query, frame) for subject, frame in frames.items()}, rounds)
        case = f"{kind}, {name}, {surroundings.codec()}"
        figures = rates(seconds, count / 1e6)
        results += compared(NAME, case, "M rows/s", figures, ours=surroundings.codec(), others=[KAFKA_SOURCE])
    return results


async def serve(broker: KafkaBroker, job: Job) -> str:
    """Start the broker and fill a topic; returns its name."""
    await broker.start()
    async with cluster(job) as client:
        bench = Bench(broker, client, [])
        topic = await bench.new_topic()
        await bench.fill(topic, job)
    return topic


def run(messages: int, rounds: int, codec: str) -> list[Measurement]:
    """The broker, then Spark beside it. Raises MissingRuntimeError where one of them is missing."""
    config = {**SESSION, "spark.jars": ",".join(map(str, source_jars()))}
    with tempfile.TemporaryDirectory(prefix="consumerd-bench-") as folder:
        broker = KafkaBroker(
            Path(folder), RELEASES[RELEASE], None, java=find_java(), partitions=PARTITIONS,
            config={"log.segment.bytes": 256 << 20}, jvm=["-Xmx512m"],
        )  # fmt: skip
        job = Job("", "", broker.address, "", PARTITIONS, messages, PAYLOAD_BYTES, codec, batch_bytes=BATCH_BYTES)
        try:
            topic = asyncio.run(serve(broker, job))
            spark = build_session("local[2]", app_name="benchmark", config=config)
            try:
                register(spark)
                return measure(spark, broker.address, topic, messages, rounds, codec)
            finally:
                spark.stop()
        finally:
            broker.kill()


def main(arguments: list[str] | None = None) -> int:
    """Print a table or JSON."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark_kafka", description=description)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--messages", type=int, default=2_000_000, help="in the topic (default: 2000000)")
    parser.add_argument("--rounds", type=int, default=5, help="the median of so many counts (default: 5)")
    parser.add_argument("--codec", choices=CODECS, default="none", help="of the topic")
    options = parser.parse_args(arguments)
    quiet()
    return show_if_possible(lambda: run(options.messages, options.rounds, options.codec), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())

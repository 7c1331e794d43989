"""Spark Connect: what works in its sessions, and the sentence for what does not."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest

from consumerd.base.java import JavaRuntime
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.data_file import DataFileWriter
from consumerd.spark.session import prepare_java
from consumerd.wire.v07 import encode_message_set
from tests.support.lake_tables import WRITER

PROGRAM = """
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from consumerd.base.errors import ConsumerdError
from consumerd.spark.land import land
from consumerd.spark.source import register
from consumerd.spark.spec import parse_spark
from consumerd.spark.tables import open_table

folder = Path(sys.argv[1])
spark = SparkSession.builder.remote("local[1]").getOrCreate()
register(spark)
options = {"path": f"{folder}/logs", "broker": "0", "subscribe": "clicks"}
print("messages", spark.read.format("consumerd").options(**options).load().count())


def ended(stream, name):
    checkpoint = f"{folder}/{name}-checkpoint"
    query = stream.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start(f"{folder}/{name}", format="parquet").awaitTermination()
    return spark.read.parquet(f"{folder}/{name}").count()


stream = spark.readStream.format("consumerd").options(**options, startingOffsets="earliest").load()
print("streamed messages", ended(stream, "messages"))
table = open_table(spark, f"{folder}/table")
print("rows", sorted(row.id for row in table.read().collect()), sorted(row.id for row in table.read(after=0).collect()))
print("streamed rows", ended(table.read_stream(), "rows"))
spec = parse_spark({"spark": {"root": str(folder), "pipelines": {"clicks": {"source": options}}}}, "clicks.toml")
try:
    land(spark, spec.pipeline("clicks"))
except ConsumerdError as error:
    print("land:", error)
"""


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_spec("grpc") is None, reason="needs pyspark[connect]")
def test_sessions_of_spark_connect_read_messages_and_tables(java: JavaRuntime, tmp_path: Path) -> None:
    prepare_java(java)
    (tmp_path / "logs" / "clicks-0").mkdir(parents=True)
    (tmp_path / "logs" / "clicks-0" / f"{0:020d}.kafka").write_bytes(encode_message_set([b"a", b"b", b"c"]))
    table = open_lake_table(str(tmp_path / "table"))
    for batch in range(2):
        rows = pa.record_batch({"id": [batch * 2, batch * 2 + 1], "batch": [batch, batch]})
        with DataFileWriter(table.path, rows.schema) as writer:
            writer.write(rows)
            file = writer.close()
        assert file is not None
        assert table.commit([file], writer=WRITER, batch=batch, schema=rows.schema)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert [line.partition("Connect")[0] for line in done.stdout.splitlines() if not line.startswith("[Stage")] == [
        "messages 3",
        "streamed messages 3",
        "rows [0, 1, 2, 3] [2, 3]",
        "streamed rows 4",
        "land: the steps of a pipeline do not run with Spark ",
    ]

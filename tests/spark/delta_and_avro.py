"""The part of `test_delta.py` that needs a process of its own: jars have to be named before a session starts.

The first batches are written as earlier releases wrote Delta tables, by the JVM and a jar; then the steps go on as they
are now. Arguments: a folder, and the jars by commas. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.base.errors import ConfigError, ConsumerdError
from consumerd.service.config.validation import table_of
from consumerd.spark.checkpoints import Checkpoint
from consumerd.spark.lake.refine import REFINED_AT
from consumerd.spark.packages import required_packages
from consumerd.spark.parsing import REASON, declared_fields, parse
from consumerd.spark.queries import run_query
from consumerd.spark.refine import refine
from consumerd.spark.run import compact
from consumerd.spark.session import build_session
from consumerd.spark.spec import RefineSpec, parse_spark
from consumerd.spark.tables import open_table
from consumerd.spark.tables.lake import LakeBatchTable, with_batch
from consumerd.spark.tables.table import CompactResult
from tests.spark.landing import land_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from consumerd.spark.spec import PipelineSpec

SCHEMA = {
    "type": "record",
    "name": "visit",
    "fields": [
        {"name": "value", "type": "long"},
        {"name": "page", "type": ["null", "string"]},
        {"name": "Page", "type": "null"},
        {"name": "tags", "type": ["null", {"type": "array", "items": "long"}]},
    ],
}
#: (offset, bytes): two records, one cut short, one with more behind it, nothing, and a record again.
MESSAGES = [
    (0, b"\x0a\x02\x04hi\x00"),
    (10, b"\x0a\x00\x00"),
    (20, b"\x0a\x02\x08hi"),
    (30, b"\x0a\x02\x04hi\x00!"),
    (40, b""),
    (0, b"\x0a\x02\x04hi\x00"),
]
COLUMNS = (
    "value binary, topic string, partition int, offset bigint, broker int, broker_partition string, index int, "
    "next_offset bigint, crc_ok boolean, _corrupt string"
)


class EarlierTable(LakeBatchTable):
    """What earlier releases did."""

    def __init__(self, spark: SparkSession, path: str, format: str) -> None:  # noqa: A002
        super().__init__(spark, path, format)
        self.path = path

    @property
    def exists(self) -> bool:
        return Path(self.path, "_delta_log").exists()

    def append(self, frame: DataFrame, *, writer: str, batch: int) -> bool:
        if not self.exists:
            columns = ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in with_batch(frame.schema))
            owner = f"TBLPROPERTIES ('consumerd.writer' = '{writer}')"
            self._spark.sql(f"CREATE TABLE delta.`{self.path}` ({columns}) USING delta {owner}")
        options = {"txnAppId": writer, "txnVersion": str(batch), "mergeSchema": "true"}
        rows = frame.withColumn("batch", F.lit(batch).cast("bigint"))
        rows.write.format("delta").mode("append").options(**options).save(self.path)
        return True

    def read(self, after: int = -1, to: int | None = None) -> DataFrame:
        return self._spark.read.format("delta").load(self.path).where(F.col("batch") > after)

    def read_stream(self, batches_per_trigger: int | None = None) -> DataFrame:
        return self._spark.readStream.format("delta").option("maxFilesPerTrigger", 64).load(self.path)

    def batches(self) -> tuple[range, ...]:
        if not self.exists:
            return ()
        last = self.read().agg(F.max("batch")).collect()[0][0]
        return () if last is None else (range(last + 1),)

    def compact(self, target_bytes: int) -> CompactResult:
        raise NotImplementedError


def refine_earlier(spark: SparkSession, pipeline: PipelineSpec) -> int:
    """Refine as earlier releases did, by a stream with Delta's own offsets; returns the rows of silver."""
    assert pipeline.refine is not None
    bronze, silver, quarantine = (
        EarlierTable(spark, path, pipeline.format) for path in (pipeline.bronze, pipeline.silver, pipeline.quarantine)
    )
    checkpoint = Checkpoint(spark, pipeline.checkpoint("refine"))

    def store(frame: DataFrame, batch: int) -> None:
        assert pipeline.refine is not None
        rows = parse(frame, pipeline.refine).withColumn(REFINED_AT, F.current_timestamp())
        landed = [name for name in frame.columns if name not in ("value", "crc_ok", "_corrupt")]
        good = rows.where(F.col(REASON).isNull()).select(*landed, *declared_fields(pipeline.refine))
        refused = rows.where(F.col(REASON).isNotNull()).select(*frame.columns, REASON, REFINED_AT)
        for table, kept in ((silver, good), (quarantine, refused)):
            table.append(kept, writer=checkpoint.query_id(), batch=batch)

    run_query(spark, pipeline, "refine", bronze.read_stream(), store)
    return silver.read().count()


def main(root: Path, jars: str) -> dict[str, Any]:
    (root / "visit.avsc").write_text(json.dumps(SCHEMA))
    refined = {
        "parse": "avro",
        "avro_schema": str(root / "visit.avsc"),
        # Also the name of the column with the message, and two that Spark takes for one.
        "fields": {"value": "bigint not null", "address": {"type": "string", "from": "page"}},
    }
    pipelines = {"p": {"source": {"path": "/none", "subscribe": "t"}, "refine": refined}}
    document = {"spark": {"root": str(root / "lake"), "format": "delta", "pipelines": pipelines}}
    pipeline = parse_spark(document, "test").pipeline()
    config = {"spark.jars": jars, "spark.sql.shuffle.partitions": "1", "spark.log.level": "ERROR"}
    config["spark.databricks.delta.snapshotPartitions"] = "1"
    config["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
    config["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    config["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # as in the session of others
    needs = required_packages([pipeline], config)
    assert not needs.packages, needs.packages  # the jars are there
    spark = build_session("local[2]", config=config | dict(needs.config))
    said: dict[str, Any] = {}
    wrong = table_of(RefineSpec, refined | {"fields": {"tags": "array<int>"}})
    try:
        parse(spark.createDataFrame([], COLUMNS), wrong)
    except ConfigError as error:
        said["nested"] = str(error)

    def land(messages: list[tuple[int, bytes]], kind: type[LakeBatchTable] = LakeBatchTable) -> int:
        rows = [(bytearray(v), "t", 0, at, None, "0", 0, at + 10, True, None) for at, v in messages]
        spark.createDataFrame(rows, COLUMNS).coalesce(1).write.mode("append").parquet(str(root / "inbox"))
        return land_stream(spark, pipeline, spark.readStream.schema(COLUMNS).parquet(str(root / "inbox")), kind)

    said["earlier"] = [land(MESSAGES[:3], EarlierTable), refine_earlier(spark, pipeline)]
    said["landed"] = [land(MESSAGES[3:]), land([(0, b"\x0c\x00\x00"), (50, b"\x0e\x00\x00")]), land([])]
    result = refine(spark, pipeline)
    said["refined"] = [result.rows_silver, result.rows_quarantined, result.duplicates, dict(result.reasons)]
    silver = open_table(spark, pipeline.silver)
    said["silver"] = sorted((row.offset, row.value, row.address or "") for row in silver.read().collect())
    quarantine = open_table(spark, pipeline.quarantine).read().collect()
    said["quarantine"] = sorted((row.offset, row.value.hex()) for row in quarantine)
    bronze = open_table(spark, pipeline.bronze)
    # A batch that comes again is left out, by number and whatever it holds; another writer is refused.
    writer = json.loads((root / "lake/p/_checkpoints/land/metadata").read_text())["id"]
    last = bronze.last_batch
    assert last is not None
    said["again"] = bronze.append(bronze.read(), writer=writer, batch=last)
    try:
        bronze.append(bronze.read(), writer="other", batch=last + 1)
    except ConsumerdError as error:
        said["other"] = type(error).__name__
    before = bronze.read().count()
    done = {Path(each.table).name: each for each in compact(spark, pipeline).tables}
    said["compacted"] = [done["bronze"].files_before > done["bronze"].files_after, done["bronze"].merged]
    said["kept"] = bronze.read().count() == before
    said["after"] = [refine(spark, pipeline).rows_silver, [[each.start, each.stop] for each in bronze.batches()]]
    spark.stop()
    return said


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), sys.argv[2])) + "\n")

"""A table in Delta's format, for object stores and existing Delta installations. Needs the extra `delta`.

Strategy: Delta commits by creating a file of its log, so the store needs no rename. A batch is a transaction whose
application is the checkpoint's id and whose version is the batch's number, and Delta itself skips one that it has. The
owner is a property of the table, set by the commit that creates it. Only SQL and options are used, apart from the
number of the last transaction, which only the log has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.base.errors import ConfigError, NotFoundError
from consumerd.spark.tables.errors import TableOwnedError, TableSchemaError
from consumerd.spark.tables.files import locate
from consumerd.spark.tables.schema import BATCH, with_batch
from consumerd.spark.tables.table import BatchTable, CompactResult

#: The jar for the package delta-spark 4.4.1, which has none of its own version.
DELTA_PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
DELTA_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_OWNER: Final = "consumerd.writer"


class DeltaTable(BatchTable):
    """See the module's text. Raises ConfigError where the session has no Delta."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.path, self._files = locate(spark, path, renames=False)
        self.path = self.path.rstrip("/")
        if "DeltaSparkSessionExtension" not in str(spark.conf.get("spark.sql.extensions", "")):
            settings = {"spark.jars.packages": DELTA_PACKAGE, **DELTA_SETTINGS}
            wanted = ", ".join(f"{key}={value}" for key, value in settings.items())
            raise ConfigError(f"this Spark session does not support Delta: start it with {wanted}.")

    @property
    def _name(self) -> str:
        return f"delta.`{self.path}`"

    @property
    def exists(self) -> bool:
        return self._files.exists(f"{self.path}/_delta_log")

    def append(self, frame: DataFrame, *, writer: str, batch: int) -> bool:
        if batch < 0:
            raise ValueError(f"batch {batch} is negative")
        if not self.exists:
            columns = ", ".join(
                f"`{field.name}` {field.dataType.simpleString()}" for field in with_batch(frame.schema).fields
            )
            self._spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self._name} ({columns}) USING delta "
                f"TBLPROPERTIES ('{_OWNER}' = '{writer}')"
            )
        owner = self._detail()["properties"].get(_OWNER)
        if owner != writer:
            raise TableOwnedError(
                f"the table {self.path} was written with another checkpoint ({owner}, this one is {writer}): restore "
                "that checkpoint, or move the table away to land everything again."
            )
        last = self.last_batch
        if last is not None and batch <= last:
            return False
        rows = frame.withColumn(BATCH, F.lit(batch).cast("bigint"))
        options = {"txnAppId": writer, "txnVersion": str(batch), "mergeSchema": "true"}
        try:
            rows.write.format("delta").mode("append").options(**options).save(self.path)
        except AnalysisException as error:
            raise TableSchemaError(f"rows do not fit the columns of {self.path}: {error.getCondition()}.") from error
        return True

    def _detail(self) -> Any:
        return self._spark.sql(f"DESCRIBE DETAIL {self._name}").collect()[0]

    def _must_exist(self) -> None:
        if not self.exists:
            raise NotFoundError(f"table {self.path} does not exist: run the step that writes it first.")

    def read(self, after: int = -1, to: int | None = None) -> DataFrame:
        self._must_exist()
        frame = self._spark.read.format("delta").load(self.path)
        if after >= 0:
            frame = frame.where(F.col(BATCH) > after)
        return frame if to is None else frame.where(F.col(BATCH) <= to)

    def read_stream(self, batches_per_trigger: int | None = None) -> DataFrame:
        """Delta's own stream; it counts files, of which a batch has at least one."""
        self._must_exist()
        reader = self._spark.readStream.format("delta")
        if batches_per_trigger is not None:
            reader = reader.option("maxFilesPerTrigger", batches_per_trigger)
        return reader.load(self.path)

    def batches(self) -> tuple[range, ...]:
        """From 0 to the last one: the batches of a checkpoint have no gaps."""
        if not self.exists:
            return ()
        owner = self._detail()["properties"].get(_OWNER)
        gateway: Any = self._spark.sparkContext._gateway  # noqa: SLF001 - pyspark has no public way to Delta's log
        log = gateway.jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self.path)  # noqa: SLF001
        version = log.unsafeVolatileSnapshot().transactions().get(owner)
        return () if version.isEmpty() else (range(int(version.get()) + 1),)

    def compact(self, target_bytes: int, *, keep_seconds: float = 3600.0) -> CompactResult:
        """Run OPTIMIZE. Merged files stay for time travel; VACUUM removes them, which is the owner's decision."""
        self._must_exist()
        before = self._detail()
        keys = ("spark.databricks.delta.optimize.maxFileSize", "spark.databricks.delta.optimize.minFileSize")
        kept = {key: self._spark.conf.get(key, None) for key in keys}
        try:
            for key in keys:
                self._spark.conf.set(key, target_bytes)
            (row,) = self._spark.sql(f"OPTIMIZE {self._name}").collect()
        finally:
            for key, value in kept.items():
                if value is None:
                    self._spark.conf.unset(key)
                else:
                    self._spark.conf.set(key, value)
        after = self._detail()
        return CompactResult(
            table=self.path,
            files_before=before["numFiles"],
            files_after=after["numFiles"],
            bytes_before=before["sizeInBytes"],
            bytes_after=after["sizeInBytes"],
            merged=row["metrics"]["numFilesAdded"],
            removed=0,
        )

"""A table whose files are written by Spark's tasks from Arrow, and committed by the driver without the JVM.

Strategy: the rows of a frame go to Python workers as Arrow batches; each task writes one file and returns one row that
describes it (`consumerd.spark.lake.tasks`). The driver commits those files together. Spark reads the files that the
table has now, by their names: it needs neither the format's jar nor a listing.

`mapInArrow` itself requires pandas, which is not needed for Arrow; so the same plan is made here without that check.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.data_file import DataFile
from consumerd.spark.lake.days import Days
from consumerd.spark.lake.folders import local_path
from consumerd.spark.lake.parts import ReadTable
from consumerd.spark.lake.table import BATCH, LakeTable
from consumerd.spark.lake.tasks import FILE, FILE_DDL, STORE_OPTION, FileTarget
from consumerd.spark.tables.batch_stream import TableStream
from consumerd.spark.tables.files import has_jvm, locate
from consumerd.spark.tables.layout import refuse_earlier_layout
from consumerd.spark.tables.store_options import store_options
from consumerd.spark.tables.table import BatchTable, CompactResult


class LakeBatchTable(BatchTable):
    """See the module's text. `format`: as for `open_lake_table`, whose errors it raises, too."""

    def __init__(self, spark: SparkSession, path: str, format: str) -> None:  # noqa: A002 - Spark's word
        self._spark = spark
        self._format = format
        if has_jvm(spark):
            located, files = locate(spark, path)
            refuse_earlier_layout(files, located.rstrip("/"))
        else:  # Spark Connect, whose server has to see the same folder
            here = local_path(path)
            located = path if here is None else locate(None, here)[0]
        self.path = located.rstrip("/")
        self.store = store_options(self.path, lambda name: spark.conf.get(name, None))
        self.lake: LakeTable = open_lake_table(self.path, format, storage_options=self.store)

    @property
    def exists(self) -> bool:
        return self.lake.exists

    def append(self, frame: DataFrame, *, writer: str, batch: int) -> bool:
        schema = stored_columns(frame.schema)
        if not self.lake.accepts(writer=writer, batch=batch, schema=schema):
            return False
        return self.lake.commit(self.write(frame, batch), writer=writer, batch=batch, schema=schema)

    def write(self, frame: DataFrame, number: int, days: Days | None = None) -> list[DataFile]:
        """Have tasks write the rows to files that no commit names yet. `number`: what the column `batch` has.

        `days`: how the table is divided. Raises as `append`.
        """
        target = FileTarget(self.path, stored_columns(frame.schema), {BATCH: number}, self.store, days)
        udf = UserDefinedFunction(target.write, FILE_DDL, "write", PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
        column: Any = udf(*(frame[f"`{name}`"] for name in frame.columns))
        plan: Any = frame
        described = DataFrame(plan._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)  # noqa: SLF001 - see above
        return [DataFile.from_json(row[FILE]) for row in described.collect()]

    @property
    def in_tasks(self) -> ReadTable:
        """How tasks read it, with Arrow."""
        return ReadTable(self.lake, self._format, self.store)

    def read(self, after: int = -1, to: int | None = None) -> DataFrame:
        schema = self.schema()
        files = self.lake.files(after, to)
        if not files:
            return self._spark.createDataFrame([], schema)
        frame = self._spark.read.schema(schema).parquet(*(self._url(each) for each in files))
        if after >= 0:
            frame = frame.where(F.col(BATCH) > after)
        return frame if to is None else frame.where(F.col(BATCH) <= to)

    def schema(self) -> StructType:
        """All columns. Raises NotFoundError."""
        return from_arrow_schema(self.lake.schema(), prefer_timestamp_ntz=True)

    def _url(self, file: DataFile) -> str:
        path = f"{self.path}/{file.path}"
        return f"file://{path}" if path.startswith("/") else path  # Spark's default file system does not matter then

    def read_stream(self, batches_per_trigger: int | None = None) -> DataFrame:
        self._spark.dataSource.register(TableStream)
        options = {"path": self.path, "tableFormat": self._format, STORE_OPTION: json.dumps(self.store)}
        if batches_per_trigger is not None:
            options["batchesPerTrigger"] = str(batches_per_trigger)
        return self._spark.readStream.format(TableStream.name()).schema(self.schema()).options(**options).load()

    def batches(self) -> tuple[range, ...]:
        return self.lake.batches()

    def compact(self, target_bytes: int) -> CompactResult:
        """Merge small files, which stay for readers and for time travel until `vacuum` removes them."""
        return self.lake.optimize(target_bytes)


def with_batch(schema: StructType) -> StructType:
    """The columns as they are stored: with `batch`, last."""
    kept = [field for field in schema.fields if field.name.lower() != BATCH]
    return StructType([*kept, StructField(BATCH, LongType(), nullable=True)])


def stored_columns(schema: StructType) -> pa.Schema:
    """The columns as files have them: `with_batch`, nullable, and times in UTC."""
    return to_arrow_schema(with_batch(schema).toNullable(), timezone="UTC")

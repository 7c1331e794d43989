"""A table in the earlier Parquet layout, for reading: `consumerd spark convert` turns it into a Delta table."""

from __future__ import annotations

import json
import sys
from typing import NoReturn

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StructType

from consumerd.base.errors import NotFoundError
from consumerd.base.files import Files
from consumerd.spark.lake.table import BATCH
from consumerd.spark.tables.errors import TableCorruptError
from consumerd.spark.tables.layout import (
    SCHEMA_FILE,
    Slice,
    cut,
    has_earlier_layout,
    parse_folders,
    refuse_earlier_layout,
    resolve,
)
from consumerd.spark.tables.table import BatchTable, CompactResult


class ParquetTable(BatchTable):
    """See the module's text. What would write to it raises TablePathError, and so does a stream over it."""

    def __init__(self, spark: SparkSession, path: str, files: Files) -> None:
        """`path`: qualified, as `locate` returns it."""
        self._spark = spark
        self._files = files
        self.path = path

    @property
    def exists(self) -> bool:
        return has_earlier_layout(self._files, self.path)

    def batches(self) -> tuple[range, ...]:
        ranges: list[range] = []
        for each in self._slices():
            if ranges and ranges[-1].stop == each.first:
                ranges[-1] = range(ranges[-1].start, each.last + 1)
            else:
                ranges.append(range(each.first, each.last + 1))
        return tuple(ranges)

    def _slices(self) -> list[Slice]:
        return resolve(parse_folders(each.name for each in self._files.entries(self.path) if each.is_directory))

    def schema(self) -> StructType:
        """All columns. Raises NotFoundError where nothing was ever written, TableCorruptError."""
        path = f"{self.path}/{SCHEMA_FILE}"
        data = self._files.read(path)
        if data is None:
            raise NotFoundError(f"table {self.path} does not exist: run the step that writes it first.")
        try:
            return StructType.fromJson(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError) as error:
            raise TableCorruptError(
                f"{path} is not a valid list of columns ({error}): restore it from a backup."
            ) from None

    def read(self, after: int = -1, to: int | None = None) -> DataFrame:
        schema = self.schema()
        slices = cut(self._slices(), after, sys.maxsize if to is None else to)
        reader = self._spark.read.schema(schema)
        whole = [self._url(each) for each in slices if each.is_whole]
        frame = reader.parquet(*whole) if whole else self._spark.createDataFrame([], schema)
        for each in slices:
            if not each.is_whole:
                part = reader.parquet(self._url(each))
                frame = frame.unionAll(part.where(F.col(BATCH).between(each.first, each.last)))
        return frame

    def _url(self, part: Slice) -> str:
        path = f"{self.path}/{part.folder.name}"
        return f"file://{path}" if path.startswith("/") else path  # Spark's default file system does not matter then

    def append(self, frame: DataFrame, *, writer: str, batch: int) -> bool:
        self._refuse()

    def read_stream(self, batches_per_trigger: int | None = None) -> DataFrame:
        self._refuse()

    def compact(self, target_bytes: int) -> CompactResult:
        self._refuse()

    def _refuse(self) -> NoReturn:
        refuse_earlier_layout(self._files, self.path)
        raise NotFoundError(f"table {self.path} does not exist: it was converted, so open it again.")

"""A table as a folder of batches in Parquet files. The rename of a batch's folder is its commit.

    <table>/_table.json                        whose it is (`ownership`)
    <table>/_schema.json                       its columns (`schema`)
    <table>/batch=<20 digits>/part-*.parquet   one batch
    <table>/batch=<first>-<last>/...           batches that compaction merged (`compaction`)
    <table>/_staging/<random>/                 what is being written

Strategy. There is no list of files that had to be kept right: names of folders say it all (`layout`). A batch is
written under a name of its writer, synced and renamed. A writer that was killed leaves a folder in `_staging`, which
the next one removes; that fences a writer that was only thought dead, too, whose rename then finds nothing. Of two that
write the same batch one rename wins, and as a checkpoint gives both the same rows, it does not matter which.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.errors import NotFoundError
from consumerd.spark.tables import ownership
from consumerd.spark.tables.batch_stream import BatchStream
from consumerd.spark.tables.files import locate
from consumerd.spark.tables.layout import STAGING, BatchFolder, Slice, batch_name, cut, has_gap, parse_folders, resolve
from consumerd.spark.tables.schema import BATCH, stored_schema, widen, with_batch
from consumerd.spark.tables.table import CompactResult, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_WRITING: Final = {
    "compression": "zstd",  # half the size of snappy at the same speed of reading
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Payloads seldom repeat, and where large ones do, a file would not tell how much memory its rows take.
    "parquet.enable.dictionary#value": "false",
}
_APPEND: Final = "append-"


class ParquetTable(Table):
    """See the module's text. The folder is made by the first `append`."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.path, self.files = locate(spark, path, renames=True)
        self.path = self.path.rstrip("/")
        #: The last batch that is known to be there, -1 for none; None until this process first writes.
        self._found: int | None = None

    @property
    def exists(self) -> bool:
        return self.files.exists(f"{self.path}/{ownership.FILE}")

    def append(self, frame: DataFrame, *, writer: str, batch: int) -> bool:
        if batch < 0:
            raise ValueError(f"batch {batch} is negative")
        ownership.claim(self.files, self.path, kind="parquet", writer=writer)
        staging = f"{self.path}/{STAGING}"
        found = self._take_over(staging) if self._found is None else self._found
        # That nobody else has written the batches behind those is for the rename to tell: a table with many folders is
        # not listed for every batch.
        if batch <= found and any(each.first <= batch <= each.last for each in self.folders()):
            return False
        rows = frame.withColumn(BATCH, F.lit(batch).cast("bigint"))
        widen(self.files, self.path, with_batch(frame.schema))
        fresh = f"{staging}/{_APPEND}{batch}-{secrets.token_hex(8)}"
        written = self.commit(rows, fresh, batch_name(batch))
        self._found = max(found, batch)
        return written

    def _take_over(self, staging: str) -> int:
        """What the first write of a process does about those before it; the last batch that they wrote, or -1."""
        # What was renamed by somebody who did not live to sync it must not vanish once the checkpoint goes on.
        self.files.settle(self.path)
        for entry in self.files.entries(staging):
            if entry.name.startswith(_APPEND):
                self.files.remove(f"{staging}/{entry.name}")
        self._found = max((folder.last for folder in self.folders()), default=-1)
        return self._found

    def commit(self, rows: DataFrame, fresh: str, name: str) -> bool:
        """Write `rows` to the folder `fresh`, then call it `name`; False where another folder of that name is first."""
        self.files.make_folder(fresh.rpartition("/")[0])
        rows.write.options(**_WRITING).parquet(self.url(fresh))
        if self.files.rename_folder(fresh, f"{self.path}/{name}"):
            return True
        self.files.remove(fresh)
        return False

    def url(self, path: str) -> str:
        """The path as Spark cannot mistake it, whatever its default file system."""
        return f"file://{path}" if path.startswith("/") else path

    def folders(self) -> list[BatchFolder]:
        """Folders of batches, those that compaction made superfluous too."""
        return parse_folders(entry.name for entry in self.files.entries(self.path) if entry.is_folder)

    def slices(self) -> list[Slice]:
        """What to read for all batches, each once."""
        slices = resolve(self.folders())
        if has_gap(slices):
            # A listing takes its time, and what is renamed meanwhile may be in it or not: batch 8, but not 7. By now
            # 7 is there, if it ever was.
            slices = resolve(self.folders())
        return slices

    def batches(self) -> tuple[range, ...]:
        ranges: list[range] = []
        for each in self.slices():
            if ranges and ranges[-1].stop == each.first:
                ranges[-1] = range(ranges[-1].start, each.last + 1)
            else:
                ranges.append(range(each.first, each.last + 1))
        return tuple(ranges)

    def schema(self) -> StructType:
        """All columns. Raises NotFoundError where nothing was ever written."""
        schema = stored_schema(self.files, self.path)
        if schema is None:
            raise NotFoundError(f"table {self.path} does not exist: run the step that writes it first.")
        return schema

    def read(self, after: int = -1, to: int | None = None) -> DataFrame:
        schema = self.schema()
        slices = self.slices()
        if to is None:
            to = slices[-1].last if slices else -1
        return self.frame(cut(slices, after, to), schema)

    def frame(self, slices: list[Slice], schema: StructType) -> DataFrame:
        """The rows of these slices."""
        reader = self._spark.read.schema(schema)
        whole = [self.url(f"{self.path}/{each.folder.name}") for each in slices if each.is_whole]
        frame = reader.parquet(*whole) if whole else self._spark.createDataFrame([], schema)
        for each in slices:
            if not each.is_whole:
                part = reader.parquet(self.url(f"{self.path}/{each.folder.name}"))
                frame = frame.unionAll(part.where(F.col(BATCH).between(each.first, each.last)))
        return frame

    def read_stream(self, batches_per_trigger: int | None = None) -> DataFrame:
        schema = self.schema()
        self._spark.dataSource.register(BatchStream)
        reader = self._spark.readStream.format(BatchStream.name()).schema(schema).option("path", self.path)
        if batches_per_trigger is not None:
            reader = reader.option("batchesPerTrigger", batches_per_trigger)
        return reader.load()

    def compact(self, target_bytes: int, *, keep_seconds: float = 3600.0) -> CompactResult:
        from consumerd.spark.tables.compaction import compact  # noqa: PLC0415 - which needs this module

        return compact(self, target_bytes, keep_seconds)

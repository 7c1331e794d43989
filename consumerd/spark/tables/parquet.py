"""A table as a directory of batches in Parquet files. The rename of a batch's directory is its commit.

    <table>/_table.json                        the checkpoint that owns it (`schema`)
    <table>/_schema.json                       its columns (`schema`)
    <table>/batch=<20 digits>/part-*.parquet   one batch
    <table>/batch=<first>-<last>/...           batches that compaction merged
    <table>/_staging/<random>/                 an unfinished batch

Strategy. There is no list of files to keep consistent: the names of directories are enough (`layout`). A batch is
written under a random name, synced and renamed. A killed writer leaves a directory in `_staging`, which the next one
removes; that also fences a writer that was wrongly thought dead, whose rename then finds nothing. Of two that write the
same batch one rename wins, and as a checkpoint gives both the same rows, it does not matter which.

Compaction writes a group of neighbouring batches as a directory that names the first and the last one, and its rename
is the whole commit: from then on readers take these batches from it. The directories that it covers are removed later,
when readers that began before have ended. Killed anywhere, it leaves `_staging` and covered directories; the next
compaction removes both. Rows keep their column `batch`, so that streams continue where they were.

A group is closed once it has the target's size. The last, smaller one is merged again as batches are added: for each
compaction, less than the target's size is written more than once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.base.errors import NotFoundError
from consumerd.base.files import FileEntry
from consumerd.spark.tables.batch_stream import TableStream
from consumerd.spark.tables.errors import TablePathError
from consumerd.spark.tables.files import locate
from consumerd.spark.tables.layout import (
    OWNER_FILE,
    STAGING,
    BatchFolder,
    Slice,
    batch_name,
    covered,
    cut,
    has_gap,
    merged_name,
    parse_folders,
    resolve,
)
from consumerd.spark.tables.schema import BATCH, claim, stored_schema, widen, with_batch
from consumerd.spark.tables.table import BatchTable, CompactResult

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_WRITING: Final = {
    "compression": "zstd",  # half the size of snappy at the same speed of reading
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Payloads seldom repeat, and where large ones do, the file size would not show how much memory its rows take.
    "parquet.enable.dictionary#value": "false",
}
_APPEND: Final = "append-"


class ParquetTable(BatchTable):
    """See the module's text. The folder is made by the first `append`."""

    def __init__(self, spark: SparkSession, path: str, *, appends: bool = True) -> None:
        self._spark = spark
        self.path, self.files = locate(spark, path, renames=appends)
        self.path = self.path.rstrip("/")
        self._appends = appends
        #: The last batch that is known to be there, -1 for none; None until this process first writes.
        self._found: int | None = None

    @classmethod
    def existing(cls, spark: SparkSession, path: str) -> Self | None:
        """The table at `path`, to be read; None if there is none."""
        table = cls(spark, path, appends=False)
        return table if table.exists else None

    @property
    def exists(self) -> bool:
        return self.files.exists(f"{self.path}/{OWNER_FILE}")

    def append(self, frame: DataFrame, *, writer: str, batch: int) -> bool:
        if batch < 0:
            raise ValueError(f"batch {batch} is negative")
        if not self._appends:
            raise TablePathError(
                f"{self.path} holds a table in the earlier Parquet format: turn it into a Delta table with "
                "`consumerd spark convert`."
            )
        claim(self.files, self.path, kind="parquet", writer=writer)
        staging = f"{self.path}/{STAGING}"
        found = self._take_over(staging) if self._found is None else self._found
        # The rename detects another writer of the batches after `found`: a table with many folders is
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
        """Clean up after earlier processes at the first write; returns the last batch that they wrote, or -1."""
        # A rename that a killed process did not sync must not vanish once the checkpoint continues.
        self.files.sync_directory(self.path)
        for entry in self.files.entries(staging, missing_ok=True):
            if entry.name.startswith(_APPEND):
                self.files.remove_tree(f"{staging}/{entry.name}")
        self._found = max((folder.last for folder in self.folders()), default=-1)
        return self._found

    def commit(self, rows: DataFrame, fresh: str, name: str) -> bool:
        """Write `rows` to the folder `fresh`, then call it `name`; False where another folder of that name is first."""
        self.files.make_directory(fresh.rpartition("/")[0])
        rows.write.options(**_WRITING).parquet(self.url(fresh))
        if self.files.rename_directory(fresh, f"{self.path}/{name}"):
            return True
        self.files.remove_tree(fresh)
        return False

    def url(self, path: str) -> str:
        """The path as a URL, so that Spark's default file system does not matter."""
        return f"file://{path}" if path.startswith("/") else path

    def folders(self) -> list[BatchFolder]:
        """Directories of batches, including those that compaction has replaced."""
        return parse_folders(
            entry.name for entry in self.files.entries(self.path, missing_ok=True) if entry.is_directory
        )

    def slices(self) -> list[Slice]:
        """The slices to read for all batches, each once."""
        slices = resolve(self.folders())
        if has_gap(slices):
            # A listing takes its time, and a batch renamed meanwhile may be in it or not: batch 8, but not 7. By now
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
        self._spark.dataSource.register(TableStream)
        reader = self._spark.readStream.format(TableStream.name()).schema(schema).option("path", self.path)
        if batches_per_trigger is not None:
            reader = reader.option("batchesPerTrigger", batches_per_trigger)
        return reader.load()

    def compact(self, target_bytes: int, *, keep_seconds: float = 3600.0) -> CompactResult:
        return compact(self, target_bytes, keep_seconds)


_COMPACT: Final = "compact-"


@dataclass(frozen=True, slots=True)
class SizedSlice:
    """A slice with the number and the size (bytes) of its folder's files."""

    slice: Slice
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MergeGroup:
    """Neighbours to merge into `parts` files."""

    members: tuple[SizedSlice, ...]
    parts: int

    @property
    def name(self) -> str:
        """The directory to create."""
        return merged_name(self.members[0].slice.first, self.members[-1].slice.last)


def plan(weighed: Iterable[SizedSlice], target_bytes: int) -> list[MergeGroup]:
    """Groups to merge, each into fewer files. Batches keep their order and leave no gap."""
    groups: list[MergeGroup] = []
    members: list[SizedSlice] = []

    def close() -> None:
        parts = max(1, round(sum(each.bytes for each in members) / target_bytes))
        lone = len(members) == 1 and members[0].slice.folder.is_merged  # its name is taken, by itself
        if members and not lone and sum(each.files for each in members) > parts:
            groups.append(MergeGroup(tuple(members), parts))
        members.clear()

    for each in weighed:
        full = sum(member.bytes for member in members) + each.bytes > target_bytes
        if members and (full or members[-1].slice.last + 1 != each.slice.first):
            close()
        members.append(each)
    close()
    return groups


def compact(table: ParquetTable, target_bytes: int, keep_seconds: float) -> CompactResult:
    """See BatchTable.compact."""
    if target_bytes <= 0:
        raise ValueError(f"target_bytes = {target_bytes} is not positive")
    schema = table.schema()
    staging = f"{table.path}/{STAGING}"
    for entry in table.files.entries(staging, missing_ok=True):
        if entry.name.startswith(_COMPACT):
            table.files.remove_tree(f"{staging}/{entry.name}")
    before = _weigh(table, table.slices())
    merged = 0
    for group in plan(before, target_bytes):
        rows = table.frame([each.slice for each in group.members], schema).coalesce(group.parts)
        merged += table.commit(rows, f"{staging}/{_COMPACT}{secrets.token_hex(8)}", group.name)
    removed = _remove_covered(table, keep_seconds)
    after = _weigh(table, table.slices())
    return CompactResult(
        table=table.path,
        files_before=sum(each.files for each in before),
        files_after=sum(each.files for each in after),
        bytes_before=sum(each.bytes for each in before),
        bytes_after=sum(each.bytes for each in after),
        merged=merged,
        removed=removed,
    )


def _weigh(table: ParquetTable, slices: Iterable[Slice]) -> list[SizedSlice]:
    weighed = []
    for each in slices:
        entries = table.files.entries(f"{table.path}/{each.folder.name}", sized=True)
        sizes = [entry.size for entry in entries if _is_data(entry)]
        weighed.append(SizedSlice(each, len(sizes), sum(sizes)))
    return weighed


def _is_data(entry: FileEntry) -> bool:
    return not entry.is_directory and entry.name[:1] not in "._"


def _remove_covered(table: ParquetTable, keep_seconds: float) -> int:
    """Remove folders that others cover, if those are old enough; how many."""
    folders = table.folders()
    changed = {entry.name: entry.changed for entry in table.files.entries(table.path, sized=True)}
    used = [each.folder for each in resolve(folders)]
    limit = time.time() - keep_seconds
    removed = 0
    for folder in covered(folders):
        over = [each for each in used if each.first <= folder.last and folder.first <= each.last]
        if all(changed.get(each.name, limit + 1) <= limit for each in over):
            table.files.remove_tree(f"{table.path}/{folder.name}")
            removed += 1
    return removed

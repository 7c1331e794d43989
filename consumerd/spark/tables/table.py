"""What a table of the pipeline is to the steps, whichever format it has, and how to open one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from consumerd.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What a compaction did to one table. Sizes in bytes."""

    table: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    #: Folders (Delta: files) that took the place of others.
    merged: int
    #: Folders that nobody reads any more and that were removed.
    removed: int

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


class Table(ABC):
    """Rows in batches, each written once. Paths are as Spark takes them."""

    #: The path that was given, qualified.
    path: str

    @property
    @abstractmethod
    def exists(self) -> bool:
        """Whether anything was ever written."""

    @abstractmethod
    def append(self, frame: DataFrame, *, writer: str, batch: int) -> bool:
        """Write the rows as batch `batch` (from 0, one more each time) of the checkpoint `writer`.

        Does nothing and returns False where the table has that batch already: the rows are the same then, since a
        checkpoint says what belongs to a batch before it is written. The column `batch` is added (or replaced). All
        rows appear at once, and survive a loss of power when this returns. Raises TableOwnedError for another writer
        than the first one's, TableSchemaError for a column that comes with another type.
        """

    @abstractmethod
    def read(self, after: int = -1, to: int | None = None) -> DataFrame:
        """All rows as they are now, or those of batches greater than `after` and up to `to`. Raises NotFoundError."""

    @abstractmethod
    def read_stream(self, batches_per_trigger: int | None = None) -> DataFrame:
        """The rows as a stream, so many batches at a time at most. Not disturbed by compaction.

        Raises NotFoundError where nothing was ever written.
        """

    @abstractmethod
    def batches(self) -> tuple[range, ...]:
        """Numbers of the batches that are there, as disjoint ascending ranges."""

    @property
    def last_batch(self) -> int | None:
        """The greatest batch number; None while there is none."""
        ranges = self.batches()
        return ranges[-1][-1] if ranges else None

    @abstractmethod
    def compact(self, target_bytes: int, *, keep_seconds: float = 3600.0) -> CompactResult:
        """Merge small files into files of about `target_bytes`. May be killed and repeated at any time.

        What was merged is removed by a compaction at least `keep_seconds` later, since readers may be at it still.
        """


def open_table(spark: SparkSession, path: str, format: Literal["parquet", "delta"] | str = "parquet") -> Table:  # noqa: A002 - Spark's word
    """The table at `path`, which need not exist yet. Raises TablePathError, ConfigError for an unknown format."""
    if format == "parquet":
        from consumerd.spark.tables.parquet import ParquetTable  # noqa: PLC0415 - executors do not need it

        return ParquetTable(spark, path)
    if format == "delta":
        from consumerd.spark.tables.delta import DeltaTable  # noqa: PLC0415 - likewise

        return DeltaTable(spark, path)
    raise ConfigError(f"{format!r} is not a table format: must be parquet or delta.")

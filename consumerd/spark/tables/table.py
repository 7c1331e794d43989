"""The interface of a pipeline's table, whichever format it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class FlatResult:
    """The result of a step, which is shown by its fields."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CompactResult(FlatResult):
    """The result of the compaction of one table. Sizes in bytes."""

    table: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    #: Files that took the place of others.
    merged: int
    #: Files that no version needs any more and were removed.
    removed: int


class BatchTable(ABC):
    """Rows in batches, each written once. Paths are as Spark takes them."""

    #: The path that was given, qualified.
    path: str

    @property
    @abstractmethod
    def exists(self) -> bool:
        """Whether the table was ever written to."""

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
        """The rows as a stream, this many batches at a time at most. Not disturbed by compaction.

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
    def compact(self, target_bytes: int) -> CompactResult:
        """Merge small files into files of about `target_bytes`. May be killed and repeated at any time."""

"""The interface of a table that is written without Spark, whichever format it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from consumerd.spark.lake.data_file import DataFile
from consumerd.spark.lake.folders import open_folder
from consumerd.spark.lake.offsets import TableOffsets
from consumerd.spark.tables.errors import TableError
from consumerd.spark.tables.table import CompactResult

if TYPE_CHECKING:
    import pyarrow as pa

    from consumerd.spark.lake.days import Days

#: The column with the batch of each row: bigint, in every file.
BATCH: Final = "batch"
#: The table's property with the id of the checkpoint that owns it.
OWNER: Final = "consumerd.writer"
#: The columns with the place of a message, from the outermost on.
_PLACE: Final = ("topic", "broker", "partition", "offset")


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One commit of a table. `at`: by the clock of the process that committed."""

    version: int
    at: datetime
    operation: str


class LakeTable(Protocol):
    """Rows in batches, each committed once. Methods raise TableError where the table cannot be read or written.

    TableCorruptError where what describes it is damaged. A reader sees one version of the table per call.
    """

    #: As given, without a slash at its end.
    path: str

    @property
    def exists(self) -> bool:
        """Whether the table was ever written to."""
        ...

    def owner(self) -> str | None:
        """The checkpoint whose batch numbers the table has; None before the first commit."""
        ...

    def schema(self) -> pa.Schema:
        """All columns, all of them nullable. Raises NotFoundError."""
        ...

    def batches(self) -> tuple[range, ...]:
        """Numbers of the batches that are there, as disjoint ascending ranges."""
        ...

    def offsets(self) -> TableOffsets | None:
        """Where the last batch ends in its source; None where its commit does not say. Raises TableCorruptError."""
        ...

    def commit(
        self,
        files: Sequence[DataFile],
        *,
        writer: str,
        batch: int,
        schema: pa.Schema,
        offsets: TableOffsets | None = None,
        days: Days | None = None,
    ) -> bool:
        """Add the files as batch `batch` (from 0, one more each time) of the checkpoint `writer`.

        Does nothing and returns False where the table has that batch already. `schema`: the columns of the files, with
        `batch`; a new one is added to the table. `offsets`: where the batch ends in its source, in the same commit. All
        rows appear at once, and survive a loss of power on return. Raises TableOwnedError for another writer than the
        first one's, TableSchemaError for a column that comes with another type, TablePathError where the folder holds a
        table of another kind, TableError for a table that is not divided by these `days`.
        """
        ...

    def replace(
        self,
        files: Sequence[DataFile],
        *,
        writer: str,
        batch: int,
        schema: pa.Schema,
        rebuild: str,
        days: Days | None = None,
    ) -> bool:
        """Put the files in the place of all that there are, in one commit, as the batches up to `batch` of `writer`.

        `schema`: the columns that the table has then. `rebuild`: a name that no other replacement has; does nothing and
        returns False where it was made already. Raises as `commit`.
        """
        ...

    def was_rebuilt(self, rebuild: str) -> bool:
        """Whether `replace` was made with that name."""
        ...

    def must_have(self, days: Days | None) -> None:
        """Raise TableError if the table exists and is divided in another way."""
        ...

    def accepts(self, *, writer: str, batch: int, schema: pa.Schema, days: Days | None = None) -> bool:
        """Whether `commit` would add that batch, before its files are written. Raises as `commit`."""
        ...

    def files(self, after: int = -1, to: int | None = None) -> list[DataFile]:
        """The files that may have rows of batches greater than `after` and up to `to`, by their first batch.

        A file may have rows of other batches, too: the column `batch` tells. Raises NotFoundError.
        """
        ...

    def dataset(self, after: int = -1, to: int | None = None) -> Any:
        """The rows, or those of these batches, as a `pyarrow.dataset.Dataset`. Raises NotFoundError."""
        ...

    def optimize(self, target_bytes: int) -> CompactResult:
        """Merge small files into files of about `target_bytes`. May be killed and repeated at any time.

        The merged files stay for readers, until `vacuum`. Raises NotFoundError.
        """
        ...

    def vacuum(self, keep_seconds: float, *, dry_run: bool = False) -> list[str]:
        """Remove files that no version of the last `keep_seconds` has; return their paths in the table's folder.

        Such are merged files, and those of a writer that was killed. A file that is not committed yet looks like the
        latter, so `keep_seconds` must be longer than the longest batch. Raises NotFoundError.
        """
        ...

    def version(self) -> int:
        """The number of the last commit. Raises NotFoundError."""
        ...

    def history(self, limit: int | None = None) -> list[TableVersion]:
        """The commits that can still be read, the last one first. Raises NotFoundError."""
        ...

    def as_of(self, version: int | datetime) -> LakeTable:
        """The table as it was: for reading only. Raises NotFoundError where there is no such version."""
        ...


def other_division(path: str, found: str, wanted: str) -> TableError:
    """The error of a table whose division the configuration has changed. Empty text: none."""
    return TableError(
        f"the table {path} is partitioned by {found or 'nothing'}, and the configuration says {wanted or 'nothing'}: "
        "restore partition_by, or move the table and its checkpoint away to write everything again."
    )


def must_be_there(table: str, files: Sequence[DataFile], storage_options: Mapping[str, str] | None = None) -> None:
    """Raise TableError if a file of the table that is to be committed is missing, and OSError as DataFolder.

    A vacuum whose clock jumped ahead takes a file that was just written for an old one that no version has.
    """
    missing = open_folder(table, storage_options).missing([each.path for each in files]) if files else []
    if missing:
        raise TableError(
            f"{table}/{missing[0]} was removed before it was committed: check that the clock is right, and that "
            "nothing but compact removes files; nothing was committed, and the same command continues from there."
        )


def reading_order(file: DataFile) -> tuple[object, ...]:
    """A key to sort files by: batches, and within one the places of its messages in their logs.

    Tasks finish in any order. What is read in this order ascends within each log, so that nobody looks for duplicates
    where a log is spread over several files.
    """
    first = [file.minimums.get(name) for name in _PLACE]
    places = [(value is not None, value) for value in first]
    return file.minimums.get(BATCH, -1), file.maximums.get(BATCH, -1), *places, file.path

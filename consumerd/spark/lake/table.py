"""A table that is written without Spark, whichever format it has: what all have in common, and what each must have.

Strategy: a change is an attempt on one snapshot, which is repeated on a new one where another commit was faster.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Self, TypeAlias, TypeVar

from consumerd.base.errors import NotFoundError
from consumerd.spark.lake.data_file import DataFile
from consumerd.spark.lake.folders import local_path, open_folder
from consumerd.spark.lake.offsets import TableOffsets
from consumerd.spark.tables.errors import TableError, TableOwnedError
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


_Snapshot = TypeVar("_Snapshot")
#: Commits that may be faster than ours, one after the other, and the seconds after which we try again, at most.
_ATTEMPTS: Final = 30
_PAUSE: Final = 0.5


class TableChange(NamedTuple):
    """What a commit adds: files of the batch `batch`, the last one of the checkpoint `writer`."""

    files: Sequence[DataFile]
    writer: str
    batch: int
    schema: pa.Schema
    days: Days | None
    offsets: TableOffsets | None = None


class SnapshotTable(ABC, Generic[_Snapshot]):
    """Rows in batches, each committed once. Methods raise TableError where the table cannot be read or written.

    TableCorruptError where what describes it is damaged. A reader sees one version of the table per call. What differs
    by the format is how a snapshot is opened, read and committed.
    """

    def __init__(self, path: str, storage_options: Mapping[str, str] | None, pinned: int | None) -> None:
        local = local_path(path)
        #: As given, without a slash at its end.
        self.path = (path if local is None else local).rstrip("/")
        self._is_local = local is not None
        self._options = dict(storage_options or {})
        #: The version to read; None: the newest one.
        self._pinned = pinned

    @property
    def data_options(self) -> dict[str, str]:
        """The options of the object store by which data files are written."""
        return self._options

    # -- what a format has

    @abstractmethod
    def _open(self) -> _Snapshot | None:
        """A new snapshot of the table; None if there is none."""

    @abstractmethod
    def _owner(self, table: _Snapshot) -> str | None:
        """The checkpoint that owns the table."""

    @abstractmethod
    def _last_batch(self, table: _Snapshot, writer: str | None) -> int | None:
        """The number of the last batch of `writer`."""

    @abstractmethod
    def _must_have(self, days: Days | None, table: _Snapshot) -> None:
        """As `must_have`."""

    @abstractmethod
    def _must_fit(self, table: _Snapshot, schema: pa.Schema) -> None:
        """Raise TableSchemaError for columns that come with another type, or another name."""

    @abstractmethod
    def _arrow(self, table: _Snapshot) -> pa.Schema:
        """All columns, all of them nullable."""

    @abstractmethod
    def _append(self, change: TableChange) -> bool:
        """As `commit`."""

    @abstractmethod
    def _overwrite(self, change: TableChange, rebuild: str) -> bool:
        """As `replace`."""

    @abstractmethod
    def _has_rebuilt(self, table: _Snapshot, rebuild: str) -> bool:
        """As `was_rebuilt`."""

    @abstractmethod
    def _attempted(self, attempt: Callable[[], bool]) -> bool | None:
        """What `attempt` returned, durable; None if another commit was, or may have been, faster."""

    # -- reading

    @property
    def exists(self) -> bool:
        """Whether the table was ever written to."""
        return self._open() is not None

    def owner(self) -> str | None:
        """The checkpoint whose batch numbers the table has; None before the first commit."""
        table = self._open()
        return None if table is None else self._owner(table)

    def schema(self) -> pa.Schema:
        """All columns, all of them nullable. Raises NotFoundError."""
        return self._arrow(self._existing())

    def batches(self) -> tuple[range, ...]:
        """Numbers of the batches that are there, as disjoint ascending ranges: those of a checkpoint have no gaps."""
        table = self._open()
        last = None if table is None else self._last_batch(table, self._owner(table))
        return () if last is None else (range(last + 1),)

    @abstractmethod
    def offsets(self) -> TableOffsets | None:
        """Where the last batch ends in its source; None where its commit does not say. Raises TableCorruptError."""

    @abstractmethod
    def files(self, after: int = -1, to: int | None = None) -> list[DataFile]:
        """The files that may have rows of batches greater than `after` and up to `to`, by their first batch.

        A file may have rows of other batches, too: the column `batch` tells. Raises NotFoundError.
        """

    @abstractmethod
    def dataset(self, after: int = -1, to: int | None = None) -> Any:
        """The rows, or those of these batches, as a `pyarrow.dataset.Dataset`. Raises NotFoundError."""

    @abstractmethod
    def version(self) -> int:
        """The number of the last commit. Raises NotFoundError."""

    @abstractmethod
    def history(self, limit: int | None = None) -> list[TableVersion]:
        """The commits that can still be read, the last one first. Raises NotFoundError."""

    @abstractmethod
    def as_of(self, version: int | datetime) -> Self:
        """The table as it was: for reading only. Raises NotFoundError where there is no such version."""

    def _existing(self) -> _Snapshot:
        table = self._open()
        if table is None:
            raise NotFoundError(f"table {self.path} does not exist: run the step that writes it first.")
        return table

    # -- writing

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
        if batch < 0:
            raise ValueError(f"batch {batch} is negative")
        if BATCH not in schema.names:
            raise ValueError(f"the columns {schema.names} lack {BATCH}")
        return self._append(TableChange(files, writer, batch, schema, days, offsets))

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
        return self._overwrite(TableChange(files, writer, batch, schema, days), rebuild)

    def must_become(self, schema: pa.Schema) -> None:
        """Raise TableSchemaError if `replace` cannot give the table these columns."""

    def was_rebuilt(self, rebuild: str) -> bool:
        """Whether `replace` was made with that name."""
        table = self._open()
        return table is not None and self._has_rebuilt(table, rebuild)

    def must_have(self, days: Days | None) -> None:
        """Raise TableError if the table exists and is divided in another way."""
        table = self._open()
        if table is not None:
            self._must_have(days, table)

    def accepts(self, *, writer: str, batch: int, schema: pa.Schema, days: Days | None = None) -> bool:
        """Whether `commit` would add that batch, before its files are written. Raises as `commit`."""
        table = self._open()
        if table is None:
            return True
        self._must_accept(writer, table)
        self._must_have(days, table)
        self._must_fit(table, schema)
        last = self._last_batch(table, writer)
        return last is None or batch > last

    def _must_accept(self, writer: str, table: _Snapshot) -> None:
        """Raise TableOwnedError if the table is another writer's."""
        owner = self._owner(table)
        if owner != writer:
            raise TableOwnedError(
                f"the table {self.path} was written with another checkpoint ({owner}, this one is {writer}): restore "
                "that checkpoint, or move the table away to write everything again."
            )

    @abstractmethod
    def optimize(self, target_bytes: int) -> CompactResult:
        """Merge small files into files of about `target_bytes`. May be killed and repeated at any time.

        The merged files stay for readers, until `vacuum`. Raises NotFoundError.
        """

    @abstractmethod
    def vacuum(self, keep_seconds: float, *, dry_run: bool = False) -> list[str]:
        """Remove files that no version of the last `keep_seconds` has; return their paths in the table's folder.

        Such are merged files, and those of a writer that was killed. A file that is not committed yet looks like the
        latter, so `keep_seconds` must be longer than the longest batch. Raises NotFoundError.
        """

    def _committed(self, attempt: Callable[[], bool]) -> bool:
        """Repeat `attempt` while other commits are faster; what it returned is durable then."""
        if self._pinned is not None:
            raise ValueError(f"version {self._pinned} of {self.path} is for reading only")
        for _ in range(_ATTEMPTS):
            if (done := self._attempted(attempt)) is not None:
                return done
            time.sleep(random.uniform(0, _PAUSE))
        raise TableError(
            f"the table {self.path} was not changed: other writers committed {_ATTEMPTS} times while this one tried. "
            "Run the step again, which repeats nothing."
        )


#: A table of any format.
LakeTable: TypeAlias = SnapshotTable[Any]


def of_batches(files: Iterable[DataFile], after: int, to: int | None) -> list[DataFile]:
    """The files that may have rows of these batches, in reading order (see `SnapshotTable.files`)."""
    found = [
        file
        for file in files
        if file.maximums.get(BATCH, after + 1) > after and (to is None or file.minimums.get(BATCH, to) <= to)
    ]
    return sorted(found, key=reading_order)


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

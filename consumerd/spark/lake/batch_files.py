"""The files of a table's batches, and the offsets of what reads them batch by batch: a step, or a stream of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.folders import open_folder
from consumerd.spark.lake.table import LakeTable
from consumerd.spark.tables.errors import TableError


class BatchFile(NamedTuple):
    """A file, its size in bytes, and the batches `first` to `last` that are to be read from it."""

    path: str
    size: int
    first: int
    last: int


class LakeFiles:
    """The files that a table of the lake names."""

    def __init__(
        self,
        path: str,
        format: str,  # noqa: A002 - Spark's word
        store: Mapping[str, str] | None = None,
        most: int | None = None,
    ) -> None:
        """`store`: options of the object store, by the names of deltalake. `most`: batches after it are left out."""
        self._path = path
        self._format = format
        self._store = store
        self._most = most

    def _table(self) -> LakeTable:
        return open_lake_table(self._path, self._format, storage_options=self._store)

    def last(self) -> int:
        ranges = self._table().batches()
        last = ranges[-1][-1] if ranges else -1
        return last if self._most is None else min(last, self._most)

    def files(self, after: int, to: int) -> Iterator[BatchFile]:
        if after < to:
            for file in self._table().files(after, to):
                yield BatchFile(file.path, file.size, after + 1, to)

    def open(self, name: str) -> pa.NativeFile:
        return open_folder(self._path, self._store).open(name)

    def reached(self, offset: dict[str, Any]) -> int:
        if "batch" in offset:
            return int(offset["batch"])
        return self._before_version(offset)

    def _before_version(self, offset: dict[str, Any]) -> int:
        """The last batch before a version of a Delta table. Raises TableError where the offset is within a version."""
        version, index = int(offset["reservoirVersion"]), int(offset["index"])
        if index >= 0:
            raise TableError(
                f"an earlier release stopped within version {version} of {self._path}: finish its batch with that "
                "release first, or move the step's checkpoint and its tables away to compute them again."
            )
        if version == 0:
            return -1
        ranges = self._table().as_of(version - 1).batches()
        return ranges[-1][-1] if ranges else -1


class TableBatches:
    """The batches of a table, as what reads them has them; an end is the last batch that was read. See BatchSource.

    `most`: batches that are read at a time.
    """

    def __init__(self, files: LakeFiles, most: int | None = None) -> None:
        self._files = files
        self._most = most
        self._target: int | None = None

    def initial(self) -> dict[str, int]:
        return {"batch": -1}

    def stop_at_present(self) -> None:
        self._target = self._files.last()

    def latest(self, start: dict[str, Any], most: int | None = None) -> dict[str, Any]:
        most = self._most if most is None else most
        after = self._files.reached(start)
        last = self._files.last() if self._target is None else self._target
        if last <= after:
            return start
        return {"batch": last if most is None else min(last, after + most)}

    def reported(self) -> dict[str, int]:
        return {"batch": self._files.last()}

    def commit(self, end: dict[str, Any]) -> None: ...

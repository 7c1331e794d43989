"""Spark's checkpoints: which batches a query planned and completed, and whether a table belongs to it.

Strategy: four facts are read from the directory, all written by Spark: the id in `metadata`, created with the
checkpoint, the batches in `offsets`, written before each runs, with the offsets that they end at, and those in
`commits`, written when each is done. From them a step sees before its first batch whether the table is the one that it
wrote: a table that was removed or restored from an older copy lacks batches that would never be written again; a
restored checkpoint would assign batch numbers that the table has to other rows, which would never be written. It also
sees whether the files that Spark continues from are complete, since Spark reports only what its parser met.

One run at a time uses a checkpoint: a kernel lock on a file in its directory, which ends with its process, so a kill
leaves nothing behind. Spark itself notices a second run only when both want to write the same batch; by then each may
have removed what the other was writing. On file systems without locks that is the only check.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from consumerd.base.errors import ConsumerdError, CorruptDataError, ExitCode
from consumerd.base.files import SystemFiles
from consumerd.spark.tables.errors import TableBehindError, TableCorruptError
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_T = TypeVar("_T")
#: The lock file in a checkpoint's folder.
LOCK_FILE: Final = "_run.lock"
_REMEDY: Final = "restore the checkpoint from a backup, or move it and the tables that it counts away to start over"


class CountedTable(Protocol):
    """The part of a table, of any kind, that is compared with a checkpoint."""

    path: str

    def batches(self) -> tuple[range, ...]:
        """Numbers of the batches that are there, as disjoint ascending ranges."""
        ...


class CheckpointLockedError(ConsumerdError):
    """Another run uses the same checkpoint; nothing was written."""

    exit_code = ExitCode.REFUSED


class Checkpoint:
    """The checkpoint of a query with one source, which need not exist yet."""

    def __init__(self, spark: SparkSession | None, path: str) -> None:
        self.path, self._files = locate(spark, path)

    @property
    def exists(self) -> bool:
        """Whether a query ever began with it."""
        return self._files.exists(f"{self.path}/metadata")

    def query_id(self) -> str:
        """The id that Spark gave it when the query first started. Raises TableCorruptError."""
        data = self._files.read(f"{self.path}/metadata")
        try:
            found = json.loads(data or b"")["id"]
        except (ValueError, KeyError, TypeError, RecursionError):
            found = None
        if not isinstance(found, str):
            raise TableCorruptError(f"{self.path}/metadata does not contain the id of a query: {_REMEDY}.")
        return found

    def last_committed(self) -> int | None:
        """The number of the last completed batch; None before the first one."""
        return self._last("commits")

    def last_planned(self) -> int | None:
        """The number of the last planned batch; None before the first one."""
        return self._last("offsets")

    def _last(self, folder: str) -> int | None:
        names = [entry.name for entry in self._files.entries(f"{self.path}/{folder}", missing_ok=True)]
        return max((int(name) for name in names if name.isascii() and name.isdigit()), default=None)

    def must_be_whole(self) -> None:
        """Raise CheckpointError or TableCorruptError if a file that Spark continues from is missing or damaged."""
        planned, done = self.last_planned(), self.last_committed()
        if planned is None and done is None:
            return
        self.query_id()
        for batch in sorted({batch for batch in (planned, done) if batch is not None}):
            if not self._files.exists(f"{self.path}/offsets/{batch}"):
                raise CheckpointError(
                    f"{self.path}/offsets/{batch} is missing, and {self.path}/commits says that batch {batch} is done: "
                    f"{_REMEDY}."
                )
            self.end(batch)
        if done is not None and not _is_entry(self._files.read(f"{self.path}/commits/{done}") or b""):
            raise CheckpointError(f"{self.path}/commits/{done} is not a valid entry of a commit log: {_REMEDY}.")

    def must_match(self, table: CountedTable) -> None:
        """Raise if the table does not match the checkpoint, or the checkpoint is damaged.

        TableBehindError if the table lacks a batch that was done, CheckpointError if it has one that was never planned,
        or as `must_be_whole`.
        """
        self.must_be_whole()
        done = self.last_committed()
        there = table.batches()
        planned = self.last_planned()
        known = -1 if planned is None else planned
        if there and there[-1][-1] > known and self._files.exists(f"{self.path}/metadata"):
            raise CheckpointError(
                f"the table {table.path} has batches up to {there[-1][-1]}, and the checkpoint {self.path} counts "
                f"{known + 1} in all, so it is older than the table, or belongs to another one: {_REMEDY}."
            )
        if done is None:
            return
        if not there or there[0].start > 0 or there[0].stop <= done:
            have = f"batches {', '.join(f'{each.start}-{each[-1]}' for each in there)}" if there else "no batches"
            raise TableBehindError(
                f"the checkpoint {self.path} lists batches 0-{done}, but the table {table.path} has {have}: restore "
                "the table, or move the checkpoint and the table away to write everything again."
            )

    def end(self, batch: int) -> Any:
        """Where a batch ends, in the source's JSON; None if Spark deleted it or the source had nothing.

        Raises CheckpointError.
        """
        lines = self._lines(batch)
        return None if lines is None or lines[2] == "-" else self._parsed(batch, lines[2])

    def watermark(self, batch: int) -> int | None:
        """The watermark of a batch, in milliseconds since 1970; None if Spark deleted it. Raises as `end`."""
        return self._fact(batch, "batchWatermarkMs", int)

    def planned_at(self, batch: int) -> int | None:
        """When a batch was planned, in milliseconds since 1970; None if Spark deleted that. Raises as `end`."""
        return self._fact(batch, "batchTimestampMs", int)

    def settings(self, batch: int) -> dict[str, Any] | None:
        """Spark's settings that a batch was planned with; None if Spark deleted them. Raises as `end`."""
        return self._fact(batch, "conf", dict)

    def _fact(self, batch: int, name: str, kind: type[_T]) -> _T | None:
        lines = self._lines(batch)
        facts = None if lines is None else self._parsed(batch, lines[1])
        found = facts.get(name) if isinstance(facts, dict) else None
        return found if isinstance(found, kind) else None

    def _lines(self, batch: int) -> list[str] | None:
        data = self._files.read(f"{self.path}/offsets/{batch}")
        if data is None:
            return None
        lines = data.decode(errors="replace").splitlines()
        if len(lines) < 3 or not lines[0].startswith("v"):
            raise CheckpointError(
                f"{self.path}/offsets/{batch} is not a valid entry of an offset log: restore the checkpoint from a "
                "backup."
            )
        return lines

    def _parsed(self, batch: int, line: str) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{self.path}/offsets/{batch} contains no valid offsets ({error}): restore the checkpoint from a "
                "backup."
            ) from None


@contextmanager
def locked(spark: SparkSession | None, checkpoint: str) -> Iterator[None]:
    """Lock the checkpoint against other runs, if its file system has locks.

    Raises CheckpointLockedError, and OSError if the lock file cannot be written.
    """
    path, files = locate(spark, checkpoint)
    if not isinstance(files, SystemFiles):
        yield
        return
    files.make_directory(path)
    with Path(path, LOCK_FILE).open("a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read(200).decode(errors="replace").strip() or "another process"
            raise CheckpointLockedError(
                f"{holder} is using the checkpoint {path}: wait for it to end, or stop it; two pipelines must "
                "differ in name or root."
            ) from None
        except OSError:
            yield  # a mount without locks
            return
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        lock.flush()
        yield


def _is_entry(data: bytes) -> bool:
    """Whether that is a version line followed by JSON."""
    version, *lines = data.decode(errors="replace").splitlines() or [""]
    try:
        found = [json.loads(line) for line in lines if line.strip()]
    except (ValueError, RecursionError):
        return False
    return version.startswith("v") and bool(found)


class CheckpointError(CorruptDataError):
    """A file of a checkpoint is missing or damaged."""

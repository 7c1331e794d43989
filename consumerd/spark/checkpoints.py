"""What a checkpoint of Spark tells: whose batch numbers these are, and how far they went.

Strategy: three facts are read from the folder, all written by Spark: the id in `metadata`, made once with the
checkpoint, the batches in `offsets`, each noted before it runs, and those in `commits`, each noted when it is done.
With them a step sees before its first batch whether the table is the one that it wrote: a table that was removed, or
put back from an older copy, lacks batches that would never be written again; a checkpoint that was put back would give
numbers that the table has to other rows, which would never be written at all. And it sees whether the files that Spark
goes on from are whole, since Spark says of one that is not only what its parser met.

One run at a time uses a checkpoint: a lock of the kernel's on a file in its folder, which ends with the process that
holds it, so nothing is left behind by a kill. Spark itself notices a second run only when both want to note the same
batch; by then each may have removed what the other one was writing. That is how it is noticed on file systems that
have no locks.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumerd.errors import ConsumerdError, ExitCode
from consumerd.spark.offset_log import CheckpointError, OffsetLog
from consumerd.spark.tables.errors import TableBehindError, TableCorruptError
from consumerd.spark.tables.files import LocalFiles, locate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from consumerd.spark.tables import Table

#: The lock file in a checkpoint's folder.
LOCK_FILE: Final = "_run.lock"
_REMEDY: Final = "restore the checkpoint from a backup, or move it and the tables that it counts away to start over"


class CheckpointLockedError(ConsumerdError):
    """Another run uses the same checkpoint; nothing was written."""

    exit_code = ExitCode.REFUSED


class Checkpoint:
    """The checkpoint of one streaming query, which need not exist yet."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.path, self._files = locate(spark, path, renames=False)

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
        """The number of the last batch that was done; None before the first one."""
        return self._last("commits")

    def last_planned(self) -> int | None:
        """The number of the last batch whose offsets are noted; None before the first one."""
        return self._last("offsets")

    def _last(self, folder: str) -> int | None:
        names = [entry.name for entry in self._files.entries(f"{self.path}/{folder}")]
        return max((int(name) for name in names if name.isascii() and name.isdigit()), default=None)

    def must_be_whole(self) -> None:
        """Raise CheckpointError or TableCorruptError if a file that Spark goes on from is missing or not whole."""
        planned, done = self.last_planned(), self.last_committed()
        if planned is None and done is None:
            return
        self.query_id()
        offsets = OffsetLog(self._spark, self.path)
        for batch in sorted({batch for batch in (planned, done) if batch is not None}):
            if not self._files.exists(f"{self.path}/offsets/{batch}"):
                raise CheckpointError(
                    f"{self.path}/offsets/{batch} is missing, and {self.path}/commits says that batch {batch} is done: "
                    f"{_REMEDY}."
                )
            offsets.end(batch)
        if done is not None and not _is_entry(self._files.read(f"{self.path}/commits/{done}") or b""):
            raise CheckpointError(f"{self.path}/commits/{done} is not a valid entry of a commit log: {_REMEDY}.")

    def must_match(self, table: Table) -> None:
        """Raise if the table and the checkpoint are not of one time, or the checkpoint is not whole.

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


@contextmanager
def locked(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """Lock the checkpoint against other runs, where its file system has locks.

    Raises CheckpointLockedError, and OSError if the lock file cannot be written.
    """
    path, files = locate(spark, checkpoint, renames=False)
    if not isinstance(files, LocalFiles):
        yield
        return
    files.make_folder(path)
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
    """Whether that is a version, and JSON in what follows."""
    version, *lines = data.decode(errors="replace").splitlines() or [""]
    try:
        found = [json.loads(line) for line in lines if line.strip()]
    except (ValueError, RecursionError):
        return False
    return version.startswith("v") and bool(found)

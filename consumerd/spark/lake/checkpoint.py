"""Spark's checkpoint of a query with one source, written without it, so that either can continue what the other did.

Strategy: the files are those of Spark 4 (`OffsetSeqLog` and `CommitLog`, version 1), in its order. `offsets/N` says
where batch N ends and is written before anything of the batch is; `commits/N` is written when all of it is stored. A
batch that has the first and not the second is repeated with the same end. On this machine Hadoop's checksum of each
file is beside it, which Spark verifies where it exists: so it is written last, and a crash in between leaves a valid
file without one. Other file systems have checksums of their own, if any.

Of Spark's settings that an entry records, those of the entry before are kept; a query that begins here has those that
Spark 4.2 records for a new query on one machine. They concern the state of a query, and the steps that run without
Spark have none.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from consumerd.base.errors import ConsumerdError, ExitCode
from consumerd.base.files import SystemFiles
from consumerd.spark.checkpoints import Checkpoint, CheckpointError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Entries that Spark keeps of each log (`spark.sql.streaming.minBatchesToRetain`).
KEPT_BATCHES: Final = 100
_SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion": "2",
    "spark.sql.streaming.stateStore.rocksdb.formatVersion": "5",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "false",
    "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
    "spark.sql.streaming.statefulOperator.useStrictDistribution": "true",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "2",
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.stateStore.rowChecksum.enabled": "false",
    "spark.sql.streaming.aggregation.stateFormatVersion": "2",
    "spark.sql.function.protobufExtensions.enabled": "false",
    "spark.sql.shuffle.partitions": "8",  # no state is in it; Spark 4.2 does not start without it
    "spark.sql.streaming.join.stateFormatVersion": "2",
    "spark.sql.streaming.stateStore.compression.codec": "lz4",
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "false",
}
#: Bytes for which Hadoop writes a sum each.
_SUMMED: Final = 512
_RESTORE: Final = "restore the checkpoint from a backup"


class CheckpointTakenError(ConsumerdError):
    """Another run has planned or completed the same batch meanwhile; nothing was overwritten."""

    exit_code = ExitCode.REFUSED


class WritableCheckpoint(Checkpoint):
    """The checkpoint of one query, which need not exist yet. One process at a time may write it.

    `spark`: None for a folder of this machine.
    """

    def __init__(self, path: str, spark: SparkSession | None = None) -> None:
        super().__init__(spark, path)

    def begin(self) -> str:
        """The query's id; a new one if this is the first run. Raises TableCorruptError, CheckpointError, OSError.

        CheckpointError: of a file that Spark continues from, whose checksum differs.
        """
        if not self._files.exists(f"{self.path}/metadata"):
            for folder in ("offsets", "commits"):
                self._files.make_directory(f"{self.path}/{folder}")
            self._write("metadata", json.dumps({"id": str(uuid.uuid4())}, separators=(",", ":")).encode())
        planned, done = self.last_planned(), self.last_committed()
        self._verify("metadata")
        for batch in sorted({batch for batch in (planned, done) if batch is not None}):
            self._verify(f"offsets/{batch}")
            self._verify(f"commits/{batch}")
        return self.query_id()

    def plan(self, batch: int, end: Any) -> None:
        """Record where a batch ends, before anything of it is stored. Raises CheckpointTakenError, OSError."""
        self._write(f"offsets/{batch}", self._plan(batch, end))

    def _plan(self, batch: int, end: Any) -> bytes:
        facts = {
            "batchWatermarkMs": 0 if batch == 0 else self._next_watermark(batch - 1),
            "batchTimestampMs": time.time_ns() // 1_000_000,
            "conf": (None if batch == 0 else self.settings(batch - 1)) or _SETTINGS,
        }
        return _entry(facts, json.dumps(end))

    def record(self, batch: int, end: Any) -> None:
        """Record where a batch of another program ends, in place of what was planned for it. Raises OSError."""
        self._write(f"offsets/{batch}", self._plan(batch, end), replace=True)

    def complete(self, batch: int) -> None:
        """Record that all of a batch is stored, and remove entries that Spark would. Raises as `plan`."""
        watermark = 0 if batch == 0 else self._next_watermark(batch - 1)
        self._write(f"commits/{batch}", _entry({"nextBatchWatermarkMs": watermark}))
        for folder in ("offsets", "commits"):
            for entry in self._files.entries(f"{self.path}/{folder}", missing_ok=True):
                number = entry.name.removeprefix(".").removesuffix(".crc")
                if number.isascii() and number.isdigit() and int(number) < batch - KEPT_BATCHES:
                    self._files.remove_tree(f"{self.path}/{folder}/{entry.name}")

    def _next_watermark(self, batch: int) -> int:
        """The watermark (ms since 1970) that the entry of a completed batch passes on; 0 where it has none."""
        lines = (self._files.read(f"{self.path}/commits/{batch}") or b"").decode(errors="replace").splitlines()
        try:
            found = json.loads(lines[1])["nextBatchWatermarkMs"]
        except (IndexError, KeyError, TypeError, ValueError, RecursionError):
            return 0
        return found if isinstance(found, int) else 0

    def _write(self, name: str, data: bytes, *, replace: bool = False) -> None:
        path, sums = f"{self.path}/{name}", self._sums(name)
        summed = isinstance(self._files, SystemFiles)
        if summed:
            self._files.remove_tree(sums)  # of a former file of that name
        if replace:
            self._files.replace(path, data)
        elif not self._files.create(path, data):
            raise CheckpointTakenError(
                f"{path} was written by another run meanwhile: stop one of them; two pipelines must differ in name or "
                "root."
            )
        if summed:
            self._files.replace(sums, checksums(data))

    def _verify(self, name: str) -> None:
        data, sums = self._files.read(f"{self.path}/{name}"), self._files.read(self._sums(name))
        if data is not None and sums is not None and sums != checksums(data):
            raise CheckpointError(f"{self.path}/{name} does not match its checksum {self._sums(name)}: {_RESTORE}.")

    def _sums(self, name: str) -> str:
        folder, _, file = f"{self.path}/{name}".rpartition("/")
        return f"{folder}/.{file}.crc"


def _entry(facts: dict[str, Any], *lines: str) -> bytes:
    """An entry of a log of version 1, as Spark spells it."""
    return "\n".join(["v1", json.dumps(facts, separators=(",", ":")), *lines]).encode()


def checksums(data: bytes) -> bytes:
    """The file that Hadoop keeps beside a file of a local file system: a CRC-32 for each 512 bytes."""
    sums = (crc32(data[at : at + _SUMMED]) for at in range(0, len(data), _SUMMED))
    return b"crc\0" + _SUMMED.to_bytes(4, "big") + b"".join(each.to_bytes(4, "big") for each in sums)

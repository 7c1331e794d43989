"""What the checkpoint of a streaming query says: up to where each batch was planned, and which ones were committed.

Strategy: Structured Streaming keeps two logs of small files, `offsets/<batch>` from before a batch runs and
`commits/<batch>` from after it. They are read as they lie there, by whichever file system they are on, and never
written. Spark deletes the old ones, so only the newest batches can be asked for.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from consumerd.errors import CorruptDataError
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.tables.files import Files

_BATCH: Final = re.compile(r"[0-9]+")


class CheckpointError(CorruptDataError):
    """A file of a checkpoint is not what Spark writes."""


class Checkpoint:
    """The checkpoint of a query with one source, in the folder `path`."""

    def __init__(self, path: str, files: Files) -> None:
        self.path = path.rstrip("/")
        self._files = files

    @classmethod
    def at(cls, spark: SparkSession, path: str) -> Checkpoint:
        """The one in a folder that need not exist."""
        return cls(*locate(spark, path, renames=False))

    @property
    def last_committed(self) -> int | None:
        """The last batch that is done; None before the first one."""
        return max(self._batches("commits"), default=None)

    @property
    def last_planned(self) -> int | None:
        """The last batch whose offsets are fixed, done or not."""
        return max(self._batches("offsets"), default=None)

    def end(self, batch: int) -> Any:
        """Where a batch ends, as the source writes its offsets; None where Spark forgot or the batch took nothing.

        Raises CheckpointError.
        """
        path = f"{self.path}/offsets/{batch}"
        data = self._files.read(path)
        if data is None:
            return None
        lines = data.decode(errors="replace").splitlines()
        if len(lines) < 3 or not lines[0].startswith("v"):
            raise CheckpointError(f"{path} is no entry of an offset log: restore the checkpoint from a backup.")
        try:
            return None if lines[2] == "-" else json.loads(lines[2])
        except ValueError as error:
            raise CheckpointError(f"{path} holds no offsets ({error}): restore the checkpoint from a backup.") from None

    def _batches(self, log: str) -> list[int]:
        return [
            int(entry.name)
            for entry in self._files.entries(f"{self.path}/{log}")
            if not entry.is_folder and _BATCH.fullmatch(entry.name)
        ]

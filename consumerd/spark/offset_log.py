"""Up to where the batches of a streaming query were planned, as its checkpoint says.

Strategy: Structured Streaming writes `offsets/<batch>` before it runs a batch. The file is read as it lies there, on
whichever file system it is, and never written. Spark deletes the old ones, so only the newest batches can be asked for.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from consumerd.errors import CorruptDataError
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CheckpointError(CorruptDataError):
    """A file of a checkpoint is not what was written there, or is missing."""


class OffsetLog:
    """The offsets of a query with one source, whose checkpoint is in the folder `path`."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path, self._files = locate(spark, f"{path}/offsets", renames=False)

    def end(self, batch: int) -> Any:
        """Where a batch ends, as the source writes its offsets; None where Spark forgot or the source had nothing.

        Raises CheckpointError.
        """
        lines = self._lines(batch)
        return None if lines is None or lines[2] == "-" else self._parsed(batch, lines[2])

    def watermark(self, batch: int) -> int | None:
        """The watermark that a batch ran with, in milliseconds since 1970; None where Spark forgot. Raises as `end`."""
        lines = self._lines(batch)
        if lines is None:
            return None
        found = self._parsed(batch, lines[1])
        watermark = found.get("batchWatermarkMs") if isinstance(found, dict) else None
        return watermark if isinstance(watermark, int) else None

    def _lines(self, batch: int) -> list[str] | None:
        data = self._files.read(f"{self.path}/{batch}")
        if data is None:
            return None
        lines = data.decode(errors="replace").splitlines()
        if len(lines) < 3 or not lines[0].startswith("v"):
            raise CheckpointError(
                f"{self.path}/{batch} is not a valid entry of an offset log: restore the checkpoint from a backup."
            )
        return lines

    def _parsed(self, batch: int, line: str) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            raise CheckpointError(
                f"{self.path}/{batch} contains no valid offsets ({error}): restore the checkpoint from a backup."
            ) from None

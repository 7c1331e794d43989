"""What a checkpoint of Spark tells: whose batch numbers these are, and how far they went.

Strategy: two facts are read from the folder, both written by Spark before and after each batch: the id in `metadata`,
made once with the checkpoint, and the numbers in `commits`. With them a step sees before its first batch whether the
table is the one that it wrote: a table that was removed, or put back from an older copy, lacks batches that would never
be written again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from consumerd.spark.tables.errors import TableBehindError, TableCorruptError
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.tables import Table


class Checkpoint:
    """The checkpoint of one streaming query, which need not exist yet."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path, self._files = locate(spark, path, renames=False)

    def query_id(self) -> str:
        """The id that Spark gave it when the query first started. Raises TableCorruptError."""
        data = self._files.read(f"{self.path}/metadata")
        try:
            found = json.loads(data or b"")["id"]
        except (ValueError, KeyError, TypeError, RecursionError):
            found = None
        if not isinstance(found, str):
            raise TableCorruptError(
                f"{self.path}/metadata does not tell the id of a query: restore the checkpoint from a backup, or move "
                "it and its table away to begin anew."
            )
        return found

    def last_committed(self) -> int | None:
        """The number of the last batch that was done; None before the first one."""
        names = [entry.name for entry in self._files.entries(f"{self.path}/commits")]
        return max((int(name) for name in names if name.isascii() and name.isdigit()), default=None)

    def must_match(self, table: Table) -> None:
        """Raise TableBehindError if the table lacks a batch that was done."""
        done = self.last_committed()
        if done is None:
            return
        there = table.batches()
        if not there or there[0].start > 0 or there[0].stop <= done:
            have = f"batches {', '.join(f'{each.start}-{each[-1]}' for each in there)}" if there else "no batches"
            raise TableBehindError(
                f"the checkpoint {self.path} tells of batches 0-{done} and the table {table.path} has {have}: put the "
                "table back, or move the checkpoint and the table away to write all of it anew."
            )

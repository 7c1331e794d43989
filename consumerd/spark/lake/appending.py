"""Batches of a member's partitions -> rows of a table, each once: one commit for all that wait.

Strategy: read how far the table is; decide what of each batch is not there (`append_rules`); write these rows to a file
with the number of the next batch; and commit that number, with the offsets that it reaches. The commit fails if another
writer, a member of the group or a step of the pipeline, has added a batch since the table was read. Then the file is
removed, and everything is repeated from the beginning, with what is still missing. So a kill at any line leaves either
the rows and their offsets or neither, and at most a file that no commit names.

All calls block, and run in a thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import pyarrow as pa

from consumerd.base.errors import HandlerFailedError
from consumerd.handlers.messages import Batch
from consumerd.spark.lake.append_rules import decide
from consumerd.spark.lake.batch_rows import rows_of
from consumerd.spark.lake.data_file import DataFile
from consumerd.spark.lake.folders import open_folder
from consumerd.spark.lake.offsets import TableOffsets
from consumerd.spark.lake.table import BATCH, LakeTable
from consumerd.spark.lake.tasks import LANDED_AT, FileTarget, TargetWriter
from consumerd.spark.source.offsets import Key, LogOffset
from consumerd.spark.tables.errors import TableError

#: Other writers' commits in a row, between which this one was never the first.
_ATTEMPTS: Final = 30
#: A number of a batch that no table has.
_ANY_BATCH: Final = (1 << 62) - 1


@dataclass(eq=False, slots=True)
class Part:
    """A batch of one partition that is to be appended, and its result.

    `reached`: as for `decide`. `ended`: the batch's end, up to which the table has the partition then, or further.
    """

    batch: Batch
    reached: LogOffset | None
    cancelled: bool = False
    ended: LogOffset | None = None
    error: HandlerFailedError | None = None

    @property
    def key(self) -> Key:
        """The partition, as offsets name it."""
        return self.batch.topic, self.batch.partition.name


@dataclass(slots=True)
class AppendCounts:
    """The numbers of one call."""

    rows: int = 0
    bytes: int = 0
    commits: int = 0
    conflicts: int = 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """A batch to commit: from each part the messages from an offset on."""

    first: list[tuple[Part, int]] = field(default_factory=list)
    ends: dict[Key, LogOffset] = field(default_factory=dict)
    starts: dict[Key, LogOffset] = field(default_factory=dict)
    former: list[tuple[str, str, str | None, int, int]] = field(default_factory=list)


class InterruptedAppendError(Exception):
    """No one waits for the result any more. It is never raised to a caller."""


class TableAppender:
    """See the module's text. `writer`: the table's owner. `schema`: bronze's columns.

    `earlier(batch)`: the offsets of a batch whose commit does not name them, as tables of earlier releases; None where
    these are unknown.
    """

    def __init__(
        self,
        table: LakeTable,
        *,
        writer: str,
        schema: pa.Schema,
        now: Callable[[], datetime],
        earlier: Callable[[int], TableOffsets | None] = lambda _: None,
    ) -> None:
        self._table = table
        self._writer = writer
        self._schema = schema
        self._now = now
        self._earlier = earlier

    def prepare(self) -> None:
        """Raise as `LakeTable.accepts` where this writer cannot append these columns, or the table's end is unknown."""
        self._table.accepts(writer=self._writer, batch=_ANY_BATCH, schema=self._schema)
        self.offsets()

    def offsets(self) -> TableOffsets:
        """How far the table is; batch -1 before the first one. Raises HandlerFailedError where that is unknown."""
        while True:
            found = self._table.offsets()
            if found is not None:
                return found
            batches = self._table.batches()
            if not batches:
                return TableOffsets(-1, {}, {})
            last = batches[-1][-1]
            found = self._earlier(last)
            if self._table.offsets() is None and self._table.batches() == batches:
                break
        if found is None:
            raise HandlerFailedError(
                f"batch {last} of {self._table.path} does not say where it ends in its source, since an earlier "
                "release or another program wrote it: set the option `checkpoint` to the folder _checkpoints/land of "
                "its pipeline, or another `directory`."
            )
        return found

    def append(self, parts: Iterable[Part], stop: threading.Event) -> AppendCounts:
        """Append what of the parts is not in the table, in one commit, and set their results.

        When `stop` is set, nothing more is begun, and InterruptedAppendError is raised. Raises TableError, what
        DataFileWriter raises, and as `LakeTable.commit`: then nothing was appended, or it is found at the next call.
        """
        counts = AppendCounts()
        waiting = sorted((part for part in parts if not part.cancelled), key=lambda part: part.batch.partition)
        for _ in range(_ATTEMPTS):
            reached = self.offsets()
            plan = self._planned(waiting, reached)
            if not plan.first or self._committed(plan, reached, counts, stop):
                return counts
            counts.conflicts += 1
        raise TableError(
            f"nothing was appended to {self._table.path}: other writers committed {_ATTEMPTS} times while this one "
            "tried."
        )

    def _planned(self, parts: Iterable[Part], reached: TableOffsets) -> _Plan:
        plan = _Plan(ends=dict(reached.ends), starts=dict(reached.starts), former=list(reached.former))
        for part in parts:
            batch, stored, part.error = part.batch, plan.ends.get(part.key), None
            try:
                found = decide(batch, stored, part.reached, partition=batch.partition, table=self._table.path)
            except HandlerFailedError as error:
                part.error = error
                continue
            if found.first >= batch.next_offset and stored is not None:
                part.ended = stored._replace(offset=batch.next_offset)
                continue
            topic_id = batch.topic_id or (None if found.new_log or stored is None else stored.topic_id)
            part.ended = plan.ends[part.key] = LogOffset(batch.next_offset, topic_id, batch.leader_epoch)
            if found.new_log:
                if stored is not None:
                    began = plan.starts.get(part.key, stored).offset
                    plan.former.append((*part.key, stored.topic_id, began, stored.offset))
                plan.starts[part.key] = LogOffset(batch.start_offset, topic_id)
            plan.first.append((part, found.first))
        return plan

    def _committed(self, plan: _Plan, reached: TableOffsets, counts: AppendCounts, stop: threading.Event) -> bool:
        number = reached.batch + 1
        file = self._written(plan, number, stop)
        try:
            if stop.is_set():
                raise InterruptedAppendError
            done = self._table.commit(
                [] if file is None else [file],
                writer=self._writer,
                batch=number,
                schema=self._schema,
                offsets=TableOffsets(number, plan.ends, plan.starts, tuple(plan.former)),
            )
        except InterruptedAppendError:
            self._remove(file)
            raise
        if done:
            counts.commits += 1
            counts.rows += 0 if file is None else file.rows
            counts.bytes += 0 if file is None else file.size
        else:
            self._remove(file)
        return done

    def _written(self, plan: _Plan, number: int, stop: threading.Event) -> DataFile | None:
        constants = {LANDED_AT: self._now(), BATCH: number}
        own = pa.schema([each for each in self._schema if each.name not in constants])
        target = FileTarget(self._table.path, self._schema, constants, self._table.data_options)
        with TargetWriter(target) as writer:
            for part, first in plan.first:
                for rows in rows_of(part.batch, first, own):
                    if stop.is_set():
                        raise InterruptedAppendError
                    writer.write(rows)
            return writer.close()

    def _remove(self, file: DataFile | None) -> None:
        """Remove a file that no commit names; `vacuum` removes what is left."""
        if file is not None:
            with contextlib.suppress(OSError):
                open_folder(self._table.path, self._table.data_options).remove(file.path)

"""`refine`: what is new in bronze into silver and quarantine, by worker processes or by tasks of Spark.

Strategy: a batch of this step is some batches of bronze, fixed in the checkpoint before anything of it is written. A
task decodes whole files of bronze and writes one file of either table (`refine`); both are committed under one number.
After a kill between the two commits the batch is repeated, and only the second is made.

Where the ranges of a batch meet each other, or those of earlier batches, identities are compared before the commit: by
`duplicates`, or by Spark (`consumerd.spark.refine`). Otherwise no row can be there twice, and none is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from consumerd.base.errors import ConfigError
from consumerd.spark.checkpoints import locked
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.again import RebuiltTables
from consumerd.spark.lake.batch_files import LakeFiles, TableBatches
from consumerd.spark.lake.batches import BatchDisplay, BatchRunner, PlannedBatch, SilentDisplay, run_shown
from consumerd.spark.lake.checkpoint import WritableCheckpoint
from consumerd.spark.lake.data_file import DataFile, Identities
from consumerd.spark.lake.days import days_of
from consumerd.spark.lake.decode import MessageFormat
from consumerd.spark.lake.duplicates import without_duplicates
from consumerd.spark.lake.folders import open_folder
from consumerd.spark.lake.parts import TASK_BYTES, Part, TablePart, grouped, size_of
from consumerd.spark.lake.reading import read_file
from consumerd.spark.lake.refine import RefinedFiles, RefineTarget, may_repeat
from consumerd.spark.lake.refine_tasks import count_verdicts, keep_rows, refine_files
from consumerd.spark.lake.table import BATCH, LakeTable
from consumerd.spark.lake.workers import TaskPool, WorkerPool, available_processors
from consumerd.spark.owners import owned_tables
from consumerd.spark.results import RefinePreview, RefineResult
from consumerd.spark.seen import SeenLog, SeenOffsets
from consumerd.spark.source.columns import IDENTITY
from consumerd.spark.stopping import stop_on_signals
from consumerd.spark.tables.errors import file_errors
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.spec import PipelineSpec


def refine(
    pipeline: PipelineSpec,
    *,
    zone: str = "UTC",
    workers: int | None = None,
    display: BatchDisplay | None = None,
) -> RefineResult:
    """Refine what bronze has. `zone`: of times that name none, as Spark's `spark.sql.session.timeZone`.

    Raises ConsumerdError: ConfigError where the pipeline declares no `refine`, or one that only Spark can parse.
    """
    messages = _messages(pipeline)
    with file_errors(pipeline.base), WorkerPool(workers or available_processors()) as pool:
        bronze = _table(pipeline, pipeline.bronze).schema()
        folders = locate(None, pipeline.silver)[0], locate(None, pipeline.quarantine)[0]
        days = days_of(pipeline.declared_refine.day_of, pipeline.format)
        target = RefineTarget.of(messages, bronze, folders, zone, pipeline.rebuild, days)
        return RefineStep(pipeline, target, pool, display=display).run()


def refine_again(
    pipeline: PipelineSpec,
    *,
    zone: str = "UTC",
    workers: int | None = None,
    display: BatchDisplay | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> RefineResult:
    """Refine again what was refined, into new tables that replace the old ones; see `again`.

    `since`, `until`: only messages that landed in this time; of the others the rows stay. Raises as `refine`, and as
    `RebuiltTables.rebuild`.
    """
    _messages(pipeline)

    def run(rebuilt: PipelineSpec) -> RefineResult:
        return refine(rebuilt, zone=zone, workers=workers, display=display)

    return RebuiltTables(None, pipeline).rebuild(run, since=since, until=until, zone=zone)


def preview(
    pipeline: PipelineSpec,
    *,
    zone: str = "UTC",
    workers: int | None = None,
    display: BatchDisplay | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> RefinePreview:
    """The verdicts on the messages that `refine_again` would refine. Nothing is written. Raises as `refine`."""
    messages = _messages(pipeline)
    rebuild = RebuiltTables(None, pipeline).range(since, until)
    bronze = _table(pipeline, pipeline.bronze)
    target = RefineTarget.of(messages, bronze.schema(), ("", ""), zone, rebuild)
    files, shown = LakeFiles(bronze.path, pipeline.format), display or SilentDisplay()
    tasks = _tasks(files, {"batch": -1}, {"batch": rebuild.bronze})
    shown.batch(0, sum(size_of(part) for task in tasks for part in task))
    with WorkerPool(workers or available_processors()) as pool:
        found = run_shown(pool, shown, count_verdicts, [(task, target) for task in tasks])
    reasons: Counter[str] = Counter()
    for _, each in found:
        reasons.update(each)
    return RefinePreview.of(pipeline.name, sum(rows for rows, _ in found), reasons)


def _messages(pipeline: PipelineSpec) -> MessageFormat:
    messages = MessageFormat.of(pipeline.declared_refine)
    if messages.needs_spark is not None:
        raise ConfigError(f"{messages.needs_spark}: run the step with `consumerd spark refine`.")
    return messages


def _table(pipeline: PipelineSpec, path: str) -> LakeTable:
    return open_lake_table(locate(None, path)[0], pipeline.format)


def _tasks(files: LakeFiles, start: Any, end: Any) -> list[tuple[Part, ...]]:
    """The files between two ends for a task each; a file is not cut, since its messages may share an offset."""
    found = files.files(files.reached(start), files.reached(end))
    return grouped((TablePart(files, file) for file in found), TASK_BYTES)


class RefineStep:
    """One run of the step, by the tasks of any pool.

    `spark`: for the files of the checkpoint, where they are not on this machine.
    """

    def __init__(
        self,
        pipeline: PipelineSpec,
        target: RefineTarget,
        pool: TaskPool,
        *,
        spark: SparkSession | None = None,
        display: BatchDisplay | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._target = target
        self._pool = pool
        self._spark = spark
        self._shown = display or SilentDisplay()
        self._store = dict(target.storage_options)
        self._tables = [
            open_lake_table(folder, pipeline.format, storage_options=self._store) for folder in target.folders
        ]
        most = None if pipeline.rebuild is None else pipeline.rebuild.bronze
        self._files = LakeFiles(locate(spark, pipeline.bronze)[0], pipeline.format, self._store, most)
        self._checkpoint = WritableCheckpoint(pipeline.checkpoint("refine"), spark)
        seen, system = locate(spark, pipeline.checkpoint("refine-seen"))
        self._seen = SeenLog(system, seen)
        self._rows_silver = self._duplicates = 0
        self._reasons: Counter[str] = Counter()

    def run(self) -> RefineResult:
        """Refine all that there is. Raises ConsumerdError: of the checkpoint and of the tables; OSError."""
        pipeline, path = self._pipeline, self._pipeline.checkpoint("refine")
        with stop_on_signals() as stop, locked(self._spark, path), owned_tables(pipeline, "refine"):
            if pipeline.rebuild is None:
                RebuiltTables(self._spark, pipeline, self._store).complete()
            for table in self._tables:
                self._checkpoint.must_match(table)
            source = TableBatches(self._files, pipeline.batches_per_trigger)
            run = BatchRunner(self._checkpoint, source, self._commit, stop=stop).run()
            there = self._tables[0].batches()
            return RefineResult(
                pipeline=pipeline.name,
                rows_silver=self._rows_silver,
                rows_quarantined=sum(self._reasons.values()),
                duplicates=self._duplicates,
                batches=run.batches,
                last_batch=there[-1][-1] if there else None,
                seconds=run.seconds,
                stopped=run.stopped,
                reasons=dict(self._reasons),
            )

    def _commit(self, batch: PlannedBatch, tick: Callable[[], None]) -> None:
        """Write a batch, and commit it to both tables."""
        writer = self._checkpoint.query_id()
        both = list(zip(self._tables, self._target.stored, self._target.days, strict=True))
        wanted = [
            table.accepts(writer=writer, batch=batch.number, schema=schema, days=days) for table, schema, days in both
        ]
        if not any(wanted):
            return
        found = self._refined(batch, tick)
        silver, quarantine = (
            table.commit(
                [file for each in found if (file := getattr(each, name)) is not None],
                writer=writer,
                batch=batch.number,
                schema=schema,
                days=days,
            )
            for (table, schema, days), name in zip(both, ("silver", "quarantine"), strict=True)
        )
        for each in found:
            self._rows_silver += each.silver.rows if silver and each.silver is not None else 0
            self._reasons.update(each.reasons if quarantine else {})

    def _refined(self, batch: PlannedBatch, tick: Callable[[], None]) -> list[RefinedFiles]:
        """The files of a batch, without rows whose identities were there before; what was there is noted."""
        found = self._written(batch, tick)
        if not self._pipeline.declared_refine.dedup:
            return found
        seen = self._seen_before(batch.number)
        self._seen.store(batch.number, seen.with_stretches(stretch for each in found for stretch in each.stretches))
        return self._without_duplicates(found, seen, batch, tick) if may_repeat(found, seen) else found

    def _written(self, batch: PlannedBatch, tick: Callable[[], None]) -> list[RefinedFiles]:
        tasks = _tasks(self._files, batch.start, batch.end)
        self._shown.batch(batch.number, sum(size_of(part) for task in tasks for part in task))
        at = datetime.now(UTC)
        arguments = [(task, self._target, batch.number, at) for task in tasks]
        results: list[list[RefinedFiles]] = run_shown(self._pool, self._shown, refine_files, arguments, tick)
        if self._keeps_rows(batch):
            results = [*self._kept(tick), *results]
        return [each for task in results for each in task]

    def _keeps_rows(self, batch: PlannedBatch) -> bool:
        """Whether a batch of a rebuild has rows of the former tables, too."""
        rebuild = self._pipeline.rebuild
        return batch.number == 0 and rebuild is not None and rebuild.is_partial

    def _kept(self, tick: Callable[[], None]) -> list[list[RefinedFiles]]:
        """The rows of the former tables that the rebuild does not refine."""
        former = replace(self._pipeline, rebuild=None)
        tasks = []
        for is_refused, path in enumerate((former.silver, former.quarantine)):
            folder = locate(self._spark, path)[0]
            table = open_lake_table(folder, former.format, storage_options=self._store)
            files = table.files() if table.exists else []
            tasks += [(table.path, file.path, self._target, bool(is_refused)) for file in files]
        return run_shown(self._pool, self._shown, keep_rows, tasks, tick)

    def _without_duplicates(
        self, found: list[RefinedFiles], seen: SeenOffsets, batch: PlannedBatch, tick: Callable[[], None]
    ) -> list[RefinedFiles]:
        """Files in place of these, which may have an identity twice, or one that was seen."""
        found, dropped = without_duplicates(found, self._target, self._earlier(found, seen, batch.number))
        self._duplicates += dropped
        return found

    def _files_before(self, batch: int) -> Iterator[tuple[LakeTable, DataFile]]:
        """Files that may have rows of earlier batches."""
        for table in self._tables if batch else ():
            if table.exists:  # after a kill before its first batch, quarantine may not
                yield from ((table, file) for file in table.files(to=batch - 1))

    def _earlier(self, found: Sequence[RefinedFiles], seen: SeenOffsets, batch: int) -> Iterator[pa.RecordBatch]:
        """Identities of earlier batches near these files'."""
        overlapping = seen.overlapping(stretch for each in found for stretch in each.stretches)
        if not overlapping:
            return
        low, high = min(each.start for each in overlapping), max(each.end for each in overlapping)
        for table, file in self._files_before(batch):
            first, last = file.minimums.get("offset", low), file.maximums.get("offset", high)
            if first <= high and last >= low:
                yield from self._identities(table, file, batch)

    def _seen_before(self, batch: int) -> SeenOffsets:
        """The state before `batch`; from the rows themselves where duplicates were allowed so far, or it was lost."""
        seen = self._seen.before(batch)
        if seen is None:
            identities = Identities()
            for table, file in self._files_before(batch):
                for rows in self._identities(table, file, batch):
                    identities.add(rows)
            seen = SeenOffsets().with_stretches(identities.stretches())
        return seen

    def _identities(self, table: LakeTable, file: DataFile, batch: int) -> Iterator[pa.RecordBatch]:
        """The identities of earlier batches in a file of silver or quarantine."""
        stored = table.schema()
        names = [name for name in (*IDENTITY, "next_offset", BATCH) if name in stored.names]
        schema = pa.schema([stored.field(name) for name in names])
        yield from read_file(open_folder(table.path, self._store), file.path, schema, to=batch - 1)

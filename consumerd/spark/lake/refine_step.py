"""`refine` without Spark: what is new in bronze into silver and quarantine, by worker processes.

Strategy: a batch of this step is some batches of bronze, fixed in the checkpoint as Spark's stream does it. A task
decodes whole files of bronze and writes one file of either table (`refine`); both are committed under one number. After
a kill between the two commits the batch is repeated, and only the second is made.

Where the ranges of a batch meet each other, or those of earlier batches, identities are compared (`duplicates`) before
the commit. Otherwise no row can be there twice, and none is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from consumerd.base.errors import ConfigError
from consumerd.spark.checkpoints import locked
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.again import RebuiltTables
from consumerd.spark.lake.batch_files import BatchFile, LakeFiles
from consumerd.spark.lake.batches import BatchDisplay, BatchRunner, PlannedBatch, SilentDisplay
from consumerd.spark.lake.checkpoint import WritableCheckpoint
from consumerd.spark.lake.data_file import DataFile, Identities
from consumerd.spark.lake.days import days_of
from consumerd.spark.lake.decode import MessageFormat
from consumerd.spark.lake.duplicates import without_duplicates
from consumerd.spark.lake.folders import open_folder
from consumerd.spark.lake.reading import read_file
from consumerd.spark.lake.refine import RefinedFiles, RefineTarget, may_repeat
from consumerd.spark.lake.refine_tasks import count_verdicts, keep_rows, refine_files
from consumerd.spark.lake.table import BATCH, LakeTable
from consumerd.spark.lake.workers import WorkerPool, available_processors
from consumerd.spark.progress import open_log
from consumerd.spark.rebuild import Rebuild
from consumerd.spark.results import RefinePreview, RefineResult
from consumerd.spark.seen import OffsetStretch, SeenLog, SeenOffsets
from consumerd.spark.source.columns import IDENTITY
from consumerd.spark.stopping import stop_on_signals
from consumerd.spark.tables.errors import file_errors
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec

#: Bytes of bronze's files that one task reads, about.
TASK_BYTES: Final = 64 << 20


class BronzeSource:
    """The batches of a table, as batches of another step see them."""

    def __init__(self, files: LakeFiles, most: int) -> None:
        self._files = files
        self._most = most
        self._target: int | None = None

    def initial(self) -> Any:
        return {"batch": -1}

    def stop_at_present(self) -> None:
        self._target = self._files.last()

    def latest(self, start: Any) -> Any:
        after = self._files.reached(start)
        last = self._files.last() if self._target is None else self._target
        return {"batch": min(last, after + self._most)} if last > after else start

    def reported(self) -> Any:
        return {"batch": self._files.last()}

    def commit(self, end: Any) -> None: ...

    def tasks(self, start: Any, end: Any) -> list[tuple[BatchFile, ...]]:
        """The files between two ends, neighbours together up to `TASK_BYTES`: a task costs more than a small file."""
        tasks: list[list[BatchFile]] = []
        held = TASK_BYTES
        for file in self._files.files(self._files.reached(start), self._files.reached(end)):
            if held + file.size > TASK_BYTES:
                tasks.append([])
                held = 0
            tasks[-1].append(file)
            held += file.size
        return [tuple(task) for task in tasks]


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
    path, count = pipeline.checkpoint("refine"), workers or available_processors()
    with file_errors(pipeline.base), stop_on_signals() as stop, locked(None, path), WorkerPool(count) as pool:
        if pipeline.rebuild is None:
            RebuiltTables(None, pipeline).complete()
        bronze, silver, quarantine = (
            _table(pipeline, each) for each in (pipeline.bronze, pipeline.silver, pipeline.quarantine)
        )
        folders = silver.path, quarantine.path
        assert pipeline.refine is not None
        days = days_of(pipeline.refine.day_of, pipeline.format)
        target = RefineTarget.of(messages, bronze.schema(), folders, zone, pipeline.rebuild, days)
        checkpoint = WritableCheckpoint(path)
        for table in (silver, quarantine):
            checkpoint.must_match(table)
        files = _bronze_files(pipeline, pipeline.rebuild)
        source = BronzeSource(files, pipeline.batches_per_trigger)
        work = _Refining(checkpoint, (silver, quarantine), target, pipeline, files, source, pool, display)
        runner = BatchRunner(checkpoint, source, work.store, progress=open_log(None, pipeline, "refine"), stop=stop)
        run = runner.run()
        there = silver.batches()
        return RefineResult(
            pipeline=pipeline.name,
            rows_silver=work.rows_silver,
            rows_quarantined=sum(work.reasons.values()),
            duplicates=work.duplicates,
            batches=run.batches,
            last_batch=there[-1][-1] if there else None,
            seconds=run.seconds,
            stopped=run.stopped,
            reasons=dict(work.reasons),
        )


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
    files, shown = _bronze_files(pipeline, rebuild), display or SilentDisplay()
    tasks = BronzeSource(files, 0).tasks({"batch": -1}, {"batch": rebuild.bronze})
    shown.batch(0, sum(file.size for task in tasks for file in task))
    with WorkerPool(workers or available_processors()) as pool:
        found = pool.run(
            count_verdicts,
            [(task, files, target) for task in tasks],
            on_progress=lambda each: shown.advance(*each),
            tick=shown.tick,
        )
    reasons: Counter[str] = Counter()
    for _, each in found:
        reasons.update(each)
    return RefinePreview.of(pipeline.name, sum(rows for rows, _ in found), reasons)


def _messages(pipeline: PipelineSpec) -> MessageFormat:
    if pipeline.refine is None:
        raise ConfigError(
            f"the pipeline {pipeline.name} has no [refine] table: add one that says how to parse its messages."
        )
    messages = MessageFormat.of(pipeline.refine)
    if messages.needs_spark is not None:
        raise ConfigError(f"{messages.needs_spark}: run the step with `consumerd spark refine`.")
    return messages


def _table(pipeline: PipelineSpec, path: str) -> LakeTable:
    return open_lake_table(locate(None, path)[0], pipeline.format)


def _bronze_files(pipeline: PipelineSpec, rebuild: Rebuild | None) -> LakeFiles:
    return LakeFiles(
        locate(None, pipeline.bronze)[0], pipeline.format, most=None if rebuild is None else rebuild.bronze
    )


class _Refining:
    """The state from one batch to the next."""

    def __init__(
        self,
        checkpoint: WritableCheckpoint,
        tables: tuple[LakeTable, LakeTable],
        target: RefineTarget,
        pipeline: PipelineSpec,
        files: LakeFiles,
        source: BronzeSource,
        pool: WorkerPool,
        display: BatchDisplay | None,
    ) -> None:
        assert pipeline.refine is not None
        self._checkpoint = checkpoint
        self._tables = tables
        self._target = target
        self._dedup = pipeline.refine.dedup
        self._pipeline = pipeline
        self._files = files
        self._source = source
        self._pool = pool
        self._shown = display or SilentDisplay()
        seen, system = locate(None, pipeline.checkpoint("refine-seen"))
        self._seen = SeenLog(system, seen)
        self.rows_silver = self.duplicates = 0
        self.reasons: Counter[str] = Counter()

    def store(self, batch: PlannedBatch, tick: Callable[[], None]) -> None:
        """Write a batch, and commit it to both tables."""
        writer = self._checkpoint.query_id()
        both = list(zip(self._tables, self._target.stored, self._target.days, strict=True))
        wanted = [
            table.accepts(writer=writer, batch=batch.number, schema=schema, days=days) for table, schema, days in both
        ]
        if not any(wanted):
            return
        found = self._written(batch, tick)
        if self._dedup:
            found = self._without_duplicates(found, batch.number)
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
            self.rows_silver += each.silver.rows if silver and each.silver is not None else 0
            self.reasons.update(each.reasons if quarantine else {})

    def _written(self, batch: PlannedBatch, tick: Callable[[], None]) -> list[RefinedFiles]:
        tasks = self._source.tasks(batch.start, batch.end)
        self._shown.batch(batch.number, sum(file.size for task in tasks for file in task))

        def look() -> None:
            self._shown.tick()
            tick()

        at = datetime.now(UTC)
        results = self._pool.run(
            refine_files,
            [(task, self._files, self._target, batch.number, at) for task in tasks],
            on_progress=lambda each: self._shown.advance(*each),
            tick=look,
        )
        if batch.number == 0 and self._target.rebuild is not None and self._target.rebuild.is_partial:
            results = [*self._kept(look), *results]
        return [RefinedFiles.from_json(each) for task in results for each in task]

    def _kept(self, look: Callable[[], None]) -> list[list[str]]:
        """The rows of the former tables that the rebuild does not refine."""
        former = replace(self._pipeline, rebuild=None)
        tasks = []
        for is_refused, path in enumerate((former.silver, former.quarantine)):
            table = _table(former, path)
            files = table.files() if table.exists else []
            tasks += [(table.path, file.path, self._target, bool(is_refused)) for file in files]
        return self._pool.run(keep_rows, tasks, on_progress=lambda each: self._shown.advance(*each), tick=look)

    def _without_duplicates(self, found: list[RefinedFiles], batch: int) -> list[RefinedFiles]:
        """The files without rows whose identities were there before; what was there is noted."""
        seen = self._seen.before(batch)
        if seen is None:  # duplicates were allowed so far, or the file was lost
            seen = self._seen_in_tables(batch)
        stretches = [stretch for each in found for stretch in each.stretches]
        if may_repeat(found, seen):
            overlapping = seen.overlapping(stretches)
            found, dropped = without_duplicates(found, self._target, self._earlier(overlapping, batch))
            self.duplicates += dropped
        self._seen.store(batch, seen.with_stretches(stretches))
        return found

    def _files_before(self, batch: int) -> Iterator[tuple[LakeTable, DataFile]]:
        """Files that may have rows of earlier batches."""
        for table in self._tables if batch else ():
            if table.exists:  # after a kill before its first batch, quarantine may not
                yield from ((table, file) for file in table.files(to=batch - 1))

    def _earlier(self, overlapping: Sequence[OffsetStretch], batch: int) -> Iterator[pa.RecordBatch]:
        """Identities of earlier batches near these stretches."""
        if not overlapping or batch == 0:
            return
        low, high = min(each.start for each in overlapping), max(each.end for each in overlapping)
        for table, file in self._files_before(batch):
            first, last = file.minimums.get("offset", low), file.maximums.get("offset", high)
            if first <= high and last >= low:
                yield from _identities(table, file, batch)

    def _seen_in_tables(self, batch: int) -> SeenOffsets:
        """The state before `batch`, from the rows themselves: of each source one interval."""
        identities = Identities()
        for table, file in self._files_before(batch):
            for rows in _identities(table, file, batch):
                identities.add(rows)
        return SeenOffsets().with_stretches(identities.stretches())


def _identities(table: LakeTable, file: DataFile, batch: int) -> Iterator[pa.RecordBatch]:
    """The identities of earlier batches in a file of silver or quarantine."""
    stored = table.schema()
    names = [name for name in (*IDENTITY, "next_offset", BATCH) if name in stored.names]
    schema = pa.schema([stored.field(name) for name in names])
    yield from read_file(open_folder(table.path), file.path, schema, to=batch - 1)

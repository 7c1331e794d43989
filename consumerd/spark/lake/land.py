"""`land`: messages from the source into bronze, unchanged, by worker processes of this machine or tasks of Spark.

Strategy: batches as Spark's streaming has them, in its checkpoint, which says where a batch ends before it is read; so
after any kill batch N has the same messages again, and the table knows whether it has batch N. Nothing is parsed and
nothing is left out: bytes that cannot be read become a row with the reason. A new pipeline starts at the earliest
offset, not at the latest as streams do by default, because it is to land everything.

The splits of a batch are divided into tasks of neighbours, each of which becomes one file, so that a batch of many
small partitions has few files; the files become rows with one commit. What a task has in memory is one batch of Arrow
and one row group, whatever it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from consumerd.spark.beginning import begin, note_new, source_options
from consumerd.spark.checkpoints import locked
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.batches import BatchDisplay, BatchRunner, PlannedBatch, SilentDisplay, run_shown
from consumerd.spark.lake.checkpoint import WritableCheckpoint
from consumerd.spark.lake.data_file import DataFile
from consumerd.spark.lake.handover import catch_up, must_have, offsets_of
from consumerd.spark.lake.land_tasks import write_splits
from consumerd.spark.lake.parts import size_of
from consumerd.spark.lake.table import BATCH, LakeTable
from consumerd.spark.lake.tasks import LANDED_AT, FileTarget, landed_schema
from consumerd.spark.lake.workers import TaskPool, WorkerPool, available_processors
from consumerd.spark.owners import owned_tables
from consumerd.spark.progress import open_log
from consumerd.spark.results import LandResult
from consumerd.spark.source.discovery import committer_of
from consumerd.spark.source.options import BATCH_ONLY, SourceOptions, read_options, refuse_options
from consumerd.spark.source.planning import StreamPlanner
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.spec_model import interval_seconds
from consumerd.spark.stopping import stop_on_signals
from consumerd.spark.tables.errors import file_errors
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from consumerd.spark.source.split import Split
    from consumerd.spark.spec import PipelineSpec

#: The greatest part of a batch that becomes one file, where offsets count bytes: of the log.
FILE_BYTES: Final = 128 << 20
#: The least part for which a worker more pays, in offsets: bytes of the log, or messages.
LEAST_BYTES: Final = 4 << 20
LEAST_MESSAGES: Final = 20_000


def land(
    pipeline: PipelineSpec,
    *,
    workers: int | None = None,
    available_now: bool = True,
    display: BatchDisplay | None = None,
) -> LandResult:
    """Land all available messages; with `available_now=False`, repeat at the pipeline's `trigger` until a signal.

    `workers`: processes, as many as there are processors by default. Raises ConsumerdError: of the source (options,
    brokers, data loss), of the checkpoint (in use, damaged, another table's) and of the table.
    """
    with file_errors(pipeline.base), WorkerPool(workers or available_processors()) as pool:
        table = open_lake_table(locate(None, pipeline.bronze)[0], pipeline.format)
        return LandStep(pipeline, table, pool, display=display).run(available_now=available_now)


class LandStep:
    """One run of the step into a table that is open, by the tasks of any pool.

    `spark`: for the files of the checkpoint, where they are not on this machine.
    """

    def __init__(
        self,
        pipeline: PipelineSpec,
        table: LakeTable,
        pool: TaskPool,
        *,
        spark: SparkSession | None = None,
        display: BatchDisplay | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._table = table
        self._pool = pool
        self._spark = spark
        self._display = display or SilentDisplay()
        self._checkpoint = WritableCheckpoint(pipeline.checkpoint("land"), spark)
        self._rows = 0

    def run(self, *, available_now: bool = True) -> LandResult:
        """As `land`. Raises OSError, too."""
        pipeline, spark, checkpoint = self._pipeline, self._spark, self._checkpoint
        with stop_on_signals() as stop, locked(spark, pipeline.checkpoint("land")), owned_tables(pipeline, "land"):
            catch_up(pipeline, checkpoint, self._table, spark)
            checkpoint.must_match(self._table)
            given = source_options(pipeline)
            refuse_options(given, BATCH_ONLY, "a stream")
            self._options = read_options(begin(spark, pipeline, given))
            self._source = StreamPlanner(self._options, self._options.max_per_trigger)
            progress, watch = open_log(spark, pipeline), self._pool.check
            runner = BatchRunner(checkpoint, self._source, self._store, progress=progress, stop=stop, watch=watch)
            continuous = pipeline.is_continuous and not available_now
            run = runner.run(interval_seconds(pipeline.trigger) if continuous else None)
            there = self._table.batches()
            return LandResult(
                pipeline=pipeline.name,
                table=self._table.path,
                rows=self._rows,
                batches=run.batches,
                last_batch=there[-1][-1] if there else None,
                seconds=run.seconds,
                stopped=run.stopped,
                committed=_commit(checkpoint, self._options),
            )

    def _store(self, batch: PlannedBatch, tick: Callable[[], None]) -> None:
        """Have tasks write the files of a batch, and commit them."""
        note_new(self._spark, self._pipeline, batch.number)
        writer, schema = self._checkpoint.query_id(), landed_schema(self._options)
        if not self._table.accepts(writer=writer, batch=batch.number, schema=schema):
            must_have(self._table, batch.number, batch.end)
            return  # committed by a run that was interrupted before it could say so
        files = self._written(batch, schema, tick)
        offsets = offsets_of(self._checkpoint, batch.number, batch.end, spark=self._spark, planned=True)
        if self._table.commit(files, writer=writer, batch=batch.number, schema=schema, offsets=offsets):
            self._rows += sum(each.rows for each in files)
        else:
            must_have(self._table, batch.number, batch.end)

    def _written(self, batch: PlannedBatch, schema: pa.Schema, tick: Callable[[], None]) -> list[DataFile]:
        splits = self._source.splits(batch.start, batch.end)
        self._display.batch(batch.number, sum(map(size_of, splits)))
        constants = {LANDED_AT: datetime.now(UTC), BATCH: batch.number}
        target = FileTarget(self._table.path, schema, constants, self._table.data_options)
        request = ReadRequest.of(self._options)
        parts = divide(splits, self._pool.count, counts_messages=self._options.counts_messages)
        tasks = [(part, request, target) for part in parts]
        found = run_shown(self._pool, self._display, write_splits, tasks, tick)
        return [each for each in found if each is not None]


def _commit(checkpoint: WritableCheckpoint, options: SourceOptions) -> int:
    """Write how far the table is for lag tools, if the options ask for it; how many offsets changed."""
    committer, last = committer_of(options), checkpoint.last_committed()
    if committer is None or last is None or (reached := checkpoint.end(last)) is None:
        return 0
    return committer.commit(reached)


def divide(splits: Iterable[Split], workers: int, *, counts_messages: bool) -> list[tuple[Split, ...]]:
    """Neighbours in one task each: even parts for the workers, if those are worth one, of at most `FILE_BYTES`."""
    splits = list(splits)
    fair = -(-sum(map(size_of, splits)) // workers)
    most = max(LEAST_MESSAGES, fair) if counts_messages else min(FILE_BYTES, max(LEAST_BYTES, fair))
    parts: list[list[Split]] = []
    held = most
    for split in splits:
        if held >= most:
            parts.append([])
            held = 0
        parts[-1].append(split)
        held += size_of(split)
    return [tuple(part) for part in parts]

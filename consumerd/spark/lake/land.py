"""`land` without Spark: messages from the source into bronze, unchanged, by worker processes.

Strategy: the planner, the readers and the checkpoint are those of Spark's step. The splits of a batch are divided into
tasks of neighbours, each of which becomes one file, so that a batch of many small partitions has few files; the files
become rows with one commit. What a worker has in memory is one batch of Arrow and one row group, whatever it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from consumerd.spark.beginning import begin, note_new, source_options
from consumerd.spark.checkpoints import locked
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.batches import BatchDisplay, BatchRunner, PlannedBatch, SilentDisplay
from consumerd.spark.lake.checkpoint import WritableCheckpoint
from consumerd.spark.lake.data_file import DataFile
from consumerd.spark.lake.handover import catch_up, must_have, planned_offsets
from consumerd.spark.lake.land_tasks import write_splits
from consumerd.spark.lake.offsets import TableOffsets
from consumerd.spark.lake.parts import size_of
from consumerd.spark.lake.table import BATCH, LakeTable
from consumerd.spark.lake.tasks import LANDED_AT, FileTarget, landed_schema
from consumerd.spark.lake.workers import WorkerPool, available_processors
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

    from consumerd.spark.source.request import Split
    from consumerd.spark.spec import PipelineSpec

#: The greatest part of a batch that becomes one file, where offsets count bytes: of the log.
FILE_BYTES: Final = 128 << 20
#: The least part for which a worker more pays, in offsets: bytes of the log, or messages.
LEAST_BYTES: Final = 4 << 20
LEAST_MESSAGES: Final = 20_000


class LandSource:
    """The source of a pipeline, as batches see it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planner = StreamPlanner(options)
        self.initial = self._planner.initial
        self.stop_at_present = self._planner.stop_at_present
        self.reported = self._planner.reported
        self.commit = self._planner.commit
        self.splits = self._planner.splits

    def latest(self, start: Any) -> Any:
        """See BatchSource."""
        options = self._options
        return self._planner.latest(
            start, options.max_per_trigger if options.max_messages is None else options.max_messages
        )


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
    shown = display or SilentDisplay()
    path, count = pipeline.checkpoint("land"), workers or available_processors()
    with file_errors(pipeline.base), stop_on_signals() as stop, locked(None, path), WorkerPool(count) as pool:
        checkpoint, table = _opened(pipeline)
        given = source_options(pipeline)
        refuse_options(given, BATCH_ONLY, "a stream")
        options = read_options(begin(None, pipeline, given))
        source = LandSource(options)
        request, schema = ReadRequest.of(options), landed_schema(options)
        rows = 0

        def store(batch: PlannedBatch, tick: Callable[[], None]) -> None:
            nonlocal rows
            note_new(None, pipeline, batch.number)
            if not table.accepts(writer=checkpoint.query_id(), batch=batch.number, schema=schema):
                must_have(table, batch.number, batch.end)
                return  # committed by a run that was interrupted before it could say so
            splits = source.splits(batch.start, batch.end)
            shown.batch(batch.number, sum(map(size_of, splits)))
            constants = {LANDED_AT: datetime.now(UTC), BATCH: batch.number}
            target = FileTarget(table.path, schema, constants)
            tasks = [
                (part, request, target) for part in divide(splits, pool.count, counts_messages=options.counts_messages)
            ]

            def look() -> None:
                shown.tick()
                tick()

            found = pool.run(write_splits, tasks, on_progress=lambda each: shown.advance(*each), tick=look)
            files = [DataFile.from_json(each) for each in found if each is not None]
            offsets = planned_offsets(None, pipeline, batch.number, batch.end)
            rows += _added(table, files, checkpoint.query_id(), batch, schema, offsets)

        runner = BatchRunner(checkpoint, source, store, progress=open_log(None, pipeline, "land"), stop=stop)
        continuous = pipeline.is_continuous and not available_now
        run = runner.run(interval_seconds(pipeline.trigger) if continuous else None)
        there = table.batches()
        return LandResult(
            pipeline=pipeline.name,
            table=table.path,
            rows=rows,
            batches=run.batches,
            last_batch=there[-1][-1] if there else None,
            seconds=run.seconds,
            stopped=run.stopped,
            committed=_commit(checkpoint, options),
        )


def _opened(pipeline: PipelineSpec) -> tuple[WritableCheckpoint, LakeTable]:
    """The checkpoint and the table, which match. Raises as `catch_up` and `Checkpoint.must_match`."""
    checkpoint = WritableCheckpoint(pipeline.checkpoint("land"))
    table = open_lake_table(locate(None, pipeline.bronze)[0], pipeline.format)
    catch_up(pipeline, checkpoint, table)
    checkpoint.must_match(table)
    return checkpoint, table


def _added(
    table: LakeTable,
    files: Sequence[DataFile],
    writer: str,
    batch: PlannedBatch,
    schema: pa.Schema,
    offsets: TableOffsets | None,
) -> int:
    """Commit the files of a batch; return the number of rows. Raises TableOwnedError if the daemon was faster."""
    if table.commit(files, writer=writer, batch=batch.number, schema=schema, offsets=offsets):
        return sum(each.rows for each in files)
    must_have(table, batch.number, batch.end)
    return 0


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

"""The land step: messages from the source into bronze, unchanged.

Strategy: one streaming query. Its checkpoint defines the offsets of a batch before the batch is read, so after any kill
batch N has the same messages again, and the table knows whether it has batch N. Nothing is parsed and nothing is left
out: bytes that cannot be read become a row with the reason. A new pipeline starts at the earliest offset, not at the
latest as streams do by default, because it is to land everything.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.spark.beginning import begin, note_new
from consumerd.spark.checkpoints import Checkpoint, OffsetLog
from consumerd.spark.failures import declared_errors
from consumerd.spark.queries import run_query
from consumerd.spark.source import register
from consumerd.spark.source.discovery import committer_of
from consumerd.spark.source.options import read_options
from consumerd.spark.tables import open_table

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec


@dataclass(frozen=True, slots=True)
class LandResult:
    """The result of one run."""

    pipeline: str
    table: str
    rows: int
    batches: int
    #: The last batch of the table; None while it has none.
    last_batch: int | None
    seconds: float
    #: Whether a signal ended the run before all was landed.
    stopped: bool
    #: Offsets that were written for lag tools (options `groupId` and `commitOffsets`).
    committed: int = 0

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def land(spark: SparkSession, pipeline: PipelineSpec, *, available_now: bool = True) -> LandResult:
    """Land all available messages; with `available_now=False`, repeat at the pipeline's `trigger` until a signal.

    Raises ConsumerdError: of the source (options, brokers, data loss), of the table (owned by another checkpoint,
    behind this one) and of Spark.
    """
    register(spark)
    options = dict(pipeline.source)
    lowered = {name.lower() for name in options}
    if not lowered & {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"}:
        options["startingOffsets"] = "earliest"
    with declared_errors():
        stream = spark.readStream.format("consumerd").options(**begin(spark, pipeline, options)).load()
    interval = None if available_now or not pipeline.is_continuous else pipeline.trigger
    result = land_stream(spark, pipeline, stream, interval=interval)
    return replace(result, committed=_commit(spark, pipeline))


def land_stream(
    spark: SparkSession, pipeline: PipelineSpec, stream: DataFrame, *, interval: str | None = None
) -> LandResult:
    """As `land`, from any stream: its columns become bronze's. Raises ConsumerdError."""
    with declared_errors():
        table = open_table(spark, pipeline.bronze, pipeline.format)
        checkpoint = Checkpoint(spark, pipeline.checkpoint("land"))
        checkpoint.must_match(table)
        before = table.last_batch

    def append(frame: DataFrame, batch: int) -> None:
        note_new(spark, pipeline, batch)
        rows = frame.withColumn("landed_at", F.current_timestamp())
        table.append(rows, writer=checkpoint.query_id(), batch=batch)

    run = run_query(spark, pipeline, "land", stream, append, interval=interval)
    with declared_errors():
        last = table.last_batch
        rows = 0 if last in (None, before) else table.read(after=-1 if before is None else before).count()
    return LandResult(
        pipeline=pipeline.name,
        table=table.path,
        rows=rows,
        batches=run.batches,
        last_batch=last,
        seconds=run.seconds,
        stopped=run.stopped,
    )


def _commit(spark: SparkSession, pipeline: PipelineSpec) -> int:
    """Write how far the table is for lag tools, if the pipeline asks for it; how many offsets changed.

    While a query runs its source does that after every batch but the last, of which Spark does not tell it.
    """
    committer = committer_of(read_options(pipeline.source))
    if committer is None:
        return 0
    checkpoint = Checkpoint(spark, pipeline.checkpoint("land"))
    last = checkpoint.last_committed()
    reached = None if last is None else OffsetLog(spark, checkpoint.path).end(last)
    return 0 if reached is None else committer.commit(reached)

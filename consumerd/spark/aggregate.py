"""The third step: counts and sums per window of the events' time and group, from silver.

Strategy: one streaming query with a watermark. A window is written once, when the watermark has passed its end, and is
never changed after that; what is open is in the query's state, which its checkpoint keeps. A batch that comes again has
the same rows, since the offsets, the watermark and the state that it began with are in the checkpoint, and the table
knows whether it has it.

So the newest windows are missing until later events come, and events that come after their window was written are not
in it: the result tells how many. Who wants all windows as they are now, open ones too, takes `current_windows`, which
reads silver from the beginning.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.errors import ConfigError
from consumerd.spark.aggregate_late import LateEvents
from consumerd.spark.checkpoints import Checkpoint
from consumerd.spark.failures import declared_errors
from consumerd.spark.offset_log import OffsetLog
from consumerd.spark.queries import run_query
from consumerd.spark.tables import open_table
from consumerd.spark.tables.files import locate
from consumerd.spark.windows import DeclaredWindows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from consumerd.spark.spec import PipelineSpec


@dataclass(frozen=True, slots=True)
class AggregateResult:
    """What one run aggregated."""

    pipeline: str
    table: str
    #: Rows of silver that were read.
    rows: int
    #: Windows (of a group each) that were written.
    windows: int
    #: Windows of a group each that wait for the watermark; None where the run had nothing to do.
    open_windows: int | None
    #: Up to here all is written, in UTC; None where the run had nothing to do or no event tells a time.
    watermark: str | None
    #: How often an event was missing from a window because that was written before the event came.
    late: int
    #: Rows without a time, which are in no window.
    without_time: int
    batches: int
    seconds: float
    stopped: bool

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def aggregate(spark: SparkSession, pipeline: PipelineSpec) -> AggregateResult:
    """Aggregate what is new in silver.

    Raises ConsumerdError: ConfigError where the pipeline declares no `aggregate`, or another one than before;
    NotFoundError where there is no silver yet.
    """
    windows = DeclaredWindows.of(pipeline)
    with declared_errors():
        silver = open_table(spark, pipeline.silver, pipeline.format)
        late = LateEvents(spark, pipeline, windows)
        stream = windows.watermarked(late.observed(silver.read_stream(pipeline.batches_per_trigger)))
        table = open_table(spark, pipeline.aggregate, pipeline.format)
        checkpoint = Checkpoint(spark, pipeline.checkpoint("aggregate"))
        checkpoint.must_match(table)
        _must_be_as_before(spark, pipeline, windows)
        before = table.last_batch

    def append(frame: DataFrame, batch: int) -> None:
        late.note_batch()
        if not table.append(frame, writer=checkpoint.query_id(), batch=batch):
            # The table has it, but the state has not: that is written while the rows are computed.
            frame.write.format("noop").mode("overwrite").save()

    run = run_query(spark, pipeline, "aggregate", windows.grouped(stream), append)
    with declared_errors():
        seen = late.result()
        last = table.last_batch
        written = 0 if last in (None, before) else table.read(after=-1 if before is None else before).count()
    return AggregateResult(
        pipeline=pipeline.name,
        table=table.path,
        rows=seen.rows,
        windows=written,
        open_windows=seen.open_windows,
        watermark=seen.watermark,
        late=seen.late,
        without_time=seen.without_time,
        batches=run.batches,
        seconds=run.seconds,
        stopped=run.stopped,
    )


def current_windows(spark: SparkSession, pipeline: PipelineSpec) -> DataFrame:
    """All windows as they are now, with all events: the aggregate's columns, `is_open`, and `missed`.

    `is_open`: not written yet, since the watermark has not passed its end. `missed`: how many events are not in what
    was written, as they came later. Raises NotFoundError where there is no silver yet.
    """
    windows = DeclaredWindows.of(pipeline)
    now = windows.grouped(open_table(spark, pipeline.silver, pipeline.format).read())
    table = open_table(spark, pipeline.aggregate, pipeline.format)
    checkpoint = Checkpoint(spark, pipeline.checkpoint("aggregate"))
    done = checkpoint.last_committed()
    watermark = None if done is None else OffsetLog(spark, checkpoint.path).watermark(done)
    if watermark is None or not table.exists:
        return now.withColumns({"is_open": F.lit(True), "missed": F.lit(0).cast("bigint")})
    written = table.read().select(*(F.col(name).alias(f"__{name}") for name in (*windows.keys, "count")))
    same = reduce(and_, (F.col(name).eqNullSafe(F.col(f"__{name}")) for name in windows.keys))
    is_open = F.unix_millis("window_end") > watermark
    missed = F.when(is_open, 0).otherwise(F.col("count") - F.coalesce(F.col("__count"), F.lit(0)))
    return now.join(written, same, "left").select(*now.columns, is_open.alias("is_open"), missed.alias("missed"))


def _must_be_as_before(spark: SparkSession, pipeline: PipelineSpec, windows: DeclaredWindows) -> None:
    """Raise ConfigError if what was declared when the table was begun is not what is declared now."""
    path, files = locate(spark, f"{pipeline.checkpoint('aggregate')}/declared.json", renames=False)
    text = json.dumps(windows.declared(), sort_keys=True)
    data = files.read(path)
    if data is None:
        files.make_folder(path.rpartition("/")[0])
        if files.create(path, text.encode()):
            return
        data = files.read(path) or b""
    if data.decode(errors="replace") != text:
        raise ConfigError(
            f"the aggregate of the pipeline {pipeline.name} had a different declaration when {pipeline.aggregate} "
            f"was begun ({data.decode(errors='replace')[:400]}): restore that declaration, or move that table and "
            f"{pipeline.checkpoint('aggregate')} away to aggregate everything again."
        )

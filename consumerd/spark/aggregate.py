"""The aggregate step: counts and sums per event-time window and group, from silver.

Strategy: one streaming query with a watermark. A window is written once, when the watermark has passed its end, and
never changes after that; open windows are in the query's state, which the checkpoint keeps. A retried batch has the
same rows, since offsets, watermark and initial state are in the checkpoint, and the table knows whether it has the
batch.

So the newest windows are missing until later events arrive, and a window lacks the events that arrived after it was
written: the result has their number. `current_windows` computes all windows from silver, including open ones.

Spark counts the rows that it drops by the watermark after partial aggregation, so its number only tells whether there
were any. Where there were, the silver rows of that batch are read again: late events are those whose window ended
before the watermark of the previous batch, which the checkpoint keeps. A run without late events reads nothing twice.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.base.errors import ConfigError
from consumerd.spark.checkpoints import Checkpoint
from consumerd.spark.failures import declared_errors
from consumerd.spark.queries import run_query
from consumerd.spark.tables.files import locate
from consumerd.spark.tables.lake import LakeBatchTable
from consumerd.spark.tables.table import FlatResult

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from consumerd.spark.spec import AggregateSpec, PipelineSpec


@dataclass(frozen=True, slots=True)
class AggregateResult(FlatResult):
    """The result of one run."""

    pipeline: str
    table: str
    #: Rows of silver that were read.
    rows: int
    #: Windows (of a group each) that were written.
    windows: int
    #: Windows of a group each that wait for the watermark; None where the run had nothing to do.
    open_windows: int | None
    #: All windows that end before are written, in UTC; None if the run had nothing to do or no event has a time.
    watermark: str | None
    #: The number of times that an event was missing from a window that was written before the event came.
    late: int
    #: Rows without a time, which are in no window.
    without_time: int
    batches: int
    seconds: float
    stopped: bool


def aggregate(spark: SparkSession, pipeline: PipelineSpec) -> AggregateResult:
    """Aggregate the new rows of silver.

    Raises ConsumerdError: ConfigError where the pipeline declares no `aggregate`, or another one than before;
    NotFoundError where there is no silver yet.
    """
    windows = DeclaredWindows.of(pipeline)
    with declared_errors():
        silver = LakeBatchTable(spark, pipeline.silver, pipeline.format)
        late = LateEvents(spark, pipeline, windows)
        stream = windows.watermarked(late.observed(silver.read_stream(pipeline.batches_per_trigger)))
        table = LakeBatchTable(spark, pipeline.aggregate, pipeline.format)
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
        windows=written,
        **asdict(seen),
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
    now = windows.grouped(LakeBatchTable(spark, pipeline.silver, pipeline.format).read())
    table = LakeBatchTable(spark, pipeline.aggregate, pipeline.format)
    checkpoint = Checkpoint(spark, pipeline.checkpoint("aggregate"))
    done = checkpoint.last_committed()
    watermark = None if done is None else checkpoint.watermark(done)
    if watermark is None or not table.exists:
        return now.withColumns({"is_open": F.lit(True), "missed": F.lit(0).cast("bigint")})
    written = table.read().select(*(F.col(name).alias(f"__{name}") for name in (*windows.keys, "count")))
    same = reduce(and_, (F.col(name).eqNullSafe(F.col(f"__{name}")) for name in windows.keys))
    is_open = F.unix_millis("window_end") > watermark
    missed = F.when(is_open, 0).otherwise(F.col("count") - F.coalesce(F.col("__count"), F.lit(0)))
    return now.join(written, same, "left").select(*now.columns, is_open.alias("is_open"), missed.alias("missed"))


def _must_be_as_before(spark: SparkSession, pipeline: PipelineSpec, windows: DeclaredWindows) -> None:
    """Raise ConfigError if the declaration differs from the one that the table was begun with."""
    path, files = locate(spark, f"{pipeline.checkpoint('aggregate')}/declared.json")
    text = json.dumps(windows.declared(), sort_keys=True)
    data = files.read(path)
    if data is None:
        files.make_directory(path.rpartition("/")[0])
        if files.create(path, text.encode()):
            return
        data = files.read(path) or b""
    if data.decode(errors="replace") != text:
        raise ConfigError(
            f"the aggregate of the pipeline {pipeline.name} had a different declaration when {pipeline.aggregate} "
            f"was begun ({data.decode(errors='replace')[:400]}): restore that declaration, or move that table and "
            f"{pipeline.checkpoint('aggregate')} away to aggregate everything again."
        )


_METRICS = "consumerd"
#: Spark keeps the progress of the last hundred batches.
_COLLECT_EVERY = 50


@dataclass(slots=True)
class AggregateCounts:
    """Counts of the rows in the batches of one run; see `AggregateResult`."""

    rows: int = 0
    late: int = 0
    without_time: int = 0
    open_windows: int | None = None
    watermark: str | None = None


class LateEvents:
    """Follows the query of a pipeline's aggregate, from its first batch on."""

    def __init__(self, spark: SparkSession, pipeline: PipelineSpec, windows: DeclaredWindows) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._windows = windows
        self._query: StreamingQuery | None = None
        self._batches = 0
        self._last = -1
        self._seen = AggregateCounts()
        #: Batches with late events: number -> what Spark counted.
        self._dropped: dict[int, int] = {}

    def observed(self, stream: DataFrame) -> DataFrame:
        """The stream, which counts rows without a time."""
        without = F.count_if(F.col(self._windows.event_time).isNull())
        return stream.observe(_METRICS, without.alias("without_time"))

    def note_batch(self) -> None:
        """Call this in each batch of the query."""
        if self._query is None:
            name = f"{self._pipeline.name}.aggregate"
            self._query = next((query for query in self._spark.streams.active if query.name == name), None)
        self._batches += 1
        if self._batches % _COLLECT_EVERY == 0:
            self._collect()

    def result(self) -> AggregateCounts:
        """The counts, once the query has ended."""
        self._collect()
        checkpoint = Checkpoint(self._spark, self._pipeline.checkpoint("aggregate"))
        for batch, dropped in self._dropped.items():
            self._seen.late += self._late(checkpoint, batch) or dropped
        return self._seen

    def _collect(self) -> None:
        """Add the progress of batches that ended since the last call."""
        for each in () if self._query is None else self._query.recentProgress:
            if each.batchId <= self._last or "addBatch" not in each.durationMs:
                continue
            self._last = each.batchId
            self._seen.rows += each.numInputRows
            self._seen.watermark = each.eventTime.get("watermark", self._seen.watermark)
            metrics = each.observedMetrics.get(_METRICS)
            self._seen.without_time += metrics["without_time"] if metrics is not None else 0
            for state in each.stateOperators:
                self._seen.open_windows = state.numRowsTotal
                if state.numRowsDroppedByWatermark:
                    self._dropped[each.batchId] = state.numRowsDroppedByWatermark

    def _late(self, checkpoint: Checkpoint, batch: int) -> int | None:
        """Events of a batch whose window was written before, a count for each such window; None: unknown."""
        start, end, watermark = checkpoint.end(batch - 1), checkpoint.end(batch), checkpoint.watermark(batch - 1)
        if watermark is None or not all(isinstance(each, dict) and "batch" in each for each in (start, end)):
            return None  # not a table of batches, or Spark forgot
        rows = LakeBatchTable(self._spark, self._pipeline.silver, self._pipeline.format).read(
            start["batch"], end["batch"]
        )
        ends = rows.select(self._windows.window().alias("window")).select("window.end")
        return ends.where(F.unix_millis("end") <= watermark).count()


_WINDOW: Final = "__window"


@dataclass(frozen=True, slots=True)
class DeclaredWindows:
    """The windows of one pipeline, over rows of silver."""

    event_time: str
    spec: AggregateSpec

    @classmethod
    def of(cls, pipeline: PipelineSpec) -> DeclaredWindows:
        """The pipeline's declaration. Raises ConfigError if there is none, or if it is inconsistent."""
        spec, refine = pipeline.aggregate_spec, pipeline.refine
        if spec is None or refine is None or refine.event_time is None:
            raise ConfigError(f"the pipeline {pipeline.name} has no [aggregate] table with an event_time: add one.")
        found = cls(refine.event_time, spec)
        names = [*found.keys, *found._sums, "count", "batch"]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"the aggregate of the pipeline {pipeline.name} would have two columns {twice[0]!r}: remove it from "
                "group_by or sums, or give the field another name."
            )
        return found

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns that identify a row of the result."""
        return ("window_start", "window_end", *self.spec.group_by)

    @property
    def _sums(self) -> dict[str, str]:
        return {f"sum_{name}": name for name in self.spec.sums}

    def declared(self) -> dict[str, Any]:
        """The settings that cannot change once there is state; the watermark can."""
        return {
            "event_time": self.event_time,
            "window": self.spec.window,
            "slide": self.spec.slide,
            "group_by": list(self.spec.group_by),
            "sums": list(self.spec.sums),
        }

    def watermarked(self, stream: DataFrame) -> DataFrame:
        """The stream with the declared watermark, by which Spark drops late events."""
        return stream.withWatermark(self.event_time, self.spec.watermark)

    def window(self) -> Column:
        """The window of a row; where windows overlap a row has several."""
        return F.window(self.event_time, self.spec.window, self.spec.slide)

    def grouped(self, frame: DataFrame) -> DataFrame:
        """One row for each window and group with events: `keys`, `count`, and a `sum_<field>` for each of the sums."""
        types = dict(frame.dtypes)
        sums = [_sum(field, types[field]).alias(name) for name, field in self._sums.items()]
        rows = frame.groupBy(self.window().alias(_WINDOW), *self.spec.group_by).agg(
            F.count(F.lit(1)).alias("count"), *sums
        )
        return rows.select(
            F.col(f"{_WINDOW}.start").alias("window_start"),
            F.col(f"{_WINDOW}.end").alias("window_end"),
            *self.spec.group_by,
            "count",
            *self._sums,
        )


def _sum(name: str, kind: str) -> Column:
    """A sum that never overflows: a message must not be able to stop a pipeline."""
    if kind == "bigint":
        return F.sum(F.col(name).cast("decimal(19,0)"))  # 29 digits
    if kind.startswith("decimal"):
        return F.try_sum(name)  # null beyond 38 digits
    return F.sum(name)

"""How many events came after their window was written, and what else the progress of a query tells.

Strategy: Spark counts what it drops by the watermark after it has summed up the rows of a task, so its number tells
only whether there was anything. For batches where there was, the rows of silver in that batch are looked at again: late
are those whose window ended before the watermark that the batch before had, which the checkpoint keeps. A run without
late events reads nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.spark.offset_log import OffsetLog
from consumerd.spark.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from consumerd.spark.spec import PipelineSpec
    from consumerd.spark.windows import DeclaredWindows

_METRICS = "consumerd"
#: Spark keeps the progress of the last hundred batches.
_COLLECT_EVERY = 50


@dataclass(slots=True)
class Seen:
    """What the batches of one run had in them; see `AggregateResult`."""

    rows: int = 0
    late: int = 0
    without_time: int = 0
    open_windows: int | None = None
    watermark: str | None = None
    #: Batches with late events: number -> what Spark counted.
    dropped: dict[int, int] = field(default_factory=dict)


class LateEvents:
    """Follows the query of a pipeline's aggregate, from its first batch on."""

    def __init__(self, spark: SparkSession, pipeline: PipelineSpec, windows: DeclaredWindows) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._windows = windows
        self._query: StreamingQuery | None = None
        self._batches = 0
        self._last = -1
        self._seen = Seen()

    def observed(self, stream: DataFrame) -> DataFrame:
        """The stream with a count of what tells no time."""
        without = F.count_if(F.col(self._windows.event_time).isNull())
        return stream.observe(_METRICS, without.alias("without_time"))

    def note_batch(self) -> None:
        """To be called in each batch of the query."""
        if self._query is None:
            name = f"{self._pipeline.name}.aggregate"
            self._query = next((query for query in self._spark.streams.active if query.name == name), None)
        self._batches += 1
        if self._batches % _COLLECT_EVERY == 0:
            self._collect()

    def result(self) -> Seen:
        """What there was, once the query has ended."""
        self._collect()
        offsets = OffsetLog(self._spark, self._pipeline.checkpoint("aggregate"))
        for batch, dropped in self._seen.dropped.items():
            self._seen.late += self._late(offsets, batch) or dropped
        self._seen.dropped.clear()
        return self._seen

    def _collect(self) -> None:
        """Take the progress of batches that ended since the last time into account."""
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
                    self._seen.dropped[each.batchId] = state.numRowsDroppedByWatermark

    def _late(self, offsets: OffsetLog, batch: int) -> int | None:
        """Events of a batch whose window was written before, a count for each such window; None: cannot be told."""
        start, end, watermark = offsets.end(batch - 1), offsets.end(batch), offsets.watermark(batch - 1)
        if watermark is None or not all(isinstance(each, dict) and "batch" in each for each in (start, end)):
            return None  # not a table of batches, or Spark forgot
        rows = open_table(self._spark, self._pipeline.silver, self._pipeline.format).read(start["batch"], end["batch"])
        ends = rows.select(self._windows.window().alias("window")).select("window.end")
        return ends.where(F.unix_millis("end") <= watermark).count()

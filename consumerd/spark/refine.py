"""The refine step: bronze into silver, where each valid message is once, and quarantine with the reason for the others.

Strategy: one streaming query over bronze, whose checkpoint defines which batches of bronze make a batch. A batch is
parsed, deduplicated, and appended to two tables under one number. After a kill between the two it is retried, finds the
first append done and does the second; both times the same rows go to the same table, since everything that decides is
in the batch itself or in earlier batches.

Of rows with one identity the one that can be parsed is kept, of several such the first landed. Offsets alone tell
whether a batch can hold rows that were there before (`seen`); only then is it compared with the tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.base.errors import ConfigError
from consumerd.spark.checkpoints import Checkpoint
from consumerd.spark.failures import declared_errors
from consumerd.spark.former_logs import identified
from consumerd.spark.parsing import REASON, check_pattern, parse
from consumerd.spark.queries import run_query
from consumerd.spark.seen import OffsetStretch, SeenLog, SeenOffsets, SeenPartition
from consumerd.spark.source.columns import IDENTITY
from consumerd.spark.tables import open_table
from consumerd.spark.tables.files import locate
from consumerd.spark.tables.table import BatchTable

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec

_SOURCE: Final = SeenPartition._fields
_KEPT: Final = ("broker_partition", "next_offset", "landed_at")
#: More conditions than this make a plan slower than reading a bit more.
_MAX_CONDITIONS: Final = 64


@dataclass(frozen=True, slots=True)
class RefineResult:
    """The result of one run. `duplicates`: rows left out because their identity was in silver already."""

    pipeline: str
    rows_silver: int
    rows_quarantined: int
    duplicates: int
    batches: int
    last_batch: int | None
    seconds: float
    stopped: bool
    #: Rows that were quarantined, by reason.
    reasons: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def refine(spark: SparkSession, pipeline: PipelineSpec) -> RefineResult:
    """Refine what bronze has. Raises ConsumerdError: ConfigError where the pipeline declares no `refine`."""
    spec = pipeline.refine
    if spec is None:
        raise ConfigError(
            f"the pipeline {pipeline.name} has no [refine] table: add one that says how to parse its messages."
        )
    with declared_errors():
        check_pattern(spark, spec)
        bronze = open_table(spark, pipeline.bronze, pipeline.format)
        stream = bronze.read_stream(pipeline.batches_per_trigger)
        work = _Refining(spark, pipeline)
        last = work.silver.last_batch
    run = run_query(spark, pipeline, "refine", stream, work.store)
    with declared_errors():
        new_silver, new_quarantine = work.since(-1 if last is None else last)
    return RefineResult(
        pipeline=pipeline.name,
        rows_silver=new_silver,
        rows_quarantined=sum(new_quarantine.values()),
        duplicates=work.duplicates,
        batches=run.batches,
        last_batch=work.silver.last_batch,
        seconds=run.seconds,
        stopped=run.stopped,
        reasons=dict(new_quarantine),
    )


class _Refining:
    """The state from one batch to the next."""

    def __init__(self, spark: SparkSession, pipeline: PipelineSpec) -> None:
        assert pipeline.refine is not None
        self._spec = pipeline.refine
        self.silver: BatchTable = open_table(spark, pipeline.silver, pipeline.format)
        self.quarantine: BatchTable = open_table(spark, pipeline.quarantine, pipeline.format)
        self._checkpoint = Checkpoint(spark, pipeline.checkpoint("refine"))
        for table in (self.silver, self.quarantine):
            self._checkpoint.must_match(table)
        path, files = locate(spark, pipeline.checkpoint("refine-seen"), renames=False)
        self._seen = SeenLog(files, path)
        self.duplicates = 0

    def store(self, frame: DataFrame, batch: int) -> None:
        """Append one batch to both tables."""
        with ExitStack() as cached:
            frame = identified(frame)
            rows = _cached(parse(frame, self._spec), cached)
            if self._spec.dedup:
                rows = self._deduplicated(rows, batch, cached)
            good = rows.where(F.col(REASON).isNull()).select(*IDENTITY, *_KEPT, *self._spec.fields)
            bad = rows.where(F.col(REASON).isNotNull()).select(*frame.columns, REASON)
            writer = self._checkpoint.query_id()
            self.silver.append(good, writer=writer, batch=batch)
            self.quarantine.append(bad.withColumn("refined_at", F.current_timestamp()), writer=writer, batch=batch)

    def since(self, batch: int) -> tuple[int, Counter[str]]:
        """Rows in silver, and in quarantine by reason, of batches after `batch`."""
        if not self.silver.exists or not self.quarantine.exists:
            return 0, Counter()
        counted = self.quarantine.read(after=batch).groupBy(REASON).count().collect()
        return self.silver.read(after=batch).count(), Counter({row[REASON]: row["count"] for row in counted})

    # -- duplicates

    def _deduplicated(self, parsed: DataFrame, batch: int, cached: ExitStack) -> DataFrame:
        """The rows whose identity comes for the first time."""
        found = _stretches(parsed)
        rows = sum(row["rows"] for row in found)
        kept = sum(row["identities"] for row in found)
        if rows > kept:
            # A row without a reason first, then the one that landed first; the value makes the choice repeatable.
            order = Window.partitionBy(*IDENTITY).orderBy(F.col(REASON).isNotNull(), "batch", F.hash("value"))
            parsed = parsed.withColumn("__number", F.row_number().over(order)).where("__number = 1").drop("__number")
        stretches = [
            OffsetStretch(SeenPartition(*(row[name] for name in _SOURCE)), row["start"], row["end"]) for row in found
        ]
        seen = self._seen.before(batch)
        if seen is None:  # duplicates were allowed so far, or the file was lost
            seen = self._seen_in_tables(batch)
        overlapping = seen.overlapping(stretches)
        self._seen.store(batch, seen.with_stretches(stretches))
        if overlapping:
            earlier = self._earlier(overlapping, batch).withColumnsRenamed({name: f"__{name}" for name in IDENTITY})
            same = [F.col(name).eqNullSafe(F.col(f"__{name}")) for name in IDENTITY]
            parsed = _cached(parsed.join(earlier, same, "left_anti"), cached)
            kept = parsed.count()
        self.duplicates += rows - kept
        return parsed

    def _earlier(self, overlapping: list[OffsetStretch], batch: int) -> DataFrame:
        """Identities of earlier batches near these stretches. Files without such offsets are skipped by Parquet."""
        near = F.col("offset").between(min(each.start for each in overlapping), max(each.end for each in overlapping))
        if len(overlapping) <= _MAX_CONDITIONS:
            near &= reduce(or_, map(_within, overlapping))
        identities = [identified(table.read(to=batch - 1)).where(near).select(*IDENTITY) for table in self._tables()]
        return reduce(DataFrame.unionAll, identities)

    def _tables(self) -> list[BatchTable]:
        """Return the tables that exist: after a kill before its first batch, quarantine may not."""
        return [table for table in (self.silver, self.quarantine) if table.exists]

    def _seen_in_tables(self, batch: int) -> SeenOffsets:
        """The state before `batch`, from the rows themselves: of each source one interval."""
        seen = SeenOffsets()
        for table in self._tables():
            seen = seen.with_stretches(
                OffsetStretch(SeenPartition(*(row[name] for name in _SOURCE)), row["start"], row["end"])
                for row in _stretches(identified(table.read(to=batch - 1)))
            )
        return seen


def _cached(frame: DataFrame, stack: ExitStack) -> DataFrame:
    """The frame, cached until the stack is closed."""
    kept = frame.persist()
    stack.callback(kept.unpersist)
    return kept


def _stretches(frame: DataFrame) -> list[Row]:
    """Return for each source `start`, `end`, and the numbers of `rows` and `identities`."""
    # Leaves of a compressed message but the last end where they start.
    end = F.greatest(F.col("offset") + 1, F.coalesce(F.col("next_offset"), F.col("offset")))
    identities = frame.groupBy(*IDENTITY).agg(F.count(F.lit(1)).alias("count"), F.max(end).alias("last"))
    return (
        identities.groupBy(*_SOURCE)
        .agg(
            F.min("offset").alias("start"),
            F.max("last").alias("end"),
            F.sum("count").alias("rows"),
            F.count(F.lit(1)).alias("identities"),
        )
        .collect()
    )


def _within(stretch: OffsetStretch) -> Column:
    here = [F.col(name).eqNullSafe(F.lit(value)) for name, value in zip(_SOURCE, stretch.source, strict=True)]
    return reduce(and_, here) & F.col("offset").between(stretch.start, stretch.end)

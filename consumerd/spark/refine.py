"""The refine step: bronze into silver, where each valid message is once, and quarantine with the reason for the others.

Strategy: one streaming query over bronze, whose checkpoint defines which batches of bronze make a batch. A batch is
parsed, deduplicated, and appended to two tables under one number. After a kill between the two it is retried, finds the
first append done and does the second; both times the same rows go to the same table, since everything that decides is
in the batch itself or in earlier batches.

Of rows with one identity the one that can be parsed is kept, of several such the first landed. Offsets alone tell
whether a batch can hold rows that were there before (`seen`); only then is it compared with the tables.

Tasks decode messages and write the files of both tables themselves (`refining`), and the driver commits these. Spark
parses, compares and appends a batch where its ranges of offsets meet those of another file or batch, and every batch
where only Spark can parse the messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial, reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.base.errors import ConfigError
from consumerd.spark.checkpoints import Checkpoint, locked
from consumerd.spark.failures import declared_errors
from consumerd.spark.former_logs import identified
from consumerd.spark.lake.again import RebuiltTables
from consumerd.spark.lake.casts import zone_of
from consumerd.spark.lake.days import days_of
from consumerd.spark.lake.decode import REASON, MessageFormat
from consumerd.spark.lake.refine import REFINED_AT, RefinedFiles, RefineTarget, can_refine, may_repeat
from consumerd.spark.lake.table import BATCH
from consumerd.spark.parsing import check_pattern, parse
from consumerd.spark.queries import run_query
from consumerd.spark.rebuild import Rebuild
from consumerd.spark.refining import TARGET, RefiningSource
from consumerd.spark.results import RefinePreview, RefineResult
from consumerd.spark.seen import OffsetStretch, SeenLog, SeenOffsets, SeenPartition
from consumerd.spark.source.columns import IDENTITY
from consumerd.spark.tables.files import locate
from consumerd.spark.tables.lake import LakeBatchTable

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec, RefineSpec

_SOURCE: Final = SeenPartition._fields
_KEPT: Final = ("broker_partition", "next_offset", "landed_at")
#: More conditions than this make a plan slower than reading a bit more.
_MAX_CONDITIONS: Final = 64


def refine(spark: SparkSession, pipeline: PipelineSpec) -> RefineResult:
    """Refine what bronze has. Raises ConsumerdError: ConfigError where the pipeline declares no `refine`."""
    with declared_errors():
        check_pattern(spark, _spec_of(pipeline))
        bronze = LakeBatchTable(spark, pipeline.bronze, pipeline.format)
        if pipeline.rebuild is None:
            with locked(spark, pipeline.checkpoint("refine")):
                RebuiltTables(spark, pipeline, bronze.store).complete()
        most = None if pipeline.rebuild is None else pipeline.rebuild.bronze
        rows = bronze.read_stream(pipeline.batches_per_trigger, most)
        work = _Refining(spark, pipeline, bronze)
        stream, store = work.by_tasks() or (rows, work.store)
    run = run_query(spark, pipeline, "refine", stream, store)
    with declared_errors():
        rows_silver, reasons = work.stored()
    return RefineResult(
        pipeline=pipeline.name,
        rows_silver=rows_silver,
        rows_quarantined=sum(reasons.values()),
        duplicates=work.duplicates,
        batches=run.batches,
        last_batch=work.silver.last_batch,
        seconds=run.seconds,
        stopped=run.stopped,
        reasons=dict(reasons),
    )


def refine_again(
    spark: SparkSession, pipeline: PipelineSpec, *, since: datetime | None = None, until: datetime | None = None
) -> RefineResult:
    """Refine again what was refined, into new tables that replace the old ones; see `consumerd.spark.lake.again`.

    `since`, `until`: only messages that landed in this time; of the others the rows stay. Raises as `refine`, and as
    `RebuiltTables.rebuild`.
    """
    with declared_errors():
        check_pattern(spark, _spec_of(pipeline))
        tables = RebuiltTables(spark, pipeline, LakeBatchTable(spark, pipeline.bronze, pipeline.format).store)
        return tables.rebuild(partial(refine, spark), since=since, until=until, zone=_zone(spark))


def preview(
    spark: SparkSession, pipeline: PipelineSpec, *, since: datetime | None = None, until: datetime | None = None
) -> RefinePreview:
    """The verdicts on the messages that `refine_again` would refine. Nothing is written. Raises as `refine`."""
    spec = _spec_of(pipeline)
    with declared_errors():
        check_pattern(spark, spec)
        bronze = LakeBatchTable(spark, pipeline.bronze, pipeline.format)
        rebuild = RebuiltTables(spark, pipeline, bronze.store).range(since, until)
        rows = identified(bronze.read(to=rebuild.bronze)).where(_landed_within(rebuild))
        found = parse(rows, spec).groupBy(REASON).count().collect()
    reasons = {row[REASON]: row["count"] for row in found}
    return RefinePreview.of(
        pipeline.name, sum(reasons.values()), {reason: count for reason, count in reasons.items() if reason is not None}
    )


def _spec_of(pipeline: PipelineSpec) -> RefineSpec:
    if pipeline.refine is None:
        raise ConfigError(
            f"the pipeline {pipeline.name} has no [refine] table: add one that says how to parse its messages."
        )
    return pipeline.refine


def _zone(spark: SparkSession) -> str:
    return spark.conf.get("spark.sql.session.timeZone") or "UTC"


def _landed_within(rebuild: Rebuild) -> Column:
    """Whether a rebuild refines a row."""
    landed = F.coalesce(F.unix_micros("landed_at"), F.lit(0))
    found = F.lit(True)
    if rebuild.since is not None:
        found &= landed >= rebuild.since
    return found if rebuild.until is None else found & (landed < rebuild.until)


class _Refining:
    """The state from one batch to the next."""

    def __init__(self, spark: SparkSession, pipeline: PipelineSpec, bronze: LakeBatchTable) -> None:
        assert pipeline.refine is not None
        self._spark = spark
        self._pipeline = pipeline
        self._spec = pipeline.refine
        self._bronze = bronze
        self._days = days_of(self._spec.day_of, pipeline.format)
        self.silver = LakeBatchTable(spark, pipeline.silver, pipeline.format)
        self.quarantine = LakeBatchTable(spark, pipeline.quarantine, pipeline.format)
        self._checkpoint = Checkpoint(spark, pipeline.checkpoint("refine"))
        for table in self._both:
            self._checkpoint.must_match(table)
        path, files = locate(spark, pipeline.checkpoint("refine-seen"))
        self._seen = SeenLog(files, path)
        self.duplicates = 0
        #: Of batches whose files were written by tasks.
        self._rows_silver = 0
        self._reasons: Counter[str] = Counter()
        #: The other batches.
        self._by_spark: list[int] = []

    @property
    def _both(self) -> tuple[LakeBatchTable, LakeBatchTable]:
        return self.silver, self.quarantine

    def stored(self) -> tuple[int, Counter[str]]:
        """Rows that went to silver, and to quarantine by reason."""
        if not self._by_spark or not all(table.exists for table in self._both):
            return self._rows_silver, self._reasons
        silver, quarantine = (
            table.read(after=min(self._by_spark) - 1).where(F.col(BATCH).isin(self._by_spark)) for table in self._both
        )
        counted = quarantine.groupBy(REASON).count().collect()
        return self._rows_silver + silver.count(), self._reasons + Counter(
            {row[REASON]: row["count"] for row in counted}
        )

    # -- by tasks

    def by_tasks(self) -> tuple[DataFrame, Callable[[DataFrame, int], None]] | None:
        """The stream whose tasks write the files, and what commits those of a batch; None where only Spark refines."""
        messages = MessageFormat.of(self._spec)
        zone = _zone(self._spark)
        bronze = self._bronze
        if messages.needs_spark is not None or zone_of(zone) is None or not can_refine(bronze.lake.schema()):
            return None
        folders = self.silver.path, self.quarantine.path
        rebuild = self._pipeline.rebuild
        target = RefineTarget.of(messages, bronze.lake.schema(), folders, zone, rebuild, self._days)
        self._spark.dataSource.register(RefiningSource)
        most = None if rebuild is None else rebuild.bronze
        options = {**bronze.stream_options(self._pipeline.batches_per_trigger, most), TARGET: target.to_json()}
        stream = self._spark.readStream.format(RefiningSource.name()).options(**options).load()
        return stream, partial(self._store_files, target.stored)

    def _store_files(self, schemas: tuple[pa.Schema, pa.Schema], frame: DataFrame, batch: int) -> None:
        """Commit the files that the tasks of a batch write."""
        writer = self._checkpoint.query_id()
        both = list(zip(self._both, schemas, self._days, strict=True))
        wanted = [
            table.lake.accepts(writer=writer, batch=batch, schema=schema, days=days) for table, schema, days in both
        ]
        if not any(wanted):
            return
        rows = frame.collect()
        found = [RefinedFiles.from_json(row["files"]) for row in rows]
        files = (
            [each.silver for each in found if each.silver is not None],
            [each.quarantine for each in found if each.quarantine is not None],
        )
        if self._keeps_rows(batch) or (self._spec.dedup and not self._are_new(found, batch)):
            for table, written in zip(self._both, files, strict=True):
                table.remove_files(written)
            self.store(self._bronze.read(after=rows[0]["first"] - 1, to=rows[0]["last"]), batch)
            return
        silver, quarantine = (
            table.lake.commit(written, writer=writer, batch=batch, schema=schema, days=days)
            for (table, schema, days), written in zip(both, files, strict=True)
        )
        for each in found:
            self._rows_silver += each.silver.rows if silver and each.silver is not None else 0
            self._reasons.update(each.reasons if quarantine else {})

    def _are_new(self, found: list[RefinedFiles], batch: int) -> bool:
        """Whether no identity is there twice, or was there before; if so, the batch is noted as seen."""
        seen = self._seen_before(batch)
        if may_repeat(found, seen):
            return False
        self._seen.store(batch, seen.with_stretches(stretch for each in found for stretch in each.stretches))
        return True

    # -- by Spark

    def store(self, frame: DataFrame, batch: int) -> None:
        """Append one batch to both tables."""
        with ExitStack() as cached:
            frame, number, rebuild = identified(frame), batch, self._pipeline.rebuild
            if rebuild is not None:
                frame, number = frame.where(_landed_within(rebuild)), min(batch, rebuild.batch)
            rows = parse(frame, self._spec).withColumn(REFINED_AT, F.current_timestamp())
            rows = _cached(self._with_kept(rows, rebuild) if self._keeps_rows(batch) else rows, cached)
            if self._spec.dedup:
                rows = self._deduplicated(rows, batch, cached)
            good = rows.where(F.col(REASON).isNull()).select(*IDENTITY, *_KEPT, *self._spec.columns)
            bad = rows.where(F.col(REASON).isNotNull()).select(*frame.columns, REASON, REFINED_AT)
            writer = self._checkpoint.query_id()
            for table, kept, days in zip(self._both, (good, bad), self._days, strict=True):
                table.append(kept, writer=writer, batch=batch, number=number, days=days)
            self._by_spark.append(batch)

    def _keeps_rows(self, batch: int) -> bool:
        """Whether a batch of a rebuild has rows of the former tables, too."""
        return batch == 0 and self._pipeline.rebuild is not None and self._pipeline.rebuild.is_partial

    def _with_kept(self, parsed: DataFrame, rebuild: Rebuild | None) -> DataFrame:
        """With the rows of the former tables that a rebuild does not refine."""
        assert rebuild is not None
        former, types = replace(self._pipeline, rebuild=None), dict(parsed.dtypes)
        for path in (former.silver, former.quarantine):
            table = LakeBatchTable(self._spark, path, former.format)
            if table.exists:
                rows = identified(table.read()).where(~_landed_within(rebuild))
                kept = [F.col(name).cast(types[name]).alias(name) for name in rows.columns if name in types]
                parsed = parsed.unionByName(rows.select(*kept), allowMissingColumns=True)
        return parsed

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
        seen = self._seen_before(batch)
        overlapping = seen.overlapping(stretches)
        self._seen.store(batch, seen.with_stretches(stretches))
        if overlapping:
            earlier = self._earlier(overlapping, batch).withColumnsRenamed({name: f"__{name}" for name in IDENTITY})
            same = [F.col(name).eqNullSafe(F.col(f"__{name}")) for name in IDENTITY]
            parsed = _cached(parsed.join(earlier, same, "left_anti"), cached)
            kept = parsed.count()
        self.duplicates += rows - kept
        return parsed

    def _seen_before(self, batch: int) -> SeenOffsets:
        seen = self._seen.before(batch)
        # None: duplicates were allowed so far, or the file was lost.
        return self._seen_in_tables(batch) if seen is None else seen

    def _earlier(self, overlapping: list[OffsetStretch], batch: int) -> DataFrame:
        """Identities of earlier batches near these stretches. Files without such offsets are skipped by Parquet."""
        near = F.col("offset").between(min(each.start for each in overlapping), max(each.end for each in overlapping))
        if len(overlapping) <= _MAX_CONDITIONS:
            near &= reduce(or_, map(_within, overlapping))
        identities = [identified(table.read(to=batch - 1)).where(near).select(*IDENTITY) for table in self._tables()]
        return reduce(DataFrame.unionAll, identities)

    def _tables(self) -> list[LakeBatchTable]:
        """Return the tables that exist: after a kill before its first batch, quarantine may not."""
        return [table for table in self._both if table.exists]

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

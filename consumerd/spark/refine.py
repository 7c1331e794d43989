"""The refine step: bronze into silver, where each valid message is once, and quarantine with the reason for the others.

What a batch is, and how it is stored once, is `consumerd.spark.lake.refine_step`'s, in tasks of Spark. Tasks decode
messages and write the files of both tables; no message passes through the JVM. Spark itself parses, compares and writes
a batch where its ranges of offsets meet those of another file or batch, and every batch where only Spark can parse the
messages.

Of rows with one identity the one that can be parsed is kept, of several such the first landed. Everything that decides
is in the batch itself or in earlier batches, so a batch that is repeated after a kill has the same rows.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial, reduce
from itertools import zip_longest
from operator import and_, or_
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.spark.failures import declared_errors
from consumerd.spark.former_logs import identified
from consumerd.spark.jobs import SparkTasks
from consumerd.spark.lake.again import RebuiltTables
from consumerd.spark.lake.batches import PlannedBatch
from consumerd.spark.lake.casts import zone_of
from consumerd.spark.lake.days import days_of
from consumerd.spark.lake.decode import REASON, MessageFormat, declared_column
from consumerd.spark.lake.folders import open_folder
from consumerd.spark.lake.refine import REFINED_AT, RefinedFiles, RefineTarget, can_refine
from consumerd.spark.lake.refine_step import RefineStep
from consumerd.spark.lake.table import BATCH
from consumerd.spark.parsing import check_pattern, declared_fields, parse
from consumerd.spark.rebuild import Rebuild
from consumerd.spark.results import RefinePreview, RefineResult
from consumerd.spark.seen import OffsetStretch, SeenOffsets, SeenPartition
from consumerd.spark.source.columns import IDENTITY
from consumerd.spark.tables.lake import LakeBatchTable, stored_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.spark.spec import PipelineSpec

_SOURCE: Final = SeenPartition._fields
_KEPT: Final = ("broker_partition", "next_offset", "landed_at")
#: More conditions than this make a plan slower than reading a bit more.
_MAX_CONDITIONS: Final = 64


def refine(spark: SparkSession, pipeline: PipelineSpec) -> RefineResult:
    """Refine what bronze has. Raises ConsumerdError: ConfigError where the pipeline declares no `refine`."""
    with declared_errors(pipeline.base):
        check_pattern(spark, pipeline.declared_refine)
        return _Refining(spark, pipeline).run()


def refine_again(
    spark: SparkSession, pipeline: PipelineSpec, *, since: datetime | None = None, until: datetime | None = None
) -> RefineResult:
    """Refine again what was refined, into new tables that replace the old ones; see `consumerd.spark.lake.again`.

    `since`, `until`: only messages that landed in this time; of the others the rows stay. Raises as `refine`, and as
    `RebuiltTables.rebuild`.
    """
    with declared_errors():
        check_pattern(spark, pipeline.declared_refine)
        tables = RebuiltTables(spark, pipeline, LakeBatchTable(spark, pipeline.bronze, pipeline.format).store)
        return tables.rebuild(partial(refine, spark), since=since, until=until, zone=_zone(spark))


def preview(
    spark: SparkSession, pipeline: PipelineSpec, *, since: datetime | None = None, until: datetime | None = None
) -> RefinePreview:
    """The verdicts on the messages that `refine_again` would refine. Nothing is written. Raises as `refine`."""
    spec = pipeline.declared_refine
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


def _zone(spark: SparkSession) -> str:
    return spark.conf.get("spark.sql.session.timeZone") or "UTC"


def _landed_within(rebuild: Rebuild) -> Column:
    """Whether a rebuild refines a row."""
    landed = F.coalesce(F.unix_micros("landed_at"), F.lit(0))
    found = F.lit(True)
    if rebuild.since is not None:
        found &= landed >= rebuild.since
    return found if rebuild.until is None else found & (landed < rebuild.until)


class _Refining(RefineStep):
    """The step in a session. Spark refines what tasks cannot."""

    def __init__(self, spark: SparkSession, pipeline: PipelineSpec) -> None:
        self._session = spark
        self._spec = pipeline.declared_refine
        self._bronze, *self._both = (
            LakeBatchTable(spark, path, pipeline.format)
            for path in (pipeline.bronze, pipeline.silver, pipeline.quarantine)
        )
        messages, zone, columns = MessageFormat.of(self._spec), _zone(spark), self._bronze.lake.schema()
        folders = self._both[0].path, self._both[1].path
        days = days_of(self._spec.day_of, pipeline.format)
        self._in_tasks = messages.needs_spark is None and zone_of(zone) is not None and can_refine(columns)
        if self._in_tasks:
            target = RefineTarget.of(messages, columns, folders, zone, pipeline.rebuild, days)
        else:
            landed = identified(self._bronze.read(to=-1))
            both = self._divided(self._parsed(landed), landed)
            silver, quarantine = (stored_columns(each.schema) for each in both)
            target = RefineTarget(messages, columns, silver, quarantine, folders, zone, pipeline.rebuild, days)
        self._jobs = SparkTasks(spark)
        super().__init__(pipeline, replace(target, storage_options=self._bronze.store), self._jobs, spark=spark)

    def _refined(self, batch: PlannedBatch, tick: Callable[[], None]) -> list[RefinedFiles]:
        if self._in_tasks and not self._keeps_rows(batch):
            return super()._refined(batch, tick)
        return self._jobs.call(partial(self._by_spark, batch), tick)

    def _without_duplicates(
        self, found: list[RefinedFiles], seen: SeenOffsets, batch: PlannedBatch, tick: Callable[[], None]
    ) -> list[RefinedFiles]:
        for path, name in zip(self._target.folders, ("silver", "quarantine"), strict=True):
            folder = open_folder(path, self._target.storage_options)
            for each in found:
                if (file := getattr(each, name)) is not None:
                    folder.remove(file.path)
        return self._jobs.call(partial(self._by_spark, batch), tick)

    def _by_spark(self, batch: PlannedBatch) -> list[RefinedFiles]:
        """The files of a batch that Spark parses, compares and writes."""
        rebuild, number = self._pipeline.rebuild, batch.number
        frame = identified(self._bronze.read(self._files.reached(batch.start), self._files.reached(batch.end)))
        if rebuild is not None:
            frame, number = frame.where(_landed_within(rebuild)), min(number, rebuild.batch)
        with ExitStack() as cached:
            rows = self._parsed(frame)
            rows = _cached(self._with_kept(rows, rebuild) if self._keeps_rows(batch) else rows, cached)
            if self._spec.dedup:
                rows = self._deduplicated(rows, batch.number, cached)
            silver, quarantine = (
                table.write(kept, number, days)
                for table, kept, days in zip(self._both, self._divided(rows, frame), self._target.days, strict=True)
            )
            counted = rows.where(F.col(REASON).isNotNull()).groupBy(REASON).count().collect()
        files = [RefinedFiles(*each, (), ascending=True, reasons={}) for each in zip_longest(silver, quarantine)]
        return [*files, RefinedFiles(None, None, (), ascending=True, reasons={row[0]: row[1] for row in counted})]

    def _parsed(self, landed: DataFrame) -> DataFrame:
        return parse(landed, self._spec).withColumn(REFINED_AT, F.current_timestamp())

    def _divided(self, parsed: DataFrame, landed: DataFrame) -> tuple[DataFrame, DataFrame]:
        """The rows of silver, and those of quarantine, which have the columns of `landed`."""
        return (
            parsed.where(F.col(REASON).isNull()).select(*IDENTITY, *_KEPT, *declared_fields(self._spec)),
            parsed.where(F.col(REASON).isNotNull()).select(*landed.columns, REASON, REFINED_AT),
        )

    def _with_kept(self, parsed: DataFrame, rebuild: Rebuild | None) -> DataFrame:
        """With the rows of the former tables that a rebuild does not refine."""
        assert rebuild is not None
        former, types = replace(self._pipeline, rebuild=None), dict(parsed.dtypes)
        silver = {name: name for name in (*IDENTITY, *_KEPT, BATCH)}
        silver |= {name: declared_column(name) for name in self._spec.columns}
        quarantine = {name: name for name in parsed.columns}
        for path, names in ((former.silver, silver), (former.quarantine, quarantine)):
            table = LakeBatchTable(self._session, path, former.format)
            if table.exists:
                rows = identified(table.read()).where(~_landed_within(rebuild))
                wanted = {name: names[name] for name in rows.columns if names.get(name) in types}
                kept = [F.col(name).cast(types[column]).alias(column) for name, column in wanted.items()]
                parsed = parsed.unionByName(rows.select(*kept), allowMissingColumns=True)
        return parsed

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
            earlier = self._near(overlapping, batch).withColumnsRenamed({name: f"__{name}" for name in IDENTITY})
            same = [F.col(name).eqNullSafe(F.col(f"__{name}")) for name in IDENTITY]
            parsed = _cached(parsed.join(earlier, same, "left_anti"), cached)
            kept = parsed.count()
        self._duplicates += rows - kept
        return parsed

    def _near(self, overlapping: list[OffsetStretch], batch: int) -> DataFrame:
        """Identities of earlier batches near these stretches. Files without such offsets are skipped by Parquet."""
        near = F.col("offset").between(min(each.start for each in overlapping), max(each.end for each in overlapping))
        if len(overlapping) <= _MAX_CONDITIONS:
            near &= reduce(or_, map(_within, overlapping))
        # After a kill before its first batch, quarantine may not exist.
        tables = [table for table in self._both if table.exists]
        identities = [identified(table.read(to=batch - 1)).where(near).select(*IDENTITY) for table in tables]
        return reduce(DataFrame.unionAll, identities)


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

"""The reconcile step: whether every message has landed once and unaltered, partition by partition.

Strategy: the plan of the checkpoint, the messages of the source, bronze, and silver with quarantine are
layers over the log of each partition; a sweep (`consumerd.spark.coverage`) finds where they differ. Bronze's rows chain
by themselves, so gaps and duplicates show without the source. The source is read again to distinguish a gap of the log
from a lost message, to count, and to compare a hash that does not depend on order; with `shallow` only where there are
gaps. Offsets that neither bronze nor the source has are lost, unless an earlier comparison proved that there was no
message (`ProvenRange`) or the pipeline's `gone` declares it. Spark aggregates everything; the driver gets a few numbers
per partition and the first stretches of each kind.

A position of the log without a message (the end of a transaction, a compressed message without content) looks, once
retention has removed it, just like a message that never landed. So a reconciliation that finds a partition complete
writes down its range, the number of its rows in bronze and the sum of their hashes. As long as bronze has the same rows
there, the offsets that it lacks are those that the log lacked. The record is void once a single row differs, or when a
declaration of `gone` that it was made under is withdrawn.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.base.errors import reason_of
from consumerd.spark.checkpoints import Checkpoint, OffsetLog
from consumerd.spark.coverage import PARTITION, content_hash, found_stretches, kinds, runs, sweep
from consumerd.spark.failures import declared_errors
from consumerd.spark.former_logs import FormerLog, name_of, with_log_names
from consumerd.spark.reconcile_expected import (
    RangeToLand,
    SourceSpans,
    available,
    common,
    planned,
    source_rows,
    spans_frame,
)
from consumerd.spark.reconcile_result import LogStretches, PartitionCheck, ReconcileResult
from consumerd.spark.runs import PLACE
from consumerd.spark.source.offsets import Key
from consumerd.spark.source.options import read_options
from consumerd.spark.tables.files import locate
from consumerd.spark.tables.lake import LakeBatchTable

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec

_log = structlog.get_logger(__name__)
_BRONZE_DDL = (
    "topic string, broker_partition string, partition int, broker int, offset bigint, index int, next_offset bigint, "
    "key binary, value binary, batch bigint"
)


def reconcile(spark: SparkSession, pipeline: PipelineSpec, *, shallow: bool = False) -> ReconcileResult:
    """Compare the messages to be landed with the rows of the pipeline's tables.

    `shallow`: do not read the source again but where bronze has gaps; then nothing is counted there, and altered values
    are not noticed. Raises NotFoundError where nothing was landed yet, and what reading the source raises.
    """
    with declared_errors():
        work = _Reconciliation(spark, pipeline)
        try:
            return work.result(shallow=shallow)
        finally:
            work.close()


class _Reconciliation:
    """One reconciliation of the tables of one pipeline."""

    def __init__(self, spark: SparkSession, pipeline: PipelineSpec) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._kept: list[DataFrame] = []
        self._bronze = LakeBatchTable(spark, pipeline.bronze, pipeline.format)
        self._former: tuple[FormerLog, ...] = ()
        # Queries may run meanwhile. The last batch of refine is read before that of land, and each
        # table is read up to there, so that no row is missing only because it was added in between.
        self._refined, self._refined_to = _refined(spark, pipeline)
        self._last_batch: int | None = None

    def close(self) -> None:
        """Release cached frames."""
        for frame in self._kept:
            frame.unpersist()

    def result(self, *, shallow: bool) -> ReconcileResult:
        options = read_options(self._pipeline.source)
        refine = self._pipeline.refine
        conditions = kinds(
            lossless=options.fail_on_data_loss,
            compacts=options.counts_messages,
            dedup=refine is not None and refine.dedup,
            refined=bool(self._refined),
        )
        plan = planned(self._spark, self._pipeline, self._bronze, self._first_landed)
        wanted, self._last_batch, self._former = plan
        self._refined = {name: self._named(frame) for name, frame in self._refined.items()}
        spans, pieces = SourceSpans({}, []) if shallow else available(self._pipeline, wanted)
        query = Checkpoint(self._spark, self._pipeline.checkpoint("land")).query_id()
        proven_ranges = read_proven(self._spark, self._pipeline, query, self._former)
        bronze = self._bronze_runs(pieces, proven_ranges, hashed=not shallow)
        landed = _by_partition(bronze)
        held = {
            key: proven
            for key, proven in proven_ranges.items()
            if landed.get(key, _Count()).holds(proven, hashed=not shallow)
        }
        layers = {
            "planned": self._span_runs(wanted.items()),
            "bronze": bronze,
            "proven": self._span_runs((key, RangeToLand(proven.start, proven.end)) for key, proven in held.items()),
            "declared": self._span_runs(
                ((each.topic, each.partition), RangeToLand(each.start, each.end)) for each in self._pipeline.gone
            ),
        } | self._refined_layers(bronze)
        if shallow:
            # Proven ranges are read again while the source still has them: only reading shows its messages.
            unproven = {name: frame for name, frame in layers.items() if name not in ("proven", "declared")}
            gaps = found_stretches(sweep(unproven), {"gaps": kinds(lossless=True, dedup=True, refined=False)["gaps"]})
            spans, pieces = available(self._pipeline, _around(gaps, wanted))
        source, expected = None, {}
        if spans:
            rows = source_rows(self._spark, self._pipeline, spans)
            message = F.col("_corrupt").isNull() if "_corrupt" in rows.columns else None
            everything = self._keep(runs(rows, hashed=not shallow, seen=message))
            source = everything.where("seen")
            expected = _by_partition(everything.where("seen"))
            # What went while it was read is not known to have been no message.
            pieces = common(pieces, available(self._pipeline, wanted).pieces)
            layers |= {
                "available": self._span_runs(pieces), "source": source, "malformed": everything.where("NOT seen"),
            }  # fmt: skip
        found = found_stretches(sweep(layers), conditions)
        duplicates = self._duplicates([key for key, by_kind in found.items() if "duplicated" in by_kind])
        differing = {key for key in spans if expected.get(key, _Count()).digest != landed.get(key, _Count()).digest}
        for key, by_kind in self._altered({key: spans[key] for key in differing}).items():
            found[key] = found.get(key, {}) | by_kind
        refined = {name: _counts(frame) for name, frame in self._refined.items()}
        checks = []
        for key in sorted({*wanted, *landed, *found}):
            counts = landed.get(key, _Count())
            span = wanted.get(key) or RangeToLand(counts.first, counts.last)
            check = PartitionCheck(
                *key,
                start=span.start,
                end=span.end,
                landed=counts.rows,
                duplicates=duplicates.get(key, 0),
                refined=refined["silver"].get(key, 0) if "silver" in refined else None,
                quarantined=refined["quarantine"].get(key, 0) if "quarantine" in refined else None,
                pending=counts.rows - counts.due if refined else 0,
            )
            if not shallow:
                again = expected.get(key, _Count())
                check = replace(
                    check,
                    expected=again.rows,
                    compared=counts.seen,
                    # Where messages were compacted away since, only those that are there still can be compared.
                    same_hash=again.digest == counts.digest or (None if "compacted" in found.get(key, {}) else False),
                    digest=counts.digest,
                )
            if "declared" in found.get(key, {}):
                reasons = [each for each in self._pipeline.gone if (each.topic, each.partition) == key]
                check = replace(check, reasons=tuple(f"[{each.start}, {each.end}): {each.reason}" for each in reasons))
            checks.append(check.with_stretches(found.get(key, {})))
        if not shallow:
            self._write_proven(query, proven_ranges, landed, checks, wanted)
        return ReconcileResult(self._pipeline.name, shallow, tuple(checks))

    def _write_proven(
        self,
        query: str,
        known: Mapping[Key, ProvenRange],
        landed: Mapping[Key, _Count],
        checks: list[PartitionCheck],
        wanted: Mapping[Key, RangeToLand],
    ) -> None:
        """Store proven ranges: the whole range of complete partitions, the former one of others."""
        proven_ranges = dict(known)
        for check in checks:
            key = check.topic, check.broker_partition
            if check.is_landed:
                gone = [(one.start, one.end) for one in self._pipeline.gone if (one.topic, one.partition) == key]
                count = landed.get(key, _Count())
                topic_id = wanted[key].topic_id if key in wanted else None
                proven_ranges[key] = ProvenRange(check.start, check.end, count.rows, count.whole, tuple(gone), topic_id)
        try:
            write_proven(self._spark, self._pipeline, query, proven_ranges)
        except (OSError, Py4JJavaError) as error:  # a user with read access alone may compare, too
            _log.warning("proof_write_failed", pipeline=self._pipeline.name, reason=reason_of(error))

    def _keep(self, frame: DataFrame) -> DataFrame:
        """The same frame, cached."""
        self._kept.append(frame.persist())
        return self._kept[-1]

    def _rows(self) -> DataFrame:
        """Bronze."""
        if not self._bronze.exists:
            return self._spark.createDataFrame([], _BRONZE_DDL)
        return self._named(self._bronze.read(to=self._last_batch))

    def _named(self, frame: DataFrame) -> DataFrame:
        """Rows with the names of their logs."""
        return with_log_names(self._spark, frame, self._former)

    def _first_landed(self) -> dict[Key, int]:
        rows = self._rows().groupBy(*PARTITION).agg(F.min("offset").alias("first")).collect()
        return {_key(row): row["first"] for row in rows}

    def _bronze_runs(
        self, pieces: list[tuple[Key, RangeToLand]], proven_ranges: Mapping[Key, ProvenRange], *, hashed: bool
    ) -> DataFrame:
        """Runs of bronze: `seen` where the source is read again, `due` where `refine` should have been, `proven` within
        a proven range.
        """
        rows = self._rows()
        due = F.lit(True) if self._refined_to is None else F.col("batch") <= self._refined_to
        conditions = {"seen": F.lit(False), "proven": F.lit(False)}
        for name, spans in {
            "seen": pieces, "proven": [(key, RangeToLand(each.start, each.end)) for key, each in proven_ranges.items()]
        }.items():  # fmt: skip
            if spans:
                frame = spans_frame(self._spark, spans).toDF(
                    *(f"__{name}_{each}" for each in ("topic", "name", "a", "b"))
                )
                # Pieces of one partition share no offset, so a row meets one of them at most.
                same = [
                    F.col(own) == F.col(f"__{name}_{each}")
                    for own, each in zip(PARTITION, ("topic", "name"), strict=True)
                ]
                within = (F.col("offset") >= F.col(f"__{name}_a")) & (F.col("offset") < F.col(f"__{name}_b"))
                rows = rows.join(F.broadcast(frame), [*same, within], "left")
                conditions[name] = F.col(f"__{name}_a").isNotNull()
        return self._keep(runs(rows, hashed=hashed, due=due, **conditions))

    def _refined_layers(self, bronze: DataFrame) -> dict[str, DataFrame]:
        if not self._refined:
            return {}
        rows = [runs(frame) for frame in self._refined.values()]
        return {"due": bronze.where("due"), "refined": rows[0] if len(rows) == 1 else rows[0].unionByName(rows[1])}

    def _span_runs(self, spans: Iterable[tuple[Key, RangeToLand]]) -> DataFrame:
        """Each span as one run."""
        frame = spans_frame(self._spark, spans).where("start < end")
        return frame.selectExpr(
            *PARTITION, "start AS start_offset", "0L AS start_index", "end AS end_offset", "0L AS end_index"
        )

    def _altered(self, spans: Mapping[Key, RangeToLand]) -> dict[Key, dict[str, LogStretches]]:
        """Return the stretches where bronze has another value than the source; reads all of `spans` again."""
        if not spans:
            return {}
        one, other = source_rows(self._spark, self._pipeline, spans), self._rows()
        place = [*PARTITION, "offset", "index"]
        one = one.select(*PLACE, content_hash().alias("expected"))
        both = one.join(other.select(*place, content_hash().alias("found")), place)
        moves = F.col("next_offset") > F.col("offset")
        places = both.where("expected <> found").select(
            *PARTITION,
            F.col("offset").alias("start_offset"),
            F.col("index").alias("start_index"),
            F.when(moves, F.col("next_offset")).otherwise(F.col("offset")).alias("end_offset"),
            F.when(moves, 0).otherwise(F.col("index") + 1).alias("end_index"),
        )
        return found_stretches(places, {"altered": F.lit(True)})

    def _duplicates(self, keys: list[Key]) -> dict[Key, int]:
        """Rows of bronze beyond the first of their identity, in the partitions that have any."""
        if not keys:
            return {}
        there = F.broadcast(self._spark.createDataFrame(keys, ", ".join(f"{name} string" for name in PARTITION)))
        rows = self._rows().join(there, list(PARTITION), "left_semi")
        often = rows.groupBy(*PARTITION, "offset", "index").count()
        sums = often.groupBy(*PARTITION).agg(F.sum(F.col("count") - 1).alias("duplicates")).collect()
        return {_key(row): row["duplicates"] for row in sums}


def _refined(spark: SparkSession, pipeline: PipelineSpec) -> tuple[dict[str, DataFrame], int | None]:
    """Rows of silver and of quarantine that `refine` has completed, and the last batch of bronze among them.

    Nothing where it has done nothing; None where its checkpoint does not count by batches (Delta).
    """
    checkpoint = Checkpoint(spark, pipeline.checkpoint("refine"))
    done = checkpoint.last_committed()
    if pipeline.refine is None or done is None:
        return {}, None
    offsets = OffsetLog(spark, checkpoint.path)
    found = {}
    for name, path in (("silver", pipeline.silver), ("quarantine", pipeline.quarantine)):
        table = LakeBatchTable(spark, path, pipeline.format)
        last = table.last_batch if table.exists else None
        if last is not None:
            # A batch that is on its way does not count yet; one that refine does not have does, since it is wrong.
            found[name] = table.read(to=done if last > done and offsets.end(last) is not None else None)
    end: Any = offsets.end(done)
    return found, end["batch"] if isinstance(end, dict) and isinstance(end.get("batch"), int) else None


class _Count:
    """Sums over the runs of one partition; offsets are those of the log."""

    def __init__(self, row: Row | None = None) -> None:
        self.rows: int = row["rows"] if row else 0
        self.seen: int = row["seen_rows"] if row else 0
        self.due: int = row["due_rows"] if row else 0
        self.first: int = row["first"] if row else 0
        self.last: int = row["last"] if row else 0
        self.digest: int = int(row["hash"]) % (1 << 64) if row else 0
        #: As `digest`, of all rows.
        self.whole: int = int(row["whole_hash"]) % (1 << 64) if row else 0
        self.proven_rows: int = row["proven_rows"] if row else 0
        self.proven_digest: int = int(row["proven_hash"]) % (1 << 64) if row else 0

    def holds(self, proven: ProvenRange, *, hashed: bool) -> bool:
        """Whether the rows in the range are still those that proved it complete."""
        return self.proven_rows == proven.rows and (not hashed or self.proven_digest == proven.digest)


def _by_partition(frame: DataFrame) -> dict[Key, _Count]:
    """Sums over runs."""
    seen = F.when(F.col("seen"), F.col("rows")).otherwise(0)
    due = F.when(F.col("due"), F.col("rows")).otherwise(0)
    proven = F.when(F.col("proven"), F.col("rows")).otherwise(0)
    whole = F.col("hash").cast("decimal(28,0)")
    rows = frame.groupBy(*PARTITION).agg(
        F.sum("rows").alias("rows"),
        F.sum(seen).alias("seen_rows"),
        F.sum(due).alias("due_rows"),
        F.min("start_offset").alias("first"),
        F.max("end_offset").alias("last"),
        F.sum(F.when(F.col("seen"), whole).otherwise(0)).alias("hash"),
        F.sum(whole).alias("whole_hash"),
        F.sum(proven).alias("proven_rows"),
        F.sum(F.when(F.col("proven"), whole).otherwise(0)).alias("proven_hash"),
    )
    return {_key(row): _Count(row) for row in rows.collect()}


def _counts(frame: DataFrame) -> dict[Key, int]:
    return {_key(row): row["count"] for row in frame.groupBy(*PARTITION).count().collect()}


def _around(
    gaps: Mapping[Key, Mapping[str, LogStretches]], wanted: Mapping[Key, RangeToLand]
) -> dict[Key, RangeToLand]:
    """The ranges to read again to classify gaps: from the first one of a partition to the end of the last one."""
    spans = {}
    for key, by_kind in gaps.items():
        found = by_kind["gaps"]
        # The end of a compressed message is only known by reading further.
        spans[key] = RangeToLand(found.first[0].start, wanted[key].end if found.end_index else found.end)
    return spans


def _key(row: Row) -> Key:
    return row["topic"], row["broker_partition"]


class ProvenRange(NamedTuple):
    """Bronze was complete in [start, end) of one partition: this many rows, and `digest` is the sum of their hashes."""

    start: int
    end: int
    rows: int
    digest: int
    #: The ranges that were declared gone then.
    declared: tuple[tuple[int, int], ...] = ()
    #: The log's, None where it was unknown.
    topic_id: str | None = None


def read_proven(
    spark: SparkSession, pipeline: PipelineSpec, query: str, former: Collection[FormerLog] = ()
) -> dict[Key, ProvenRange]:
    """The ranges of the checkpoint with this id; none if the file is missing or has other content."""
    path, files = locate(spark, _path(pipeline))
    try:
        found = json.loads(files.read(path) or b"{}")
        if found.get("query") != query:
            return {}
        proven_ranges = {
            name_of(former, (topic, name), *log or (None,)): ProvenRange(
                start, end, rows, digest, tuple((low, high) for low, high in declared), *log
            )
            for topic, name, start, end, rows, digest, declared, *log in found["partitions"]
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}  # an unreadable proof is void; the next comparison writes another one
    gone = {(each.topic, each.partition, each.start, each.end) for each in pipeline.gone}
    return {key: proven for key, proven in proven_ranges.items() if {(*key, *each) for each in proven.declared} <= gone}


def write_proven(
    spark: SparkSession, pipeline: PipelineSpec, query: str, proven_ranges: Mapping[Key, ProvenRange]
) -> None:
    """Keep these and no others. Raises OSError."""
    path, files = locate(spark, _path(pipeline))
    rows = [[*key, *proven] for key, proven in sorted(proven_ranges.items())]
    files.replace(path, json.dumps({"query": query, "partitions": rows}).encode() + b"\n")


def _path(pipeline: PipelineSpec) -> str:
    return f"{pipeline.checkpoint('land')}/proven.json"  # it is of this checkpoint, and goes where that goes

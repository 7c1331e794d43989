"""Whether every message has landed once and unaltered, partition by partition: what is compared, and what it means.

Strategy: the plan of the checkpoint, the messages of the source, bronze, and silver with quarantine are
layers over the log of each partition; a sweep (`consumerd.spark.lake.coverage`) finds where they differ. Bronze's rows
chain by themselves, so gaps and duplicates show without the source. The source is read again to distinguish a gap of
the log from a lost message, to count, and to compare a hash that does not depend on order; with `shallow` only where
there are gaps. Offsets that neither bronze nor the source has are lost, unless an earlier comparison proved that there
was no message (`ProvenRange`) or the pipeline's `gone` declares it.

How rows become runs, and runs stretches, is left to a subclass: `consumerd.spark.lake.reconcile` reads files with
Arrow, `consumerd.spark.reconcile` frames of Spark.

A position of the log without a message (the end of a transaction, a compressed message without content) looks, once
retention has removed it, just like a message that never landed. So a reconciliation that finds a partition complete
writes down its range, the number of its rows in bronze and the sum of their hashes. As long as bronze has the same rows
there, the offsets that it lacks are those that the log lacked. The record is void once a single row differs, or when a
declaration of `gone` that it was made under is withdrawn.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import structlog

from consumerd.base.errors import reason_of
from consumerd.spark.checkpoints import Checkpoint, CountedTable, OffsetLog
from consumerd.spark.former_logs import FormerLog, name_of
from consumerd.spark.reconcile_expected import RangeToLand, SourceSpans, available, common, planned
from consumerd.spark.reconcile_result import LogStretches, PartitionCheck, ReconcileResult
from consumerd.spark.source.offsets import Key
from consumerd.spark.source.options import read_options
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.spec import PipelineSpec

_log = structlog.get_logger(__name__)
#: Runs of rows (`consumerd.spark.runs`): a table of Arrow, or a frame of Spark.
Runs = TypeVar("Runs")
Found = dict["Key", dict[str, LogStretches]]
REFINED: Final = ("silver", "quarantine")
#: The tables that are compared.
TABLES: Final = ("bronze", *REFINED)


class RangeCount:
    """Sums over the runs of one partition; offsets are those of the log. `row` has their names."""

    def __init__(self, row: Mapping[str, Any] | None = None) -> None:
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


class _Counted(NamedTuple):
    """Of all partitions: the ranges to be landed, sums over bronze and the source, stretches, and rows elsewhere.

    `expected`: None where the source was read only around gaps.
    """

    wanted: Mapping[Key, RangeToLand]
    landed: Mapping[Key, RangeCount]
    expected: Mapping[Key, RangeCount] | None
    found: Found
    duplicates: Mapping[Key, int]
    refined: Mapping[str, Mapping[Key, int]]


def _keys_of(found: Found, kind: str) -> list[Key]:
    return [key for key, by_kind in found.items() if kind in by_kind]


class Reconciliation(ABC, Generic[Runs]):
    """One reconciliation of the tables of one pipeline. `spark`: None for checkpoints of this machine."""

    def __init__(self, spark: SparkSession | None, pipeline: PipelineSpec, bronze: CountedTable) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._bronze = bronze
        self._former: tuple[FormerLog, ...] = ()
        # Queries may run meanwhile. The last batch of refine is read before that of land, and each
        # table is read up to there, so that no row is missing only because it was added in between.
        self._refined_to: int | None = None
        #: The tables that `refine` has written, and the last batch of each to be read.
        self._refined: dict[str, int] = {}
        self._find_refined()
        self._last_batch: int | None = None

    # -- what a subclass reads

    @abstractmethod
    def _table(self, name: str) -> CountedTable:
        """Silver or quarantine."""

    @abstractmethod
    def _first_landed(self) -> dict[Key, int]:
        """The first offset of each partition of bronze."""

    @abstractmethod
    def _bronze_runs(
        self, pieces: list[tuple[Key, RangeToLand]], proven_ranges: Mapping[Key, ProvenRange], *, hashed: bool
    ) -> Runs:
        """Runs of bronze: `seen` where the source is read again, `due` where `refine` should have been, `proven` within
        a proven range.
        """

    @abstractmethod
    def _refined_layers(self, bronze: Runs) -> dict[str, Runs]:
        """The layers `due` and `refined`; none where nothing was refined."""

    @abstractmethod
    def _refined_counts(self, name: str) -> dict[Key, int]:
        """The rows of silver or quarantine, after `_refined_layers`."""

    @abstractmethod
    def _source_runs(self, spans: Mapping[Key, RangeToLand], *, hashed: bool) -> tuple[Runs, Runs]:
        """Runs of the messages in the source, and of bytes that are not a message, where such are left out."""

    @abstractmethod
    def _span_runs(self, spans: Iterable[tuple[Key, RangeToLand]]) -> Runs:
        """Each span as one run; empty ones are left out."""

    @abstractmethod
    def _counts(self, runs: Runs) -> dict[Key, RangeCount]:
        """The sums over runs."""

    @abstractmethod
    def _stretches(self, layers: Mapping[str, Runs], **conditions: bool) -> Found:
        """The stretches of the kinds that `consumerd.spark.lake.coverage.kinds` has for these conditions."""

    @abstractmethod
    def _duplicates(self, keys: list[Key]) -> dict[Key, int]:
        """Rows of bronze beyond the first of their identity, in the partitions that have any."""

    @abstractmethod
    def _altered(self, spans: Mapping[Key, RangeToLand]) -> Found:
        """The stretches `altered`, where bronze has another value than the source; reads all of `spans` again."""

    # -- the comparison

    def _find_refined(self) -> None:
        """Find what `refine` has completed. Its checkpoint may count by versions (of Delta) instead of batches."""
        checkpoint = Checkpoint(self._spark, self._pipeline.checkpoint("refine"))
        done = checkpoint.last_committed()
        if self._pipeline.refine is None or done is None:
            return
        offsets = OffsetLog(self._spark, checkpoint.path)
        for name in REFINED:
            batches = self._table(name).batches()
            if batches:
                # A batch that is on its way does not count yet; one that refine does not have does, since it is wrong.
                last = batches[-1][-1]
                self._refined[name] = done if last > done and offsets.end(last) is not None else last
        end: Any = offsets.end(done)
        if isinstance(end, dict) and isinstance(end.get("batch"), int):
            self._refined_to = end["batch"]

    def result(self, *, shallow: bool) -> ReconcileResult:
        """Compare everything. `shallow`: read the source only where bronze has gaps."""
        plan = planned(self._spark, self._pipeline, self._bronze, self._first_landed)
        wanted, self._last_batch, self._former = plan
        spans, pieces = SourceSpans({}, []) if shallow else available(self._pipeline, wanted)
        query = Checkpoint(self._spark, self._pipeline.checkpoint("land")).query_id()
        proven_ranges = read_proven(self._spark, self._pipeline, query, self._former)
        bronze = self._bronze_runs(pieces, proven_ranges, hashed=not shallow)
        landed = self._counts(bronze)
        held = [
            (key, RangeToLand(proven.start, proven.end))
            for key, proven in proven_ranges.items()
            if landed.get(key, RangeCount()).holds(proven, hashed=not shallow)
        ]
        declared = (((each.topic, each.partition), RangeToLand(each.start, each.end)) for each in self._pipeline.gone)
        layers = {
            "planned": self._span_runs(wanted.items()),
            "bronze": bronze,
            "proven": self._span_runs(held),
            "declared": self._span_runs(declared),
        } | self._refined_layers(bronze)
        if shallow:
            # Proven ranges are read again while the source still has them: only reading shows its messages.
            unproven = {name: runs for name, runs in layers.items() if name not in ("proven", "declared")}
            gaps = self._stretches(unproven, lossless=True, dedup=True, refined=False)
            spans, pieces = available(self._pipeline, _around(gaps, wanted))
        expected: dict[Key, RangeCount] = {}
        if spans:
            source, malformed = self._source_runs(spans, hashed=not shallow)
            expected = self._counts(source)
            # What went while it was read is not known to have been no message.
            pieces = common(pieces, available(self._pipeline, wanted).pieces)
            layers |= {"available": self._span_runs(pieces), "source": source, "malformed": malformed}
        found = self._all_stretches(layers)
        none = RangeCount()
        differing = {
            key: span for key, span in spans.items() if expected.get(key, none).digest != landed.get(key, none).digest
        }
        for key, by_kind in self._altered(differing).items():
            found[key] = found.get(key, {}) | by_kind
        counted = _Counted(
            wanted, landed, None if shallow else expected, found, self._duplicates(_keys_of(found, "duplicated")),
            {name: self._refined_counts(name) for name in self._refined},
        )  # fmt: skip
        checks = [self._check(key, counted) for key in sorted({*wanted, *landed, *found})]
        if not shallow:
            self._write_proven(query, proven_ranges, landed, checks, wanted)
        return ReconcileResult(self._pipeline.name, shallow, tuple(checks))

    def _all_stretches(self, layers: Mapping[str, Runs]) -> Found:
        options, refine = read_options(self._pipeline.source), self._pipeline.refine
        return self._stretches(
            layers,
            lossless=options.fail_on_data_loss,
            compacts=options.counts_messages,
            dedup=refine is not None and refine.dedup,
            refined=bool(self._refined),
        )

    def _check(self, key: Key, counted: _Counted) -> PartitionCheck:
        """What was counted and found of one partition."""
        counts = counted.landed.get(key, RangeCount())
        span = counted.wanted.get(key) or RangeToLand(counts.first, counts.last)
        found, refined = counted.found.get(key, {}), counted.refined
        check = PartitionCheck(
            *key,
            start=span.start,
            end=span.end,
            landed=counts.rows,
            duplicates=counted.duplicates.get(key, 0),
            refined=refined["silver"].get(key, 0) if "silver" in refined else None,
            quarantined=refined["quarantine"].get(key, 0) if "quarantine" in refined else None,
            pending=counts.rows - counts.due if refined else 0,
        )
        if counted.expected is not None:
            again = counted.expected.get(key, RangeCount())
            check = replace(
                check,
                expected=again.rows,
                compared=counts.seen,
                # Where messages were compacted away since, only those that are there still can be compared.
                same_hash=again.digest == counts.digest or (None if "compacted" in found else False),
                digest=counts.digest,
            )
        if "declared" in found:
            reasons = [each for each in self._pipeline.gone if (each.topic, each.partition) == key]
            check = replace(check, reasons=tuple(f"[{each.start}, {each.end}): {each.reason}" for each in reasons))
        return check.with_stretches(found)

    def _write_proven(
        self,
        query: str,
        known: Mapping[Key, ProvenRange],
        landed: Mapping[Key, RangeCount],
        checks: list[PartitionCheck],
        wanted: Mapping[Key, RangeToLand],
    ) -> None:
        """Store proven ranges: the whole range of complete partitions, the former one of others."""
        proven_ranges = dict(known)
        for check in checks:
            key = check.topic, check.broker_partition
            if check.is_landed:
                gone = [(one.start, one.end) for one in self._pipeline.gone if (one.topic, one.partition) == key]
                count = landed.get(key, RangeCount())
                topic_id = wanted[key].topic_id if key in wanted else None
                proven_ranges[key] = ProvenRange(check.start, check.end, count.rows, count.whole, tuple(gone), topic_id)
        try:
            write_proven(self._spark, self._pipeline, query, proven_ranges)
        except self._write_errors() as error:  # a user with read access alone may compare, too
            _log.warning("proof_write_failed", pipeline=self._pipeline.name, reason=reason_of(error))

    def _write_errors(self) -> tuple[type[Exception], ...]:
        """What writing to the checkpoint raises."""
        if self._spark is None:
            return (OSError,)
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - not there without Spark

        return OSError, Py4JJavaError


def _around(
    gaps: Mapping[Key, Mapping[str, LogStretches]], wanted: Mapping[Key, RangeToLand]
) -> dict[Key, RangeToLand]:
    """The ranges to read again to classify gaps: from the first one of a partition to the end of the last one."""
    spans = {}
    for key, by_kind in gaps.items():
        found = by_kind.get("gaps")
        if found is None:
            continue
        # The end of a compressed message is only known by reading further.
        spans[key] = RangeToLand(found.first[0].start, wanted[key].end if found.end_index else found.end)
    return spans


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
    spark: SparkSession | None, pipeline: PipelineSpec, query: str, former: Collection[FormerLog] = ()
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
    spark: SparkSession | None, pipeline: PipelineSpec, query: str, proven_ranges: Mapping[Key, ProvenRange]
) -> None:
    """Keep these and no others. Raises OSError."""
    path, files = locate(spark, _path(pipeline))
    rows = [[*key, *proven] for key, proven in sorted(proven_ranges.items())]
    files.replace(path, json.dumps({"query": query, "partitions": rows}).encode() + b"\n")


def _path(pipeline: PipelineSpec) -> str:
    return f"{pipeline.checkpoint('land')}/proven.json"  # it is of this checkpoint, and goes where that goes

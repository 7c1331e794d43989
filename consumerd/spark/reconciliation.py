"""Whether every message has landed once and unaltered, partition by partition: what is compared, and what it means.

Strategy: the plan of the checkpoint, the messages of the source, bronze, and silver with quarantine are
layers over the log of each partition; a sweep (`consumerd.spark.lake.coverage`) finds where they differ. Bronze's rows
chain by themselves, so gaps and duplicates show without the source. The source is read again to distinguish a gap of
the log from a lost message, to count, and to compare a hash that does not depend on order; with `shallow` only where
there are gaps. Offsets that neither bronze nor the source has are lost, unless an earlier comparison proved that there
was no message (`ProvenRange`) or the pipeline's `gone` declares it.

How rows become runs is `consumerd.spark.lake.reconcile_runs`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import structlog

from consumerd.base.errors import reason_of
from consumerd.spark.checkpoints import Checkpoint
from consumerd.spark.lake.reconcile_runs import Found, RangeCount, TaskRuns
from consumerd.spark.proven import ProvenRange, read_proven, write_proven
from consumerd.spark.reconcile_expected import RangeToLand, SourceSpans, available, common, planned
from consumerd.spark.reconcile_result import LogStretches, PartitionCheck, ReconcileResult
from consumerd.spark.source.offsets import Key
from consumerd.spark.source.options import read_options
from consumerd.spark.tables.files import errors_of, locate

_log = structlog.get_logger(__name__)


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


class Reconciliation(TaskRuns):
    """One reconciliation of the tables of one pipeline."""

    def result(self, *, shallow: bool) -> ReconcileResult:
        """Compare everything. `shallow`: read the source only where bronze has gaps."""
        plan = planned(self._spark, self._pipeline, self._table("bronze"), self._first_landed)
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

    def _all_stretches(self, layers: Mapping[str, pa.Table]) -> Found:
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
        _, files = locate(self._spark, self._pipeline.base)
        try:
            write_proven(self._spark, self._pipeline, query, proven_ranges)
        except errors_of(files) as error:  # a user with read access alone may compare, too
            _log.warning("proof_write_failed", pipeline=self._pipeline.name, reason=reason_of(error))


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

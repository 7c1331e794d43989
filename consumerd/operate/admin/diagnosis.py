"""Diagnosis of a group: problems, causes and remedies, as pure functions of snapshots.

Strategy: first the members' own nodes, then owners, then committed offsets: each has a module of its own, which
works for groups of every kind, as far as they have them. Facts behind it: golden notes, 4 and 5, and what was
measured beside JVM members (notes on mixed groups): they try for the last time 6 s after the trigger and stop at 8 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from consumerd.base.partition import TopicPartition
from consumerd.operate.admin.diagnosis_members import foreign_findings, member_findings
from consumerd.operate.admin.diagnosis_offsets import (
    DiagnosisInput,
    inside_findings,
    offset_findings,
    outage_findings,
    silent_brokers,
)
from consumerd.operate.admin.diagnosis_owners import owner_findings
from consumerd.operate.admin.diagnosis_progress import progress_findings
from consumerd.operate.admin.findings import TRANSIENT, GroupFinding, GroupFindingKind
from consumerd.operate.admin.logs import LogRange, LookupFailure
from consumerd.operate.admin.snapshot import V07GroupSnapshot
from consumerd.operate.admin.v08.diagnosis import diagnose_v08, store_findings, transaction_findings
from consumerd.operate.admin.v08.snapshot import V08GroupSnapshot


def diagnose(
    snapshot: V07GroupSnapshot,
    ranges: Mapping[TopicPartition, LogRange | LookupFailure],
    inside: Mapping[TopicPartition, int] | None = None,
) -> list[GroupFinding]:
    """All findings of one snapshot of a group of 0.7.

    Those of `TRANSIENT` kinds may be a rebalance that is under way: see `persistent_findings`.
    """
    return [
        *member_findings(snapshot),
        *owner_findings(snapshot),
        *offset_findings(snapshot, ranges),
        *inside_findings(inside or {}, snapshot),
        *silent_brokers(snapshot.brokers, ranges),
        *foreign_findings(snapshot),
    ]


def diagnose_once(inputs: DiagnosisInput) -> list[GroupFinding]:
    """All findings of one snapshot of a group of either dialect."""
    snapshot = inputs.snapshot
    if isinstance(snapshot, V08GroupSnapshot):
        return diagnose_v08(snapshot, inputs)
    assert isinstance(snapshot, V07GroupSnapshot)
    return diagnose(snapshot, inputs.ranges, inputs.inside)


def diagnose_group(first: DiagnosisInput, second: DiagnosisInput | None = None) -> list[GroupFinding]:
    """The persistent findings of the second of two snapshots, and whether the owners make progress.

    Of one snapshot alone, all its findings. An outage comes first, without partitions that are gone with their brokers.
    """
    last = second or first
    findings = diagnose_once(first)
    if second is not None:
        findings = persistent_findings(findings, diagnose_once(second))
    findings += [*store_findings(first, last), *transaction_findings(first, last)]
    if second is not None:
        findings += progress_findings(first, second)
    if outage := [*outage_findings(last)]:
        findings = [each for each in findings if last.registered or each.kind is not GroupFindingKind.NO_PARTITION]
    return [*outage, *findings]


def persistent_findings(first: Iterable[GroupFinding], second: Iterable[GroupFinding]) -> list[GroupFinding]:
    """The findings of the second snapshot, without transient ones that the first did not have."""
    before = {(finding.kind, finding.subject) for finding in first}
    return [finding for finding in second if finding.kind not in TRANSIENT or (finding.kind, finding.subject) in before]

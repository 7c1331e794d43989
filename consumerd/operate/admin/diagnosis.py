"""Diagnosis of a group: problems, causes and remedies, as pure functions of snapshots.

Strategy: first the members' own nodes, then owners, then committed offsets: each has a module of its own, which
works for groups of every kind, as far as they have them. Facts behind it: golden notes, 4 and 5, and what was
measured beside JVM members (notes on mixed groups): they try for the last time 6 s after the trigger and stop at 8 s.
"""

from __future__ import annotations

from collections.abc import Iterable

from consumerd.base.partition import TopicPartition
from consumerd.operate.admin.diagnosis_members import foreign_findings, member_findings
from consumerd.operate.admin.diagnosis_offsets import (
    DiagnosisInput,
    cut_off_findings,
    former_log_findings,
    former_topic_findings,
    inside_findings,
    offset_findings,
    outage_findings,
    silence_findings,
    unread_findings,
)
from consumerd.operate.admin.diagnosis_owners import owner_findings
from consumerd.operate.admin.findings import TRANSIENT, GroupFinding, GroupFindingKind, process_of
from consumerd.operate.admin.logs import LogRange
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.operate.admin.v08.diagnosis import broker_findings, leader_findings, store_findings, transaction_findings

# Diagnosis of progress: two snapshots show whether the owners of partitions work.
#
# Strategy: an owner whose node is perfect may read nothing (a JVM member that gave up while joining: notes on mixed
# groups; a handler that hangs while another thread sends heartbeats), and the only sign of it is an offset that stands
# still while the log grows.


def progress_findings(first: DiagnosisInput, second: DiagnosisInput) -> Iterable[GroupFinding]:
    """Owners without a fault, whose committed offset did not move between two snapshots although there is more to read.

    The time between must be longer than the members' commit interval.
    """
    seconds, snapshot = second.at - first.at, second.snapshot
    plan, unit = snapshot.plan(), snapshot.unit
    for partition, owner in snapshot.view.owners.items():
        before, now = first.ranges.get(partition), second.ranges.get(partition)
        if not (isinstance(before, LogRange) and isinstance(now, LogRange)) or second.held_back(partition) is not None:
            continue
        same = owner == first.snapshot.view.owners.get(partition) == plan.get(partition)
        if not _stood(first, second, partition) or not same or owner[0] not in snapshot.view.members:
            continue
        offset = second.furthest(partition)
        lag, grown = now.end - (now.earliest if offset is None else offset), now.end - before.end
        if lag <= 0 or (offset is None and not grown):
            continue
        stands = "no offset is committed" if offset is None else f"the committed offset stays at {offset}"
        name, process = snapshot.owner_name(partition), _process(snapshot, owner[0])
        if grown > 0:
            yield GroupFinding(
                GroupFindingKind.BLACK_HOLE,
                str(partition),
                f"Owner {name} does not read it: {stands} while {grown} {unit} were written in {seconds:.0f} s; "
                f"the lag is {lag} {unit}. {_why(snapshot)}",
                f"Restart {process}; {_nudge(snapshot)}If its commits are more "
                f"than {seconds:.0f} s apart, run the doctor again with a longer --interval.",
            )
        else:
            yield GroupFinding(
                GroupFindingKind.STANDING_STILL,
                str(partition),
                f"Its owner is {name}, and {stands} for {seconds:.0f} s with a lag of {lag} {unit}.",
                f"If that is not expected, check what {process} is doing.",
            )


def _stood(first: DiagnosisInput, second: DiagnosisInput, partition: TopicPartition) -> bool:
    """Whether no offset of the partition moved, in any storage."""
    if first.kept.get(partition) != second.kept.get(partition):
        return False
    return first.snapshot.committed(partition) == second.snapshot.committed(partition)


def _process(snapshot: GroupSnapshot, name: str) -> str:
    client = snapshot.clients.get(name)
    return process_of(snapshot.group, name) if client is None else f"the client {client}"


def _why(snapshot: GroupSnapshot) -> str:
    if snapshot.by_broker:
        return (
            "Probably its handler hangs or keeps failing, or a transaction that never ended blocks readers of "
            "committed messages."
        )
    return (
        "Probably its handler hangs, or it is a JVM member that gave up while it joined, and owns partitions without "
        "reading them."
    )


def _nudge(snapshot: GroupSnapshot) -> str:
    return "its partitions go to other members. " if snapshot.by_broker else "a nudge does not help. "


def diagnose_once(inputs: DiagnosisInput) -> list[GroupFinding]:
    """All findings of one snapshot of a group; parts that its Kafka does not have find nothing.

    Those of `TRANSIENT` kinds may be a rebalance or an election that is under way: see `persistent_findings`.
    """
    snapshot = inputs.snapshot
    former = [*former_log_findings(inputs), *former_topic_findings(inputs), *cut_off_findings(inputs)]
    strangers = {each.subject for each in former}
    return [
        *(broker_findings(snapshot) if snapshot.by_broker else (*member_findings(snapshot), *owner_findings(snapshot))),
        *former,
        *(
            each
            for each in offset_findings(inputs)
            if each.kind is not GroupFindingKind.OUT_OF_RANGE or each.subject not in strangers
        ),
        *inside_findings(inputs),
        *leader_findings(inputs),
        *silence_findings(inputs),
        *unread_findings(inputs),
        *(() if snapshot.by_broker else foreign_findings(snapshot)),
    ]


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

"""Diagnosis of progress: two snapshots show whether the owners of partitions work.

Strategy: an owner whose node is perfect may read nothing (a JVM member that gave up while joining: notes on mixed
groups; a handler that hangs while another thread sends heartbeats), and the only sign of it is an offset that stands
still while the log grows.
"""

from __future__ import annotations

from collections.abc import Iterable

from consumerd.base.partition import TopicPartition
from consumerd.operate.admin.diagnosis_offsets import DiagnosisInput
from consumerd.operate.admin.findings import GroupFinding, GroupFindingKind, process_of
from consumerd.operate.admin.logs import LogRange
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.operate.admin.v08.snapshot import CoordinatorKind, V08GroupSnapshot


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
    if isinstance(snapshot, V08GroupSnapshot) and name in snapshot.clients:
        return f"the client {snapshot.clients[name]}"
    return process_of(snapshot.group, name)


def _at_broker(snapshot: GroupSnapshot) -> bool:
    return isinstance(snapshot, V08GroupSnapshot) and snapshot.coordinator is CoordinatorKind.BROKER


def _why(snapshot: GroupSnapshot) -> str:
    if _at_broker(snapshot):
        return (
            "Probably its handler hangs or keeps failing, or a transaction that never ended blocks readers of "
            "committed messages."
        )
    return (
        "Probably its handler hangs, or it is a JVM member that gave up while it joined, and owns partitions without "
        "reading them."
    )


def _nudge(snapshot: GroupSnapshot) -> str:
    return "its partitions go to other members. " if _at_broker(snapshot) else "a nudge does not help. "

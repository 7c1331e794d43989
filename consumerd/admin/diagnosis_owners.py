"""What is wrong with who owns what, in groups that coordinate in ZooKeeper, of whatever dialect.

Strategy: every owner node is compared with the rule that all members follow. What is missing is explained by what
stands in its way: partitions without an owner whose member is blocked by nobody mean that the member gave up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from consumerd.admin.findings import FindingKind, GroupFinding, Nudge, Removal, capital, listed, process_of
from consumerd.registry import format_owner, id_path, owner_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consumerd.admin.snapshot import GroupSnapshot
    from consumerd.group import Assignment
    from consumerd.partition import TopicPartition


class _Rule(NamedTuple):
    """What the snapshot computes once: who should own what, and the words for it."""

    plan: Assignment
    words: str
    doubt: str


def owner_findings(snapshot: GroupSnapshot) -> Iterable[GroupFinding]:
    """Findings about every owner node, and about every partition without one."""
    plan = snapshot.plan()
    rule = _Rule(plan, snapshot.rule_words, snapshot.rule_doubt)
    for partition in snapshot.partitions():
        finding = _owner_finding(snapshot, rule, partition)
        if finding is not None:
            yield finding
    missing: dict[str, list[TopicPartition]] = {}
    blocked: dict[str, list[TopicPartition]] = {}
    for partition, (name, _) in plan.items():
        if snapshot.owner_stat(partition) is None:
            missing.setdefault(name, []).append(partition)
        elif snapshot.view.owners.get(partition) != plan[partition]:
            blocked.setdefault(name, []).append(partition)
    for name, partitions in missing.items():
        if not snapshot.is_persistent(name):
            yield from _missing(snapshot, rule, name, partitions, blocked.get(name, []))


def _owner_finding(snapshot: GroupSnapshot, rule: _Rule, partition: TopicPartition) -> GroupFinding | None:
    view, path = snapshot.view, owner_path(snapshot.group, partition)
    stat = snapshot.owner_stat(partition)
    if stat is None:
        return None
    subject = str(partition)
    removal = Removal(path, stat.created_zxid, safe=not stat.ephemeral_owner)
    owner = view.owners.get(partition)
    if owner is None:
        fault = view.faults[path]
        return GroupFinding(
            FindingKind.BROKEN_OWNER,
            subject,
            f"{capital(fault)}. Whoever should own the partition finds its place taken.",
            "Delete the node, if no living process stands behind it.",
            removal,
        )
    name, should = owner[0], rule.plan.get(partition)
    who = process_of(snapshot.group, name)
    if not stat.ephemeral_owner:
        return GroupFinding(
            FindingKind.STALE_OWNER,
            subject,
            f"The owner node names {format_owner(*owner)} and is persistent: it outlives every session, and no member "
            "can ever claim the partition.",
            "Delete the node; members make theirs ephemeral.",
            removal,
        )
    if name not in view.members:
        return GroupFinding(
            FindingKind.ZOMBIE_OWNER,
            subject,
            f"It is owned by {format_owner(*owner)}, which is no member any more, on the session "
            f"{stat.ephemeral_owner:#x} that still lives.",
            f"Wait for the session to expire if the process is dead (some seconds); else restart {who}: it lost its id "
            "and does not know.",
            removal,
        )
    session = view.stats[id_path(snapshot.group, name)].ephemeral_owner
    if session and session != stat.ephemeral_owner:
        return GroupFinding(
            FindingKind.FOREIGN_SESSION,
            subject,
            f"It is owned by {format_owner(*owner)} on the session {stat.ephemeral_owner:#x}, while that member stands "
            f"on the session {session:#x}: the node is a former life's, or two processes share one id.",
            f"Wait for the older session to expire; if it does not, restart {who} with an id of its own.",
            removal,
        )
    if should is None:
        return GroupFinding(
            FindingKind.MISPLACED,
            subject,
            f"It is owned by {format_owner(*owner)}, though nobody subscribes to it or no broker has it.",
            "Nudge the group, so that its members look again.",
            Nudge(),
        )
    if owner != should:
        return GroupFinding(
            FindingKind.MISPLACED,
            subject,
            f"It is owned by {format_owner(*owner)}, and {rule.words} gives it to {format_owner(*should)}: one "
            f"of the two did not see the latest change of the group, or is still rebalancing{rule.doubt}.",
            "Nudge the group, so that its members look again.",
            Nudge(),
        )
    return None


def _missing(
    snapshot: GroupSnapshot, rule: _Rule, name: str, partitions: list[TopicPartition], blocked: list[TopicPartition]
) -> Iterable[GroupFinding]:
    """What is said of a member that does not own all that it should."""
    if not blocked:
        due = sum(owner[0] == name for owner in rule.plan.values())
        yield GroupFinding(
            FindingKind.GAVE_UP,
            name,
            f"It owns {due - len(partitions)} of the {due} partitions that {rule.words} gives to it, and nobody "
            f"stands in its way for the others ({listed(partitions)}). It gave up its rebalance, as JVM members do "
            "after 8 s, or lost its owner nodes to a peer.",
            f"Nudge the group; if that does not help, restart {process_of(snapshot.group, name)}.",
            Nudge(),
        )
    for partition in partitions:
        reason = f", which waits for {listed(blocked)} to become free" if blocked else ", which gave up"
        yield GroupFinding(
            FindingKind.UNOWNED,
            str(partition),
            f"Nobody owns it. {capital(rule.words)} gives it to {format_owner(*rule.plan[partition])}{reason}.",
            "Mend what stands in the way, then nudge the group." if blocked else "Nudge the group.",
            Nudge(),
        )

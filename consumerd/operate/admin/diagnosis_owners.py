"""Faults of ownership in groups of either dialect that coordinate in ZooKeeper.

Strategy: every owner node is compared with the rule that all members follow. A missing node is explained by the node
that blocks it: partitions without an owner whose member is not blocked mean that the member gave up its rebalance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.group.assignment import Assignment
from consumerd.operate.admin.findings import (
    GroupFinding,
    GroupFindingKind,
    NudgeGroup,
    Removal,
    capital,
    listed,
    process_of,
)
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.wire.registry.paths import id_path, owner_path
from consumerd.wire.registry.values import format_owner


class _Rule(NamedTuple):
    """The expected owners, computed once for a snapshot, and the words for the rule."""

    plan: Assignment
    words: str
    doubt: str
    #: The members that follow another rule, to which `plan` does not apply.
    others: Mapping[str, str]


def owner_findings(snapshot: GroupSnapshot) -> Iterable[GroupFinding]:
    """Findings about every owner node, and about every partition without one."""
    plan = snapshot.plan()
    rule = _Rule(plan, snapshot.rule_words, snapshot.rule_doubt, snapshot.view.other_clients())
    yield from _mixed(snapshot, rule)
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
        if name in rule.others:
            yield from map(_unowned_by_others, partitions)
        elif not snapshot.is_persistent(name):
            yield from _missing(snapshot, rule, name, partitions, blocked.get(name, []))


def _owner_finding(snapshot: GroupSnapshot, rule: _Rule, partition: TopicPartition) -> GroupFinding | None:
    view, path = snapshot.view, owner_path(snapshot.group, partition)
    stat = snapshot.owner_stat(partition)
    if stat is None or partition in view.claims:
        return None
    subject = str(partition)
    removal = Removal(path, stat.created_zxid, safe=not stat.ephemeral_owner)
    owner = view.owners.get(partition)
    if owner is None:
        fault = view.faults[path]
        return GroupFinding(
            GroupFindingKind.BROKEN_OWNER,
            subject,
            f"{capital(fault)}. The member that should own the partition cannot claim it.",
            "Delete the node if no running process belongs to it.",
            removal,
        )
    name, should = owner[0], rule.plan.get(partition)
    who = process_of(snapshot.group, name)
    if not stat.ephemeral_owner:
        return GroupFinding(
            GroupFindingKind.STALE_OWNER,
            subject,
            f"The owner node names {format_owner(*owner)} and is persistent: it outlives every session, and no member "
            "can ever claim the partition.",
            "Delete the node; members create ephemeral ones.",
            removal,
        )
    if name not in view.members:
        return GroupFinding(
            GroupFindingKind.ZOMBIE_OWNER,
            subject,
            f"Its owner {format_owner(*owner)} is not a live member, but its session {stat.ephemeral_owner:#x} has not "
            "expired.",
            f"If the process is dead, wait some seconds for the session to expire; otherwise restart {who}, which lost "
            "its id without noticing.",
            removal,
        )
    session = view.stats[id_path(snapshot.group, name)].ephemeral_owner
    if session and session != stat.ephemeral_owner:
        return GroupFinding(
            GroupFindingKind.FOREIGN_SESSION,
            subject,
            f"Its owner {format_owner(*owner)} has session {session:#x}, but the owner node belongs to session "
            f"{stat.ephemeral_owner:#x}: an earlier session created it, or two processes share one id.",
            f"Wait for the older session to expire; if it does not, restart {who} with an id of its own.",
            removal,
        )
    if should is None:
        return GroupFinding(
            GroupFindingKind.MISPLACED,
            subject,
            f"Its owner is {format_owner(*owner)}, but no member subscribes to it, or no broker has it.",
            "Nudge the group to make its members rebalance.",
            NudgeGroup(),
        )
    if owner != should and should[0] not in rule.others:
        return GroupFinding(
            GroupFindingKind.MISPLACED,
            subject,
            f"Its owner is {format_owner(*owner)}; {rule.words} assigns it to {format_owner(*should)}. One of the two "
            f"missed the latest change of the group, or is still rebalancing{rule.doubt}.",
            "Nudge the group to make its members rebalance.",
            NudgeGroup(),
        )
    return None


def _mixed(snapshot: GroupSnapshot, rule: _Rule) -> Iterable[GroupFinding]:
    """The finding that members of the dialect's own rule share the group with others."""
    ours = [name for name in snapshot.view.members if name not in rule.others]
    if rule.others and ours:
        taken = [
            partition
            for partition, claim in snapshot.view.claims.items()
            if partition in rule.plan and rule.plan[partition][0] != claim.consumer_id
        ]
        yield GroupFinding(
            GroupFindingKind.MIXED_RULES,
            snapshot.group,
            f"{listed(list(rule.others))} and {listed(ours)} assign partitions by different rules, so each waits for "
            f"partitions that the other owns. {len(taken)} partitions are not owned by the member to which "
            f"{rule.words} assigns them{f' ({listed(taken)})' if taken else ''}.",
            f"Stop {listed(ours)}, or give them a group of their own. Delete nothing: the owners are alive.",
        )


def _unowned_by_others(partition: TopicPartition) -> GroupFinding:
    return GroupFinding(
        GroupFindingKind.UNOWNED,
        str(partition),
        "It has no owner. Clients with another assignment rule are in the group, so its expected owner is not known.",
        "Check the logs of these clients.",
    )


def _missing(
    snapshot: GroupSnapshot, rule: _Rule, name: str, partitions: list[TopicPartition], blocked: list[TopicPartition]
) -> Iterable[GroupFinding]:
    """The findings about a member that does not own all that it should."""
    if not blocked:
        due = sum(owner[0] == name for owner in rule.plan.values())
        yield GroupFinding(
            GroupFindingKind.GAVE_UP,
            name,
            f"It owns {due - len(partitions)} of the {due} partitions that {rule.words} assigns to it, and no other "
            f"owner blocks the rest ({listed(partitions)}). It gave up its rebalance, as JVM members do after 8 s, or "
            "a peer deleted its owner nodes.",
            f"Nudge the group; if that does not help, restart {process_of(snapshot.group, name)}.",
            NudgeGroup(),
        )
    for partition in partitions:
        reason = f", which waits for {listed(blocked)}" if blocked else ", which gave up its rebalance"
        yield GroupFinding(
            GroupFindingKind.UNOWNED,
            str(partition),
            f"It has no owner. {capital(rule.words)} assigns it to {format_owner(*rule.plan[partition])}{reason}.",
            ("Fix what blocks the member, then nudge the group. " if blocked else "Nudge the group. ")
            + "A member of consumerd logs why it does not claim a partition (partition_not_claimed, claim_blocked).",
            NudgeGroup(),
        )

"""What is wrong with a group, why, and what to do about it: pure functions of surveys.

Strategy: first the members' own nodes, then who owns what, compared with the rule that all members follow; committed
offsets have a module of their own. What is missing is explained by what stands in its way: partitions without an owner
whose member is blocked by nobody mean that the member gave up. Facts behind it: golden notes, 4 and 5, and what was
measured beside JVM members (notes on mixed groups): they look for the last time 6 s after the trigger and give up at 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.admin.diagnosis_offsets import offset_findings
from consumerd.admin.findings import PASSING, Finding, Kind, Nudge, Removal, listed, process_of
from consumerd.registry import (
    Dialect,
    RegistryError,
    format_owner,
    id_path,
    ids_path,
    owner_path,
    owners_root,
    subscription_dialect,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from consumerd.admin.logs import LogRange, NoAnswer
    from consumerd.admin.survey import Survey
    from consumerd.group import Assignment
    from consumerd.partition import TopicPartition


def diagnose(survey: Survey, ranges: Mapping[TopicPartition, LogRange | NoAnswer]) -> list[Finding]:
    """All findings of one look. Those of `PASSING` kinds may be a rebalance that is under way: see `lasting`."""
    return [
        *_member_findings(survey),
        *_owner_findings(survey),
        *offset_findings(survey, ranges),
        *_foreign_findings(survey),
    ]


def lasting(first: Iterable[Finding], second: Iterable[Finding]) -> list[Finding]:
    """The findings of the second look without those that may just be passing."""
    before = {(finding.kind, finding.subject) for finding in first}
    return [finding for finding in second if finding.kind not in PASSING or (finding.kind, finding.subject) in before]


# -- members


def _member_findings(survey: Survey) -> Iterable[Finding]:
    view = survey.view
    if not view.members:
        yield Finding(
            Kind.NO_MEMBERS,
            survey.group,
            "The group has no members now, so nobody owns or should own anything.",
            "Start a member; or, if the group is dead, `consumerd group delete`.",
        )
    for name, member in view.members.items():
        stat = view.stats[id_path(survey.group, name)]
        persistent = not stat.ephemeral_owner
        removal = Removal(id_path(survey.group, name), stat.created_zxid, safe=persistent)
        if member.subscription is None:
            yield _broken_id(survey, name, member.text, removal)
        elif persistent:
            held = [partition for partition, owner in survey.plan().items() if owner[0] == name]
            yield Finding(
                Kind.STALE_ID,
                name,
                "Its id node is persistent, so it does not end with a session: it was made by hand or by a foreign "
                f"client, and the rule gives {len(held)} partitions to it ({listed(held)}), whether it lives or not.",
                "Delete the node, if no living process stands behind it.",
                removal,
            )


def _broken_id(survey: Survey, name: str, text: str, removal: Removal) -> Finding:
    fault = survey.view.faults[removal.path]
    try:
        foreign = subscription_dialect(text) is Dialect.V08
    except RegistryError:
        foreign = False
    who = process_of(survey.group, name)
    if foreign:
        return Finding(
            Kind.MIXED_DIALECTS,
            name,
            f"{_capital(who)} registered in the JSON of Kafka 0.8 or later; members of 0.7 cannot read it, and the two "
            "do not even agree on the names of partitions.",
            "Stop it and give it a group of its own; the two generations never share one.",
            removal,
        )
    return Finding(
        Kind.BROKEN_ID,
        name,
        f"{_capital(fault)}. Members on the JVM read all ids in every rebalance and fail over this one, so none of "
        "them gets anything while it stands.",
        f"Stop or mend {who}; without a living process behind it, delete the node.",
        removal,
    )


# -- owners


def _owner_findings(survey: Survey) -> Iterable[Finding]:
    plan = survey.plan()
    for partition in survey.partitions():
        finding = _owner_finding(survey, plan, partition)
        if finding is not None:
            yield finding
    missing: dict[str, list[TopicPartition]] = {}
    blocked: dict[str, list[TopicPartition]] = {}
    for partition, (name, _) in plan.items():
        if survey.owner_stat(partition) is None:
            missing.setdefault(name, []).append(partition)
        elif survey.view.owners.get(partition) != plan[partition]:
            blocked.setdefault(name, []).append(partition)
    for name, partitions in missing.items():
        if not survey.is_persistent(name):
            yield from _missing(survey, plan, name, partitions, blocked.get(name, []))


def _owner_finding(survey: Survey, plan: Assignment, partition: TopicPartition) -> Finding | None:
    view, path = survey.view, owner_path(survey.group, partition)
    stat = survey.owner_stat(partition)
    if stat is None:
        return None
    subject = str(partition)
    removal = Removal(path, stat.created_zxid, safe=not stat.ephemeral_owner)
    owner = view.owners.get(partition)
    if owner is None:
        fault = view.faults[path]
        return Finding(
            Kind.BROKEN_OWNER,
            subject,
            f"{_capital(fault)}. Whoever should own the partition finds its place taken.",
            "Delete the node, if no living process stands behind it.",
            removal,
        )
    name, should = owner[0], plan.get(partition)
    who = process_of(survey.group, name)
    if not stat.ephemeral_owner:
        return Finding(
            Kind.STALE_OWNER,
            subject,
            f"The owner node names {format_owner(*owner)} and is persistent: it outlives every session, and no member "
            "can ever claim the partition.",
            "Delete the node; members make theirs ephemeral.",
            removal,
        )
    if name not in view.members:
        return Finding(
            Kind.ZOMBIE_OWNER,
            subject,
            f"It is owned by {format_owner(*owner)}, which is no member any more, on the session "
            f"{stat.ephemeral_owner:#x} that still lives.",
            f"Wait for the session to expire if the process is dead (some seconds); else restart {who}: it lost its id "
            "and does not know.",
            removal,
        )
    session = view.stats[id_path(survey.group, name)].ephemeral_owner
    if session and session != stat.ephemeral_owner:
        return Finding(
            Kind.FOREIGN_SESSION,
            subject,
            f"It is owned by {format_owner(*owner)} on the session {stat.ephemeral_owner:#x}, while that member stands "
            f"on the session {session:#x}: the node is a former life's, or two processes share one id.",
            f"Wait for the older session to expire; if it does not, restart {who} with an id of its own.",
            removal,
        )
    if should is None:
        return Finding(
            Kind.MISPLACED,
            subject,
            f"It is owned by {format_owner(*owner)}, though nobody subscribes to it or no broker has it.",
            "Nudge the group, so that its members look again.",
            Nudge(),
        )
    if owner != should:
        return Finding(
            Kind.MISPLACED,
            subject,
            f"It is owned by {format_owner(*owner)}, and the rule gives it to {format_owner(*should)}: one of the two "
            "did not see the latest change of the group, or is still rebalancing.",
            "Nudge the group, so that its members look again.",
            Nudge(),
        )
    return None


def _missing(
    survey: Survey, plan: Assignment, name: str, partitions: list[TopicPartition], blocked: list[TopicPartition]
) -> Iterable[Finding]:
    """What is said of a member that does not own all that it should."""
    if not blocked:
        due = sum(owner[0] == name for owner in plan.values())
        yield Finding(
            Kind.GAVE_UP,
            name,
            f"It owns {due - len(partitions)} of the {due} partitions that the rule gives to it, and nobody stands in "
            f"its way for the others ({listed(partitions)}). It gave up its rebalance, as JVM members do after 8 s, or "
            "lost its owner nodes to a peer.",
            f"Nudge the group; if that does not help, restart {process_of(survey.group, name)}.",
            Nudge(),
        )
    for partition in partitions:
        reason = f", which waits for {listed(blocked)} to become free" if blocked else ", which gave up"
        yield Finding(
            Kind.UNOWNED,
            str(partition),
            f"Nobody owns it. The rule gives it to {format_owner(*plan[partition])}{reason}.",
            "Mend what stands in the way, then nudge the group." if blocked else "Nudge the group.",
            Nudge(),
        )


# -- the rest


def _foreign_findings(survey: Survey) -> Iterable[Finding]:
    """Names that 0.7 knows nothing of; those of members and of values are dealt with above."""
    group, view = survey.group, survey.view
    for path, fault in view.faults.items():
        if path in view.stats or path.startswith(f"{ids_path(group)}/"):
            continue
        above, _, name = path.rpartition("/")
        kind, dialect = Kind.FOREIGN_NODE, ""
        if name.isdigit():
            kind, dialect = Kind.MIXED_DIALECTS, " Kafka 0.8 and later name partitions like this."
        what = "owner" if above.startswith(owners_root(group)) else "offset"
        yield Finding(
            kind,
            path,
            f"This {what} node is not of Kafka 0.7: {fault}.{dialect}",
            "Find out who writes it; members of 0.7 do not see it.",
            Removal(path, None, safe=False),
        )
    for path in survey.foreign:
        yield Finding(
            Kind.FOREIGN_NODE,
            path,
            "Kafka 0.7 keeps nothing here.",
            "Find out who writes it; members of 0.7 do not see it.",
            Removal(path, None, safe=False),
        )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

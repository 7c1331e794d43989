"""Diagnosis of members: their id nodes, and nodes that no member reads, in groups in ZooKeeper.

Strategy: one set of rules for both dialects; a node that is foreign to one belongs to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.operate.admin.findings import GroupFinding, GroupFindingKind, Removal, capital, listed, process_of
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.errors import DialectError, RegistryError
from consumerd.wire.registry.paths import id_path, ids_path, owners_root
from consumerd.wire.registry.subscription import parse_subscription
from consumerd.wire.registry.v08.subscription import parse_subscription_v08


class _Words(NamedTuple):
    """The words of sentences for a dialect: its Kafka, its members, and how the other's members register."""

    kafka: str
    members: str
    foreign_ids: str
    foreign_names: str


_WORDS: Final[Mapping[Dialect, _Words]] = {
    Dialect.V07: _Words("0.7", "members of 0.7", "in the JSON of Kafka 0.8 or later", "0.8 and later name"),
    Dialect.V08: _Words("0.8 or later", "members of 0.8 and later", "in the dialect of Kafka 0.7", "0.7 names"),
}


def member_findings(snapshot: GroupSnapshot) -> Iterable[GroupFinding]:
    """Findings about every id node."""
    view, plan = snapshot.view, None
    if not view.members:
        yield GroupFinding(
            GroupFindingKind.NO_MEMBERS,
            snapshot.group,
            "The group has no members, so no partition has or needs an owner.",
            "Start a member; if the group is dead, delete it with `consumerd group delete`.",
        )
    others = view.other_clients()
    for name, member in view.members.items():
        stat = view.stats[id_path(snapshot.group, name)]
        persistent = not stat.ephemeral_owner
        removal = Removal(id_path(snapshot.group, name), stat.created_zxid, safe=persistent)
        if name in others and not persistent:
            yield _other_rule(snapshot, name, others[name])
        elif member.subscription is None:
            yield _broken_id(snapshot, name, member.text, removal)
        elif persistent:
            plan = snapshot.plan() if plan is None else plan
            held = [partition for partition, owner in plan.items() if owner[0] == name]
            yield GroupFinding(
                GroupFindingKind.STALE_ID,
                name,
                "Its id node is persistent, so it outlives its session: it was created by hand or by a foreign client. "
                f"The rule assigns {len(held)} partitions to it ({listed(held)}), whether its process runs or not.",
                "Delete the node if no running process belongs to it.",
                removal,
            )


def _other_rule(snapshot: GroupSnapshot, name: str, client: str) -> GroupFinding:
    view = snapshot.view
    owned = [partition for partition, claim in view.claims.items() if claim.consumer_id == name]
    fault = view.faults.get(id_path(snapshot.group, name))
    unread = "" if fault is None else " JVM members cannot read its id node and fail every rebalance while it exists."
    return GroupFinding(
        GroupFindingKind.OTHER_RULE,
        name,
        f"It is a client with another assignment rule{f' ({client})' if client else ''}, and owns {len(owned)} "
        f"partitions{f' ({listed(owned)})' if owned else ''}: its owner nodes have its id without a stream.{unread}",
        "Nothing is to be deleted. Start no JVM member and no consumerd in its group.",
    )


def _broken_id(snapshot: GroupSnapshot, name: str, text: str, removal: Removal) -> GroupFinding:
    fault = snapshot.view.faults[removal.path]
    who = process_of(snapshot.group, name)
    words = _WORDS[snapshot.dialect]
    if _is_foreign(snapshot.dialect, text):
        return GroupFinding(
            GroupFindingKind.MIXED_DIALECTS,
            name,
            f"{capital(who)} registered {words.foreign_ids}; {words.members} cannot read it, and the two "
            "dialects name partitions differently.",
            "Stop it and give it a group of its own: members of 0.7 and of 0.8 or later cannot share one.",
            removal,
        )
    return GroupFinding(
        GroupFindingKind.BROKEN_ID,
        name,
        f"{capital(fault)}. JVM members read all ids in every rebalance and fail on this one, so none of them "
        "gets a partition while it exists.",
        f"Stop or fix {who}; if no running process belongs to the node, delete it.",
        removal,
    )


def _is_foreign(dialect: Dialect, text: str) -> bool:
    """Whether the text of an id is in the other dialect."""
    parse = parse_subscription if dialect is Dialect.V07 else parse_subscription_v08
    try:
        parse(text)
    except DialectError:
        return True
    except RegistryError:
        return False
    return False


def foreign_findings(snapshot: GroupSnapshot) -> Iterable[GroupFinding]:
    """Findings about nodes with names that are not of the dialect; others are checked elsewhere."""
    group, view = snapshot.group, snapshot.view
    words = _WORDS[snapshot.dialect]
    for path, fault in view.faults.items():
        if path in view.stats or path.startswith(f"{ids_path(group)}/"):
            continue
        above, _, name = path.rpartition("/")
        kind, dialect = GroupFindingKind.FOREIGN_NODE, ""
        if _is_foreign_name(snapshot.dialect, name):
            kind, dialect = GroupFindingKind.MIXED_DIALECTS, f" Kafka {words.foreign_names} partitions this way."
        what = "owner" if above.startswith(owners_root(group)) else "offset"
        yield GroupFinding(
            kind,
            path,
            f"This {what} node is not of Kafka {words.kafka}: {fault}.{dialect}",
            f"Find out who writes it; {words.members} do not see it.",
            Removal(path, None, safe=False),
        )
    for path in snapshot.foreign:
        yield GroupFinding(
            GroupFindingKind.FOREIGN_NODE,
            path,
            f"Kafka {words.kafka} keeps nothing here.",
            f"Find out who writes it; {words.members} do not see it.",
            Removal(path, None, safe=False),
        )


def _is_foreign_name(dialect: Dialect, name: str) -> bool:
    """Whether a partition of the other dialect may be called by this name."""
    if dialect is Dialect.V07:
        return name.isdigit()
    try:
        TopicPartition.parse("", name)
    except ValueError:
        return False
    return True

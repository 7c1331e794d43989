"""Verification of ownership against the group's assignment rule: what VerifyConsumerRebalance checks, and more.

Strategy: a pure comparison of a snapshot with the plan, one sentence per partition or member that differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.group.assignment import Stream
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.wire.registry.paths import id_path, owner_path
from consumerd.wire.registry.values import format_owner

#: Seconds between two snapshots while a group is waited for.
_PAUSE = 0.25


class GroupDifference(NamedTuple):
    """A difference from the expected ownership. `subject` is `topic/broker-partition`, or a consumer id."""

    subject: str
    says: str


async def verify_group(take_snapshot: Callable[[], Awaitable[GroupSnapshot]], wait: float) -> list[GroupDifference]:
    """The differences in the last snapshot; takes more of them for up to `wait` seconds while there are any.

    Raises NotFoundError for a group without members.
    """
    deadline = asyncio.get_running_loop().time() + wait
    while True:
        snapshot = await take_snapshot()
        if not snapshot.view.members:
            raise NotFoundError(f"group {snapshot.group!r} has no members now, so there is nothing to verify")
        found = differences(snapshot)
        if not found or asyncio.get_running_loop().time() >= deadline:
            return found
        await asyncio.sleep(min(_PAUSE, wait))


def differences(snapshot: GroupSnapshot) -> list[GroupDifference]:
    """All differences: members that cannot be understood, then partitions in order. Empty: the group is balanced.

    Every partition of a subscribed topic must have exactly one owner, on the session of a live member, and the one that
    the rule names; nothing else may be owned.
    """
    view = snapshot.view
    found = [
        GroupDifference(name, f"{view.faults[id_path(snapshot.group, name)]}, so JVM members fail every rebalance")
        for name, member in view.members.items()
        if member.subscription is None
    ]
    found += [
        GroupDifference(name, "its id node is persistent, so it outlives the member")
        for name in view.members
        if snapshot.is_persistent(name)
    ]
    plan, others = snapshot.plan(), view.other_clients()
    for partition in snapshot.partitions():
        says = _difference(snapshot, partition, plan.get(partition), others)
        if says is not None:
            found.append(GroupDifference(str(partition), says))
    return found


def _difference(
    snapshot: GroupSnapshot, partition: TopicPartition, planned: Stream | None, others: Collection[str]
) -> str | None:
    view = snapshot.view
    stat = snapshot.owner_stat(partition)
    claim = view.claims.get(partition)
    if claim is not None:
        if planned is None or planned[0] in others:
            return None
        return f"owner {claim.text} follows another assignment rule; expected owner {format_owner(*planned)}"
    if planned is not None and planned[0] in others:
        planned = None
        if stat is None:
            return "has no owner; the clients of the group follow another assignment rule"
    expected = "expected no owner" if planned is None else f"expected owner {format_owner(*planned)}"
    if stat is None:
        return None if planned is None else f"has no owner; {expected}"
    owner = view.owners.get(partition)
    if owner is None:
        return view.faults[owner_path(snapshot.group, partition)]
    name, named = owner[0], format_owner(*owner)
    if name not in view.members:
        return f"owner {named} is not a live member; {expected}"
    if owner != planned:
        return f"owner is {named}; {expected}"
    if stat.ephemeral_owner != view.stats[id_path(snapshot.group, name)].ephemeral_owner:
        return f"owner {named} belongs to another session than that member"
    return None

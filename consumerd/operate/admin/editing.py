"""Writing changed offsets, so that a live group is not overwritten by accident.

Strategy: the partitions must have no owner. That is checked before, and ensured by ZooKeeper at the very moment of the
change: the multi that writes creates the owner node first and deletes it last, which fails as a whole if a member has
claimed the partition meanwhile. Each offset node is written only in the version that was read, so a commit in
between is not lost silently either. Force leaves both out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Create, Delete, SetData, ZooKeeper
from consumerd.net.zk.errors import MultiFailed
from consumerd.operate.admin.changes import OffsetChange
from consumerd.operate.admin.errors import ChangedMeanwhileError
from consumerd.operate.admin.offset_file import GroupOffsets
from consumerd.operate.admin.writing import write_together
from consumerd.wire.registry.paths import offset_path, offsets_path, owner_path, owners_path
from consumerd.wire.registry.values import format_offset

if TYPE_CHECKING:
    from consumerd.operate.admin.snapshot import GroupSnapshot

#: Up to three operations each.
CHANGES_PER_MULTI = 100


def in_the_way(snapshot: GroupSnapshot, partitions: Iterable[TopicPartition]) -> list[str]:
    """Members that would overwrite the changes, or have read the old offsets; one sentence each."""
    wanted = set(partitions)
    topics = {partition.topic for partition in wanted}
    reasons = []
    for name, member in snapshot.view.members.items():
        if member.subscription is None:
            reasons.append(f"member {name} is alive, and its subscription cannot be read")
        elif any(member.subscription.streams_for(topic) for topic in topics):
            reasons.append(f"member {name} is alive and subscribes")
    return reasons + [
        f"{partition} is owned by {snapshot.owner_name(partition) or 'an unknown owner'}"
        for partition in sorted(wanted, key=lambda partition: (partition.topic, partition.name))
        if snapshot.owner_stat(partition) is not None
    ]


def backup_of(changes: Iterable[OffsetChange]) -> GroupOffsets:
    """The former offsets, in a form that restores them."""
    before: GroupOffsets = {}
    for change in changes:
        before.setdefault(change.group, {})[change.partition] = change.before
    return before


async def write_changes(zk: ZooKeeper, changes: Sequence[OffsetChange], *, force: bool) -> int:
    """Write the changes that change an offset; returns how many nodes were written.

    Raises ChangedMeanwhileError when a partition was claimed, or its offset committed, since the snapshot; offsets
    written before that stay, and the sentence has their number.
    """
    moving = [change for change in changes if change.moves]
    for group, topic in sorted({_topic(change) for change in moving if change.after is not None}):
        await zk.ensure(offsets_path(group, topic))
    fenced = set()
    for group, topic in {_topic(change) for change in moving}:
        if not force and await zk.exists(owners_path(group, topic)) is not None:  # without it no partition has an owner
            fenced.add((group, topic))
    for start in range(0, len(moving), CHANGES_PER_MULTI):
        some = moving[start : start + CHANGES_PER_MULTI]
        operations: list[Create | Delete | SetData] = []
        cause: list[OffsetChange] = []
        for change in some:
            step = _operations(change, fenced=_topic(change) in fenced, force=force)
            operations += step
            cause += [change] * len(step)
        try:
            await write_together(zk, operations)
        except MultiFailed as failure:
            change = cause[failure.index]
            raise ChangedMeanwhileError(
                f"{change.partition} of group {change.group} was claimed or committed meanwhile ({failure.cause}); "
                f"{start} of {len(moving)} offsets were written before that: run the command again"
            ) from failure
    return len(moving)


def _topic(change: OffsetChange) -> tuple[str, str]:
    return change.group, change.partition.topic


def _operations(change: OffsetChange, *, fenced: bool, force: bool) -> list[Create | Delete | SetData]:
    path = offset_path(change.group, change.partition)
    version = -1 if force or change.version is None else change.version
    write: Create | Delete | SetData
    if change.after is None:
        write = Delete(path, version)
    elif change.version is None:
        write = Create(path, format_offset(change.after).encode())
    else:
        write = SetData(path, format_offset(change.after).encode(), version)
    if not fenced:
        return [write]
    owner = owner_path(change.group, change.partition)
    return [Create(owner, b"", ephemeral=True), write, Delete(owner)]

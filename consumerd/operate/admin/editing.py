"""Writing changed offsets, so that a live group is not overwritten by accident.

Strategy: the partitions must have no owner. That is checked before, and ensured by ZooKeeper at the very moment of the
change: the multi that writes creates the owner node first and deletes it last, which fails as a whole if a member has
claimed the partition meanwhile. Each offset node is written only in the version that was read, so a commit in
between is not lost silently either. Force leaves both out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from consumerd.base.errors import ZooKeeperError
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Create, Delete, SetData, ZooKeeper
from consumerd.net.cluster.reading import node
from consumerd.net.zk.errors import ConnectionLost, MultiFailed, NodeError
from consumerd.operate.admin.changes import OffsetChange
from consumerd.operate.admin.errors import ChangedMeanwhileError, IncompleteWriteError
from consumerd.operate.admin.offset_file import GroupOffsets
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.wire.registry.paths import offset_path, offsets_path, owner_path, owners_path
from consumerd.wire.registry.values import format_offset

# Several writes at once, all or nothing; on ZooKeeper servers without multi (before 3.4), one after the other.
#
# Strategy: the order of the operations is such that stopping at the first that fails does no harm: guards come
# first, the operations that they guard after them. Temporary nodes are deleted again. Where the answer is lost, nothing
# is repeated: the nodes show whether the operations were carried out.


async def write_together(zk: ZooKeeper, operations: Sequence[Create | Delete | SetData]) -> None:
    """Carry out the operations. Raises MultiFailed with the first one that fails, and the errors of the session."""
    if zk.has_multi:
        try:
            await zk.multi(operations)
        except ConnectionLost:
            if not await _is_done(zk, operations):
                raise
        return
    passing = {operation.path for operation in operations if isinstance(operation, Create)} & {
        operation.path for operation in operations if isinstance(operation, Delete)
    }
    for index, operation in enumerate(operations):
        try:
            await _write(zk, operation)
        except ZooKeeperError as error:
            if isinstance(error, ConnectionLost) and await _is_done(zk, [operation]):
                continue
            for made in operations[:index]:
                if isinstance(made, Create) and made.path in passing:
                    await zk.delete_owned(made.path)  # another session may own it by now
            if not isinstance(error, NodeError):
                raise
            raise MultiFailed(index, error) from error


async def _is_done(zk: ZooKeeper, operations: Sequence[Create | Delete | SetData]) -> bool:
    """Whether each node is as the last operation on it leaves it."""
    for path, operation in {operation.path: operation for operation in operations}.items():
        found = await node(zk, path)
        if isinstance(operation, Delete):
            done = found is None
        else:
            owner = zk.session_id if isinstance(operation, Create) and operation.ephemeral else 0
            done = found is not None and (found[0], found[1].ephemeral_owner) == (operation.data or b"", owner)
        if not done:
            return False
    return True


async def _write(zk: ZooKeeper, operation: Create | Delete | SetData) -> None:
    match operation:
        case Create(path, data, ephemeral):
            await zk.create(path, data, ephemeral=ephemeral)
        case SetData(path, data, version):
            await zk.set(path, data, version=version)
        case Delete(path, version):
            await zk.delete(path, version=version)


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

    Raises ChangedMeanwhileError when a partition was claimed, or its offset committed, since the snapshot, and
    IncompleteWriteError when the session fails; offsets written before that stay, and the sentence has their number.
    """
    moving = [change for change in changes if change.moves]
    for group, topic in sorted({_topic(change) for change in moving if change.after is not None}):
        await zk.ensure(offsets_path(group, topic))
        if not force:  # else the first member that ever starts could claim a partition unseen
            await zk.ensure(owners_path(group, topic))
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
            done = start if zk.has_multi else start + some.index(change)
            raise ChangedMeanwhileError(
                f"{change.partition} of group {change.group} was claimed or committed meanwhile ({failure.cause}); "
                f"{done} of {len(moving)} offsets were written before that: run the command again"
            ) from failure
        except ZooKeeperError as error:
            raise IncompleteWriteError(
                f"{error}; {start} of {len(moving)} offsets were written before that, and perhaps some of the next "
                f"{len(some)}: run the command again"
            ) from error
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

"""Deleting a whole dead group.

Strategy: everything below the group's node is read first: that is the backup, and the list of the nodes to delete. The
parent of the members goes first, in one multi with everything else as far as it fits: ZooKeeper refuses to delete it
while a member is registered, so a member that joins meanwhile keeps its offsets.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from consumerd.base.calls import read_all
from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Delete, NodeStat, ZooKeeper
from consumerd.net.cluster.reading import children, node
from consumerd.net.zk.errors import MultiFailed
from consumerd.operate.admin.editing import write_together
from consumerd.operate.admin.errors import ChangedMeanwhileError, RefusedError
from consumerd.wire.registry.paths import group_path, ids_path

#: ZooKeeper takes requests of up to 1 MB; a path of a partition takes about a hundred bytes.
NODES_PER_MULTI = 2000


class GroupRemains(NamedTuple):
    """What a dead group left: committed offsets, and the nodes in ZooKeeper, none where brokers keep the offsets."""

    group: str
    offsets: Mapping[TopicPartition, int]
    nodes: Sequence[StoredNode] = ()

    @property
    def names(self) -> list[str]:
        """The paths of the nodes, or the partitions of the offsets."""
        return [node.path for node in self.nodes] or [str(partition) for partition in sorted(self.offsets)]


class StoredNode(NamedTuple):
    """One node of a group, as it was read."""

    path: str
    data: bytes
    stat: NodeStat


async def read_tree(zk: ZooKeeper, group: str) -> list[StoredNode]:
    """All nodes of a group, each before its children. Raises NotFoundError for a group that never was."""
    found: list[StoredNode] = []
    level = [group_path(group)]
    while level:
        nodes = await read_all(level, lambda path: node(zk, path))
        stored = [StoredNode(path, *read) for path, read in nodes.items() if read is not None]
        found += stored
        parents = [each.path for each in stored if each.stat.children_count]
        below = await read_all(parents, lambda path: children(zk, path))
        level = [f"{path}/{name}" for path, names in below.items() for name in names]
    if not found:
        raise NotFoundError(f"there is no group {group!r} in ZooKeeper; see `consumerd group list`")
    return found


def require_dead(group: str, tree: Sequence[StoredNode]) -> None:
    """Raise RefusedError if the group has members, or a node of it belongs to a live session."""
    alive = [each.path for each in tree if each.stat.ephemeral_owner or each.path.startswith(f"{ids_path(group)}/")]
    if alive:
        raise RefusedError(
            f"group {group!r} is alive: it has {alive[0]} and {len(alive) - 1} more nodes of members; stop the "
            "members, or see `consumerd group doctor` for nodes that dead members left"
        )


def as_backup(tree: Sequence[StoredNode]) -> list[dict[str, str]]:
    """The nodes that hold data, for a file."""
    return [{"path": each.path, "data_base64": b64encode(each.data).decode()} for each in tree if each.data]


async def delete_tree(zk: ZooKeeper, group: str, tree: Sequence[StoredNode]) -> int:
    """Delete what `read_tree` found; returns how many nodes that were.

    Raises ChangedMeanwhileError when a member joined or wrote meanwhile; nothing is deleted if that was found in time.
    """
    ids = ids_path(group)
    first = [each for each in tree if each.path == ids]
    rest = [each for each in reversed(tree) if each.path != ids]
    order = [*first, *rest]
    for start in range(0, len(order), NODES_PER_MULTI):
        some = order[start : start + NODES_PER_MULTI]
        try:
            await write_together(zk, [Delete(each.path, each.stat.version) for each in some])
        except MultiFailed as failure:
            raise ChangedMeanwhileError(
                f"group {group!r} changed during the deletion ({failure.cause}); {start} of {len(order)} "
                "nodes were deleted before that: run the command again"
            ) from failure
    return len(order)

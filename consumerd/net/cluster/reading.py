"""Reading the nodes of a tree that changes meanwhile.

Strategy: a node that vanished between the listing and the read is not an error: it is None, and callers leave it out.
Many are read with `consumerd.base.calls.read_all`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog

from consumerd.base.ports import NodeStat, ZooKeeper
from consumerd.net.zk.errors import NoNode
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.values import parse_broker_id

log = structlog.get_logger(__name__)

#: The names of the children of a path, with a watch or without.
Listing = Callable[[ZooKeeper, str], Awaitable[list[str]]]


class ZNode(NamedTuple):
    """A node's data (b"" for null data) and its stat."""

    data: bytes
    stat: NodeStat


async def children(zk: ZooKeeper, path: str) -> list[str]:
    """Read the sorted names below `path`; none if it does not exist."""
    try:
        return await zk.children(path)
    except NoNode:
        return []


async def watched_children(zk: ZooKeeper, path: str) -> list[str]:
    """Like `children`, with a watch armed in any case: on the list, or on the creation of the missing node."""
    while True:
        try:
            return await zk.children(path, watch=True)
        except NoNode:
            if await zk.exists(path, watch=True) is None:
                return []


async def node(zk: ZooKeeper, path: str, *, watch: bool = False) -> ZNode | None:
    """Read a node; None when it does not exist (any more)."""
    try:
        value, stat = await zk.get(path, watch=watch)
    except NoNode:
        return None
    return ZNode(value or b"", stat)


async def data(zk: ZooKeeper, path: str, *, watch: bool = False) -> bytes | None:
    """Read a node's data; None when it does not exist (any more)."""
    found = await node(zk, path, watch=watch)
    return None if found is None else found.data


async def read_broker_ids(zk: ZooKeeper, path: str, listing: Listing = children) -> list[int]:
    """Read the children that are broker ids, in numeric order; others are logged."""
    ids = []
    for name in await listing(zk, path):
        try:
            ids.append(parse_broker_id(name))
        except RegistryError:
            log.warning("foreign_node", path=f"{path}/{name}")
    return sorted(ids)

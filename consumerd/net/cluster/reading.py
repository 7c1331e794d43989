"""Reading many nodes at once, of a tree that changes meanwhile.

Strategy: a fixed number of workers share one iterator, so that ten thousand topics neither become ten thousand tasks
nor flood the one connection. A node that vanished between the listing and the read is not an error: it is None,
and callers leave it out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import structlog

from consumerd.base.ports import NodeStat, ZooKeeper
from consumerd.net.zk.errors import NoNode
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.values import parse_broker_id

log = structlog.get_logger(__name__)

_A = TypeVar("_A")
_T = TypeVar("_T")
#: The names of the children of a path, with a watch or without.
Listing = Callable[[ZooKeeper, str], Awaitable[list[str]]]

#: Reads in flight. More would be faster only with servers far away, and would delay other requests to the server.
READS_AT_ONCE = 48


class ZNode(NamedTuple):
    """A node's data (b"" for null data) and its stat."""

    data: bytes
    stat: NodeStat


async def read_all(
    items: Iterable[_A], read: Callable[[_A], Awaitable[_T]], *, at_once: int = READS_AT_ONCE
) -> dict[_A, _T]:
    """Call `read` for every item, `at_once` at a time; the result has the items' order.

    After the first error no further read is begun, and it is raised as itself when those under way have ended.
    """
    wanted = list(items)
    rest = iter(wanted)
    found: dict[_A, _T] = {}
    failures: list[Exception] = []
    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_once, len(wanted))):
            group.create_task(_work(rest, read, found, failures))
    if failures:
        raise failures[0]
    return {item: found[item] for item in wanted}


async def _work(
    rest: Iterator[_A], read: Callable[[_A], Awaitable[_T]], found: dict[_A, _T], failures: list[Exception]
) -> None:
    for item in rest:
        try:
            found[item] = await read(item)
        except Exception as error:  # noted, not raised: a failing TaskGroup may swallow a cancellation before 3.13
            failures.append(error)
        if failures:
            return


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

"""Detecting the dialect of a ZooKeeper chroot by the brokers and members that are registered there.

Strategy: `registry.spoken` decides which dialect nodes have, and that they agree; this module reads them. A member that
joins a group reads brokers and members together. Without any the dialect is unknown: a node of the wrong one would
break the rebalances of all later members, so it waits for the first broker or member. Tools only read: the brokers
decide the dialect, and without any the nodes that groups left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from consumerd.base.calls import read_all
from consumerd.base.errors import ZooKeeperError, reason_of
from consumerd.base.ports import Clock, ZooKeeper
from consumerd.net.cluster.reading import Listing, children, data, watched_children
from consumerd.net.zk.errors import NoAuth
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.paths import broker_ids_path, consumers_path, id_path, ids_path, offsets_path, offsets_root
from consumerd.wire.registry.spoken import agreed_dialect, broker_dialect, member_dialect, offset_dialect

log = structlog.get_logger(__name__)

#: Seconds between checks if no watch fired, and after an error of ZooKeeper.
_POLL = 10.0
_RETRY = 0.5
#: Number of groups that are searched for the dialect, if none is named.
_GROUPS_LOOKED_AT = 100


async def read_dialect(zk: ZooKeeper, group: str) -> Dialect | None:
    """Return the dialect of the brokers and the members of `group`, for a new member; None if there are neither.

    Damaged nodes are ignored. Raises DialectError if both dialects are found, and the errors of the session.
    """
    readers = partial(_brokers, zk, watched_children), partial(_members, zk, group, watched_children)
    found = await read_all(readers, lambda read: read())
    said = {name: dialect for each in found.values() for name, dialect in each.items()}
    return agreed_dialect(said, f"the group {group!r}")


async def look_for_dialect(zk: ZooKeeper, groups: Sequence[str] = ()) -> Dialect | None:
    """Return the dialect of the cluster, for a tool that only reads `groups` or any group; None if it is unknown.

    The brokers decide it; without any, the first group with members, and then the names of the first offsets: groups
    outlive brokers. Raises DialectError if both dialects are found in the same place, and the errors of the session.
    """
    found = agreed_dialect(await _brokers(zk, children), "a chroot")
    if found is not None:
        return found
    looked_at = groups or (await children(zk, consumers_path()))[:_GROUPS_LOOKED_AT]
    for group in looked_at:
        found = agreed_dialect(await _members(zk, group, children), f"the group {group!r}")
        if found is not None:
            return found
    for group in looked_at:
        for topic in await children(zk, offsets_root(group)):
            names = await children(zk, offsets_path(group, topic))
            said = {f"the offset {topic}/{name}": offset_dialect(name) for name in names}
            found = agreed_dialect(said, f"the group {group!r}")
            if found is not None:
                return found
    return None


async def wait_for_dialect(
    zk: ZooKeeper, group: str, clock: Clock, waiting: Callable[[], object] = lambda: None
) -> Dialect:
    """As `read_dialect`, once a broker or member is registered, and all can be read; calls `waiting` before it waits.

    Raises DialectError.
    """
    changed = asyncio.Event()
    unwatch = [zk.watch(path, changed.set) for path in (broker_ids_path(), ids_path(group))]
    reported: set[str] = set()
    try:
        while True:
            changed.clear()
            reason = "no broker and no member has registered yet"
            try:
                found = await read_dialect(zk, group)
            except NoAuth as error:  # which may last
                found, reason = None, reason_of(error)
            except ZooKeeperError as error:
                log.info("dialect_read_failed", group=group, reason=reason_of(error))
                await clock.sleep(_RETRY)
                continue
            if found is not None:
                return found
            if reason not in reported:
                log.warning("dialect_unknown", group=group, reason=reason)
                reported.add(reason)
                waiting()
            try:
                async with asyncio.timeout(_POLL):
                    await changed.wait()
            except TimeoutError:
                pass
    finally:
        for stop in unwatch:
            stop()


async def _brokers(zk: ZooKeeper, listing: Listing) -> dict[str, Dialect | None]:
    said = await _said(zk, listing, broker_ids_path(), lambda name: f"{broker_ids_path()}/{name}", broker_dialect)
    return {f"broker {name}": dialect for name, dialect in said.items()}


async def _members(zk: ZooKeeper, group: str, listing: Listing) -> dict[str, Dialect | None]:
    said = await _said(zk, listing, ids_path(group), lambda name: id_path(group, name), member_dialect)
    return {f"member {name}": dialect for name, dialect in said.items()}


async def _said(
    zk: ZooKeeper,
    listing: Listing,
    path: str,
    child: Callable[[str], str],
    dialect_of: Callable[[bytes | None], Dialect | None],
) -> dict[str, Dialect | None]:
    """Return the dialect of each child; None for one that has none, is being created, or was deleted.

    Data are dropped as they are read: ten thousand nodes of a megabyte do not fit into the memory.
    """
    paths = {}
    for name in await listing(zk, path):
        try:
            paths[name] = child(name)
        except RegistryError:
            log.warning("foreign_node", path=f"{path}/{name}")

    async def read(name: str) -> Dialect | None:
        return dialect_of(await data(zk, paths[name]))

    return await read_all(paths, read)

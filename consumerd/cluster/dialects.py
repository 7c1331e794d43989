"""Which dialect is spoken at a place in ZooKeeper: asked of the brokers and members that are registered there.

Strategy: brokers and members answer together, and must agree. Where there are neither, nobody can know: what a member
would write there could break the rebalances of all that come later, so it waits until somebody has come.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from consumerd.cluster.reading import data, read_all, watched_children
from consumerd.errors import ZooKeeperError
from consumerd.registry import (
    Dialect,
    DialectError,
    RegistryError,
    broker_ids_path,
    id_path,
    ids_path,
    parse_broker,
    parse_broker_node,
    parse_subscription_v08,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.ports import Clock, ZooKeeper

log = structlog.get_logger(__name__)

#: Seconds between looks where no watch fired, and after ZooKeeper failed us.
_POLL = 10.0
_RETRY = 0.5


async def read_dialect(zk: ZooKeeper, group: str) -> Dialect | None:
    """What the brokers and the members of `group` speak; None where there are neither. Damaged nodes say nothing.

    Raises DialectError when both are spoken, and what the session raises.
    """
    brokers = await _values(zk, broker_ids_path(), lambda name: f"{broker_ids_path()}/{name}")
    members = await _values(zk, ids_path(group), lambda name: id_path(group, name))
    found: dict[Dialect, str] = {}
    for kind, texts, of in (("broker", brokers, _of_broker), ("member", members, _of_member)):
        for name, text in texts.items():
            dialect = of(text)
            if dialect is not None:
                found.setdefault(dialect, f"{kind} {name}")
    if len(found) > 1:
        raise DialectError(
            f"{found[Dialect.V07]} is registered as Kafka 0.7 does it and {found[Dialect.V08]} as 0.8 or later does, "
            f"which cannot share the group {group!r}: give each generation a ZooKeeper chroot and a group of its own"
        )
    return next(iter(found), None)


def _of_broker(text: bytes) -> Dialect | None:
    try:
        parse_broker_node(0, text)
    except DialectError:
        try:
            parse_broker(0, text)
        except RegistryError:
            return None
        return Dialect.V07
    except RegistryError:
        return None
    return Dialect.V08


def _of_member(text: bytes) -> Dialect | None:
    try:
        parse_subscription_v08(text)
    except DialectError:
        return Dialect.V07
    except RegistryError:
        return None
    return Dialect.V08


async def wait_for_dialect(
    zk: ZooKeeper, group: str, clock: Clock, waiting: Callable[[], object] = lambda: None
) -> Dialect:
    """As `read_dialect`, as soon as there is somebody; `waiting` is told where nobody is yet. Raises DialectError."""
    changed = asyncio.Event()
    unwatch = [zk.watch(path, changed.set) for path in (broker_ids_path(), ids_path(group))]
    told = False
    try:
        while True:
            changed.clear()
            try:
                found = await read_dialect(zk, group)
            except ZooKeeperError as error:
                log.info("dialect_not_read", group=group, error=str(error))
                await clock.sleep(_RETRY)
                continue
            if found is not None:
                return found
            if not told:
                log.warning("dialect_unknown", group=group, reason="no broker and no member has registered yet")
                told = True
                waiting()
            try:
                async with asyncio.timeout(_POLL):
                    await changed.wait()
            except TimeoutError:
                pass
    finally:
        for stop in unwatch:
            stop()


async def _values(zk: ZooKeeper, path: str, child: Callable[[str], str]) -> dict[str, bytes]:
    """Data of the children that hold any; what is being made, or was deleted meanwhile, says nothing."""
    paths = {}
    for name in await watched_children(zk, path):
        try:
            paths[name] = child(name)
        except RegistryError:
            log.warning("foreign_node", path=f"{path}/{name}")
    texts = await read_all(paths, lambda name: data(zk, paths[name]))
    return {name: text for name, text in texts.items() if text}

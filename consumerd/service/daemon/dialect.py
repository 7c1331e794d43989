"""The dialect in which a member joins a group in ZooKeeper: configured (unless nodes contradict it) or detected.

Strategy: looked at before anything is registered, since a node of the wrong dialect breaks the rebalance of every peer.
The membership machine refuses nodes that are created later.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import structlog

from consumerd.base.errors import ConfigError, ZooKeeperError, reason_of
from consumerd.base.ports import Clock, ZooKeeper
from consumerd.base.settings.group import GroupSection
from consumerd.member.consumer.errors import GroupRefusedError
from consumerd.net.cluster.dialects import read_dialect, wait_for_dialect
from consumerd.service.config.model import Config
from consumerd.service.daemon.notify import READY, notify, status
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.errors import DialectError

log = structlog.get_logger(__name__)

_NAMES = {"0.7": Dialect.V07, "0.8": Dialect.V08}


async def find_dialect(
    config: Config, zk: ZooKeeper, clock: Clock, *, wait: bool = True, groups: Iterable[str] = ()
) -> Dialect | None:
    """The dialect of the group; with `auto`, waits until a broker or a member shows it, or is None without `wait`.

    `groups`: others that the process joins, in which the dialect must be the same.

    Raises GroupRefusedError for a group that is not to be joined, ConfigError for what the dialect cannot do.
    """
    group = config.group
    try:
        dialect: Dialect | None
        if group.dialect == "auto" and not wait:
            dialect = await read_dialect(zk, group.id)
        elif group.dialect == "auto":
            # A service that waits for others has started.
            report = partial(notify, READY, status("waiting for a first broker"))
            dialect = await wait_for_dialect(zk, group.id, clock, report)
        else:
            dialect = _NAMES[group.dialect]
            await _require(dialect, zk, group.id)
    except DialectError as error:
        raise GroupRefusedError(group.id, str(error)) from error
    if dialect is Dialect.V07:
        _require_v07(group)
    for other in groups:
        if dialect is not None and other != group.id:
            await _require_in(dialect, zk, other)
    log.info("dialect_chosen", group=group.id, dialect=None if dialect is None else dialect.value)
    return dialect


async def _require_in(dialect: Dialect, zk: ZooKeeper, group: str) -> None:
    try:
        found = await _other_dialect(dialect, zk, group)
    except DialectError as error:
        raise GroupRefusedError(group, str(error)) from error
    if found is not None:
        raise GroupRefusedError(
            group,
            f"its members speak the dialect of Kafka {found.value}, and those of other subscriptions that of "
            f"{dialect.value}; run one daemon for each",
        )


async def _require(dialect: Dialect, zk: ZooKeeper, group: str) -> None:
    found = await _other_dialect(dialect, zk, group)
    if found is not None:
        raise DialectError(
            f"the brokers or members registered there speak the dialect of Kafka {found.value}, and group.dialect is "
            f"{dialect.value[:3]!r}; check it, and the chroot of zookeeper.connect"
        )


async def _other_dialect(dialect: Dialect, zk: ZooKeeper, group: str) -> Dialect | None:
    """Return the dialect of the group's nodes if it is another one. Raises DialectError."""
    try:
        found = await read_dialect(zk, group)
    except ZooKeeperError as error:  # the member looks again, and refuses by itself
        log.info("dialect_read_failed", group=group, reason=reason_of(error))
        return None
    return None if found is dialect else found


def _require_v07(group: GroupSection) -> None:
    if group.storage != "zookeeper":
        raise ConfigError(
            f"group.offsets is {group.storage!r}, and brokers of Kafka 0.7 do not store offsets: omit it."
        )
    if group.assignor != "range":
        raise ConfigError(
            f"group.assignor is {group.assignor!r}, and members of Kafka 0.7 support range only: omit it."
        )

"""The start of a session on the chroot of a cluster, for tools and daemons.

Strategy: a session would create a chroot that does not exist, so a misspelled one would look like a cluster without
topics. A chroot counts as that of a cluster once it has brokers or consumers. A tool says at once that it does not, and
which other chroots do; a service, which may start together with the brokers, waits for them first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import structlog

from consumerd.base.calls import read_all
from consumerd.base.errors import NotFoundError, ZooKeeperError
from consumerd.base.ports import Clock, ZooKeeper
from consumerd.net.addresses import why_unresolvable
from consumerd.net.cluster.reading import children
from consumerd.net.zk.errors import ConnectionLost, NoAuth, NoNode, NotConnected, SessionChanged, Throttled
from consumerd.net.zk.session import Session
from consumerd.wire.registry.paths import broker_ids_path, consumers_path, topic_path

log = structlog.get_logger(__name__)

#: Seconds between looks at an empty chroot.
_POLL: Final = 0.5
#: Number of nodes of the root that are searched for a cluster, for the remedy of an error.
_LOOKED_AT: Final = 100


async def start_session(
    session: Session,
    timeout: float,
    clock: Clock,
    *,
    where: str = "zookeeper.connect",
    allow_empty: bool | None = None,
    wait: bool = False,
) -> None:
    """Start a session within `timeout` seconds, and require that a cluster is there.

    `where`: the setting or option with the address. `allow_empty`: the chroot may be missing, and is created then, or
    have neither brokers nor consumers; None if there is no such setting. `wait`: wait for names that do not resolve,
    and for the cluster. Raises ZooKeeperError, NotFoundError.
    """
    began = clock.monotonic()
    if not wait and (reason := await why_unresolvable([(host.name, host.port) for host in session.hosts])):
        raise NotConnected(
            f"cannot connect to ZooKeeper at {session.servers}: {reason}; check the address in {where}, and the DNS of "
            "this machine."
        )
    session.create_chroot = bool(allow_empty)
    try:
        await session.start(timeout)
    except NotConnected as error:
        raise ZooKeeperError(f"{error} (in {where}); tried for {timeout:g} s.") from error
    if allow_empty:
        return
    reported: str | None = None
    while True:
        left = began + timeout - clock.monotonic()
        try:
            problem = await _missing(session)
            if problem is None:
                break
            if problem != reported or left <= 0:
                remedy = await _remedy(session, where)
                if allow_empty is not None:
                    remedy += "; for a new cluster start a broker first, or set zookeeper.allow_empty"
                if not wait or left <= 0:
                    raise NotFoundError(f"{problem}{remedy}.")
                reported = problem
                log.warning("waiting_for_cluster", reason=f"{problem}{remedy}", seconds=round(left, 1))
        except (ConnectionLost, NotConnected, SessionChanged, Throttled):  # the session connects again by itself
            if left <= 0:
                raise
        await clock.sleep(min(_POLL, max(left, 0.0)))
    session.create_chroot = True


async def require_topics(zk: ZooKeeper, topics: Iterable[str]) -> None:
    """Raise NotFoundError for a topic that no broker has registered, of either dialect."""
    for topic in topics:
        if not await children(zk, topic_path(topic)):
            raise NotFoundError(f"no broker has registered the topic {topic!r}; see `consumerd topics list`.")


async def _missing(session: Session) -> str | None:
    """Return what is missing; None if there is a cluster."""
    root, brokers, consumers = "/", broker_ids_path(), consumers_path()
    there = await read_all((root, brokers, consumers), lambda path: _is_there(session, path))
    if not there[root]:
        return f"the chroot {session.chroot} does not exist in ZooKeeper at {session.servers}"
    if there[brokers] or there[consumers]:
        return None
    return f"{session.chroot or '/'} has neither brokers nor consumers in ZooKeeper at {session.servers}"


async def _has_cluster(zk: ZooKeeper, chroot: str) -> bool:
    return await _is_there(zk, chroot + broker_ids_path()) or await _is_there(zk, chroot + consumers_path())


async def _is_there(zk: ZooKeeper, path: str) -> bool:
    try:
        return await zk.exists(path) is not None
    except NoAuth:
        return True  # servers since 3.9 ask for the permission to read nodes that exist


async def _remedy(session: Session, where: str) -> str:
    """The chroots that have a cluster, as far as they may be read."""
    root = session.at_root()
    try:
        names = (await root.children("/"))[:_LOOKED_AT]
        found = [f"/{name}" for name in names if name != "zookeeper" and await _has_cluster(root, f"/{name}")]
    except (NoAuth, NoNode):
        found = []
    if not found:
        return f"; check the chroot in {where}"
    return f", but {', '.join(found)} {'has' if len(found) == 1 else 'have'} some; check the chroot in {where}"

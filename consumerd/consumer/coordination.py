"""The membership machine's actions in ZooKeeper: each is performed once, on the session it names, and answered.

Strategy: one method per action of `consumerd.group.events`, which returns the answering event. Whatever went wrong on
the way is `Failed`: the machine asks again from a fresh snapshot. Creations are multis of one operation, because a
multi can be bound to a session. Watches call `triggered`, and belong to the paths that the latest snapshot read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from consumerd.errors import ZooKeeperError
from consumerd.group.events import (
    Claim,
    ClaimBlocked,
    Claimed,
    Failed,
    Nudge,
    Register,
    Registered,
    RegistrationBlocked,
    Release,
    Released,
    SnapshotTaken,
    TakeSnapshot,
    Unregister,
    Unregistered,
)
from consumerd.ports import Create
from consumerd.registry import format_owner, id_path, nudge_operations, owner_path
from consumerd.zk.errors import MultiFailed, NodeExists, NoNode, NotConnected, SessionChanged

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.consumer.snapshot import SnapshotReader
    from consumerd.group import GroupRules
    from consumerd.ports import Clock, ZooKeeper

log = structlog.get_logger(__name__)


class GroupCoordination:
    """Performs the ZooKeeper actions of one member. `id_text` is the value of its id node.

    `rules` and `reader` are those of the group's dialect.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        group: str,
        consumer_id: str,
        id_text: str,
        rules: GroupRules,
        reader: type[SnapshotReader],
        *,
        clock: Clock,
        triggered: Callable[[], None],
    ) -> None:
        self._zk = zk
        self._group = group
        self._consumer_id = consumer_id
        self._id_text = id_text
        self._rules = rules
        self._reader = reader
        self._clock = clock
        self._triggered = triggered
        self._watched: dict[str, Callable[[], None]] = {}
        #: Owner nodes that were claimed since a snapshot last looked at them: their watches are kept for it.
        self._fresh: set[str] = set()

    # -- registration

    @property
    def _patience(self) -> float:
        """Seconds after which a node was not left by a dead process like ours: servers expire in coarse steps."""
        return 1.5 * self._zk.session_timeout + 2.0

    async def register(self, action: Register) -> Registered | RegistrationBlocked | Failed:
        """Create the id node. A foreign one is never adopted, but waited for as long as a dead one may stand."""
        path = id_path(self._group, self._consumer_id)
        try:
            self._require(action.session_id)
            await self._zk.create_ephemeral(path, self._id_text.encode(), wait=self._patience)
            self._require(action.session_id)
        except NodeExists:
            return RegistrationBlocked(action.ticket)
        except ZooKeeperError as error:
            return self._failed("register", action.ticket, error)
        return Registered(action.ticket)

    async def unregister(self, action: Unregister) -> Unregistered | Failed:
        """Delete the id node if this session owns it."""
        try:
            self._require(action.session_id)
            await self._zk.delete_owned(id_path(self._group, self._consumer_id))
        except ZooKeeperError as error:
            return self._failed("unregister", action.ticket, error)
        return Unregistered(action.ticket)

    # -- owner nodes

    async def claim(self, action: Claim) -> Claimed | ClaimBlocked | Failed:
        """Create the owner node, or find that somebody's stands already.

        It is read back with a watch: peers delete nodes by path, and the next snapshot may be half a minute away.
        """
        path = owner_path(self._group, action.partition)
        value = format_owner(self._consumer_id, action.stream).encode()
        try:
            await self._create(path, value, action.session_id)
            self._fresh.add(path)  # before the read: a snapshot that ends meanwhile must not forget the watch
            self._watch(path)
            data, stat = await self._zk.get(path, watch=True)
            if stat.ephemeral_owner == action.session_id:
                if data == value:  # created just now, or earlier by a call whose reply was lost
                    return Claimed(action.partition, action.ticket)
                await self._zk.delete_owned(path)  # the latter, for another stream
        except NoNode:
            pass  # it went between the two looks: the next attempt finds out
        except ZooKeeperError as error:
            return self._failed("claim", action.ticket, error, partition=str(action.partition))
        self._fresh.discard(path)
        return ClaimBlocked(action.partition, action.ticket)

    async def release(self, action: Release) -> Released | Failed:
        """Delete the owner node if this session owns it."""
        path = owner_path(self._group, action.partition)
        self._fresh.discard(path)
        try:
            self._require(action.session_id)
            await self._zk.delete_owned(path)
        except ZooKeeperError as error:
            return self._failed("release", action.ticket, error, partition=str(action.partition))
        return Released(action.partition, action.ticket)

    async def nudge(self, action: Nudge) -> None:
        """Wake members that gave up, by an id that comes and goes in one transaction; repeated until it worked."""
        operations = nudge_operations(self._group, self._consumer_id, self._rules.nudge_value)
        while True:
            try:
                await self._zk.multi(operations, session_id=action.session_id)
            except SessionChanged:
                return
            except ZooKeeperError as error:
                log.warning("nudge_failed", group=self._group, error=str(error))
                await self._clock.sleep(1.0)
            else:
                log.info("group_nudged", group=self._group)
                return

    async def _create(self, path: str, value: bytes, session_id: int) -> None:
        """Create the ephemeral, unless some node stands there already. Parents are made where missing."""
        for _ in range(2):
            try:
                await self._zk.multi([Create(path, value, ephemeral=True)], session_id=session_id)
            except MultiFailed as failure:
                if isinstance(failure.cause, NodeExists):
                    return
                if not isinstance(failure.cause, NoNode):
                    raise failure.cause from failure
                await self._zk.ensure(path.rpartition("/")[0])
            else:
                return
        raise NoNode(path)

    def _require(self, session_id: int) -> None:
        if self._zk.session_id != session_id:
            raise SessionChanged(session_id, self._zk.session_id)

    def _failed(self, action: str, ticket: int, error: ZooKeeperError, **context: object) -> Failed:
        if not isinstance(error, NotConnected | SessionChanged):
            log.warning("group_action_failed", action=action, group=self._group, error=str(error), **context)
        return Failed(ticket)

    # -- snapshots

    async def take_snapshot(self, action: TakeSnapshot) -> SnapshotTaken | Failed:
        """Read the group, arming a watch with each read."""
        reader = self._reader(self._zk, self._group, self._watch, self._rules)
        try:
            self._require(action.session_id)
            snapshot = await reader.read(self._consumer_id, action)
            self._require(action.session_id)
        except ZooKeeperError as error:
            return self._failed("snapshot", action.ticket, error)
        self._fresh -= reader.paths
        self._forget_watches(reader.paths | self._fresh)
        return SnapshotTaken(action.ticket, snapshot)

    def _watch(self, path: str) -> None:
        if path not in self._watched:
            self._watched[path] = self._zk.watch(path, self._triggered)

    def _forget_watches(self, keep: set[str]) -> None:
        for path in self._watched.keys() - keep:
            self._watched.pop(path)()

    def close(self) -> None:
        """Watch nothing any more."""
        self._forget_watches(set())

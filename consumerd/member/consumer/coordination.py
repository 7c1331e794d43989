"""The membership machine's actions in ZooKeeper: each is performed once, on the session it names, and answered.

Strategy: one method per action of `consumerd.group.events`, which returns the answering event. Partitions that failed
are left out of the answer, or it is `Failed`: the machine repeats it from a fresh snapshot. Nodes are cached with their
watch (`consumerd.net.cluster.watched`): a fired watch calls `triggered`, and only what changed is read again.

Many partitions cost few round trips. Owner nodes are created by multis of some dozens, and read right behind them on
the same connection, which arms the watches and shows the owner of each; if a multi was rejected because some of its
nodes exist, only the free ones are tried again. Nodes are deleted by multis, too: our watch on each shows that it is
still the node that we created. On a server without multi (before 3.4) the same is done by single requests, sent
together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import structlog

from consumerd.base.calls import read_all
from consumerd.base.errors import ZooKeeperError, reason_of
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock, Create, Delete, ZooKeeper
from consumerd.group.events import (
    Claim,
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
from consumerd.member.consumer.backends import GroupBackend
from consumerd.member.consumer.blocked import Holder, holder_of
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.net.cluster.reading import ZNode
from consumerd.net.cluster.watched import WatchedNodes
from consumerd.net.zk.errors import BadVersion, MultiFailed, NoAuth, NodeExists, NoNode, NotConnected, SessionChanged
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.nudge import nudge_operations
from consumerd.wire.registry.paths import id_path, owner_path, owners_path
from consumerd.wire.registry.subscription import Subscription
from consumerd.wire.registry.values import format_owner, parse_owner

log = structlog.get_logger(__name__)

#: Nodes that one multi creates or deletes.
NODES_PER_MULTI: Final = 50
#: Seconds after which a node that blocks a claim is read again, even if its watch did not fire.
LOOK_AGAIN: Final = 1.0
#: Attempts of a claim or a release whose nodes are created or deleted by others meanwhile.
_ROUNDS: Final = 3

_Operation = TypeVar("_Operation", Create, Delete)


class GroupCoordination:
    """Performs the ZooKeeper actions of one member, in the dialect of `backend`."""

    def __init__(
        self,
        zk: ZooKeeper,
        settings: ConsumerSettings,
        backend: GroupBackend,
        *,
        clock: Clock,
        triggered: Callable[[], None],
    ) -> None:
        self._zk = zk
        self._group = settings.group
        self._consumer_id = settings.consumer_id
        self._siblings = settings.siblings
        self._rules = backend.rules
        self._clock = clock
        self._nodes = WatchedNodes(zk, clock, lambda _: triggered())
        self._owners = WatchedNodes(zk, clock, lambda _: triggered())
        self.change_subscription(settings.subscription)
        self._reader = backend.reader(zk, self._nodes, self._owners, settings.group, backend.rules)
        #: The owner nodes that were claimed and not released.
        self._ours: set[str] = set()
        #: The parents of owner nodes of which some do not exist.
        self._missing: set[str] = set()
        #: Owner nodes that we may not read, and parents in which we may not create them, at the last claim, and why.
        self._denied: dict[str, str] = {}

    # -- registration

    @property
    def patience(self) -> float:
        """Seconds of one attempt to register: a dead session with our timeout ends meanwhile, in coarse steps."""
        return 1.5 * self._zk.session_timeout + 2.0

    async def register(self, action: Register) -> Registered | RegistrationBlocked | Failed:
        """Create the id node. One of another session is never adopted; its expiry is waited for."""
        path = id_path(self._group, self._consumer_id)
        try:
            self._require(action.session_id)
            if action.replace:
                await self._replace_id(path, action.session_id)
            await self._zk.create_ephemeral(path, self._id_text.encode(), wait=self.patience)
            self._require(action.session_id)
        except NodeExists:
            return RegistrationBlocked(action.ticket)
        except ZooKeeperError as error:
            return self._failed("register", action.ticket, error)
        return Registered(action.ticket)

    def change_subscription(self, subscription: Subscription) -> None:
        """Register with this subscription from now on."""
        self._id_text = self._rules.format(subscription, int(self._clock.wall() * 1000))

    async def _replace_id(self, path: str, session_id: int) -> None:
        """Delete and create our id node in one transaction: no peer sees the group without us.

        JVM members watch the names of ids only, which a transaction that deletes and creates one fires as well.
        """
        stat = await self._zk.exists(path)
        if stat is not None and stat.ephemeral_owner == session_id:
            await self._write(
                [Delete(path, stat.version), Create(path, self._id_text.encode(), ephemeral=True)], session_id
            )
        self._nodes.refresh(path)

    async def unregister(self, action: Unregister) -> Unregistered | Failed:
        """Delete the id node if this session owns it."""
        path = id_path(self._group, self._consumer_id)
        known = self._nodes.known_node(path)
        try:
            self._require(action.session_id)
            self._nodes.close()
            if not (known is not None and await self._delete_id(path, known, action.session_id)):
                await self._zk.delete_owned(path)
        except ZooKeeperError as error:
            return self._failed("unregister", action.ticket, error)
        return Unregistered(action.ticket)

    async def _delete_id(self, path: str, known: ZNode, session_id: int) -> bool:
        """Delete our id node as its watch shows it, without reading it again; return False if it is another one."""
        if not self._zk.has_multi or known.stat.ephemeral_owner != session_id:
            return False
        return await self._delete([Delete(path, known.stat.version)], session_id)

    # -- owner nodes: claiming

    async def claim(self, action: Claim) -> Claimed:
        """Create the owner nodes, or find those of others; they are watched in either case.

        What we may not create, or another's node that we may not read, is blocked, too, and affects no others.
        """
        self._denied.clear()
        claimed: set[TopicPartition] = set()
        blocked: set[TopicPartition] = set()
        open_ = dict(action.streams)
        self._watch_only(open_)
        try:
            for _ in range(_ROUNDS):
                blocked |= self._known_to_be_blocked(open_, action.session_id)
                decided = claimed | blocked
                open_ = {each: stream for each, stream in open_.items() if each not in decided}
                if not open_:
                    break
                found = await self._create_nodes(open_, action.session_id)
                for partition, node in found.items():
                    if node is not None:
                        ours = await self._is_ours(partition, node, open_[partition], action.session_id)
                        (claimed if ours else blocked).add(partition)
                    elif self._denial(partition) is not None:
                        blocked.add(partition)
        except ZooKeeperError as error:
            self._log_failure("claim", error)
        # A node that came and went in each round is in neither set. To call it blocked could leave a node of ours
        # behind: it may have been made right after it was found missing, if the connection changed meanwhile.
        self._ours |= {owner_path(self._group, partition) for partition in claimed}
        return Claimed(action.ticket, frozenset(claimed), frozenset(blocked))

    def _known_to_be_blocked(self, partitions: Iterable[TopicPartition], session_id: int) -> set[TopicPartition]:
        """Return the partitions blocked by another's node, as far as its watch tells; an old reading is refreshed."""
        blocked = set()
        for partition in partitions:
            path = owner_path(self._group, partition)
            node = self._owners.known_node(path)
            if node is not None and not self._owns(node, session_id):
                if self._owners.age(path) < LOOK_AGAIN:
                    blocked.add(partition)
                else:
                    self._owners.refresh(path)
        return blocked

    async def _create_nodes(
        self, streams: Mapping[TopicPartition, int], session_id: int
    ) -> dict[TopicPartition, ZNode | None]:
        """Create the missing nodes, and read all of them. Watches report later changes."""
        self._require(session_id)
        missing = {owners_path(self._group, partition.topic) for partition in streams} & self._missing
        await read_all(sorted(missing), self._ensure_parent)
        self._missing -= missing
        create = []
        for partition, stream in sorted(streams.items()):
            path = owner_path(self._group, partition)
            if self._denial(partition) is None and not self._owners.is_fresh(path):
                value = format_owner(self._consumer_id, stream).encode()
                create.append(Create(path, value, ephemeral=True))
        writes = [partial(self._create, chunk, session_id) for chunk in self._chunks(create)]
        found: dict[TopicPartition, ZNode | None] = {}

        async def read() -> None:
            found.update(await read_all(streams, self._owner_node))

        # Reads follow the writes on the same connection, and see their results.
        calls: list[Callable[[], Awaitable[None]]] = [*writes, read]
        await read_all(calls, lambda call: call())
        return found

    async def _create(self, operations: Sequence[Create], session_id: int) -> None:
        """Create all or none; reading them shows which existed before.

        That their parents exist is not looked at before: they do in every group but a new one.
        """
        try:
            await self._write(operations, session_id)
        except NodeExists:
            return
        except NoNode:  # the next round creates the parents
            self._missing |= {_parent(operation) for operation in operations}
        except NoAuth as error:
            by_parent: defaultdict[str, list[Create]] = defaultdict(list)
            for operation in operations:
                by_parent[_parent(operation)].append(operation)
            if len(by_parent) == 1:
                self._denied.update(dict.fromkeys(by_parent, reason_of(error)))
                return
            for each in by_parent.values():
                await self._create(each, session_id)

    async def _owner_node(self, partition: TopicPartition) -> ZNode | None:
        path = owner_path(self._group, partition)
        try:
            return await self._owners.node_if_there(path)
        except NoAuth as error:  # another's: without reading its own nodes no member could work
            self._denied[path] = reason_of(error)
            return None

    def _denial(self, partition: TopicPartition) -> str | None:
        paths = owner_path(self._group, partition), owners_path(self._group, partition.topic)
        return next((self._denied[path] for path in paths if path in self._denied), None)

    async def _ensure_parent(self, path: str) -> None:
        try:
            await self._zk.ensure(path)
        except NoAuth as error:
            self._denied[path] = reason_of(error)

    async def _is_ours(self, partition: TopicPartition, node: ZNode, stream: int, session_id: int) -> bool:
        """Whether the owner node is as we meant to create it."""
        if not self._owns(node, session_id):
            return False
        if node.data != format_owner(self._consumer_id, stream).encode():
            # Made for another stream, by a call whose reply was lost: the next attempt makes the right one.
            path = owner_path(self._group, partition)
            self._owners.forget(path)
            await self._zk.delete_owned(path)
            return False
        return True

    def _owns(self, node: ZNode, session_id: int) -> bool:
        """Whether an owner node is this member's. What a peer may have written into it does not matter."""
        if node.stat.ephemeral_owner != session_id:
            return False
        if not self._siblings:
            return True
        try:
            return parse_owner(node.data)[0] not in self._siblings
        except RegistryError:
            return True

    def _watch_only(self, wanted: Iterable[TopicPartition]) -> None:
        """Forget the nodes that blocked claims which are no longer required."""
        keep = self._ours | {owner_path(self._group, partition) for partition in wanted}
        for path in self._owners.paths() - keep:
            self._owners.forget(path)

    def known_version(self, partition: TopicPartition, session_id: int) -> int | None:
        """Return the version of our owner node; None unless its watch says that it still exists."""
        node = self._owners.known_node(owner_path(self._group, partition))
        return node.stat.version if node is not None and self._owns(node, session_id) else None

    def holder(self, partition: TopicPartition) -> Holder:
        """Return the owner that the node of a blocked claim names, without a request."""
        denied = self._denial(partition)
        if denied is not None:
            return Holder(None, None, denied)
        return holder_of(self._owners.known_node(owner_path(self._group, partition)))

    def look_again(self, partitions: Iterable[TopicPartition]) -> None:
        """Discard what was read of these owner nodes: a commit was refused, or a sink reported a new owner."""
        for partition in partitions:
            self._owners.refresh(owner_path(self._group, partition))

    # -- owner nodes: releasing

    async def release(self, action: Release) -> Released:
        """Delete the owner nodes that this member owns on this session."""
        released: set[TopicPartition] = set()
        try:
            for _ in range(_ROUNDS):
                open_ = sorted(action.partitions - released)
                if not open_:
                    break
                self._require(action.session_id)
                found = await read_all(open_, lambda each: self._owners.node_if_there(owner_path(self._group, each)))
                delete = []
                for partition, node in found.items():
                    if node is None or not self._owns(node, action.session_id):
                        released.add(partition)
                        self._forget_owner(partition)
                    else:
                        delete.append(Delete(owner_path(self._group, partition), node.stat.version))
                        self._forget_owner(partition)  # our own deletion must not be reported
                gone = await read_all(self._chunks(delete), lambda chunk: self._delete(chunk, action.session_id))
                paths = {operation.path for chunk, well in gone.items() if well for operation in chunk}
                released |= {each for each in open_ if owner_path(self._group, each) in paths}
        except ZooKeeperError as error:
            self._log_failure("release", error)
        return Released(action.ticket, frozenset(released))

    async def _delete(self, operations: Sequence[Delete], session_id: int) -> bool:
        """Delete all or none. Return False if some are gone, or a peer wrote into them; reading again shows which."""
        try:
            await self._write(operations, session_id)
        except (NoNode, BadVersion):
            return False
        return True

    def _forget_owner(self, partition: TopicPartition) -> None:
        path = owner_path(self._group, partition)
        self._ours.discard(path)
        self._owners.forget(path)

    # -- writing

    def _chunks(self, operations: Sequence[_Operation]) -> list[tuple[_Operation, ...]]:
        """Split the operations into one sequence for each multi; of one operation each if the server has no multi."""
        size = NODES_PER_MULTI if self._zk.has_multi else 1
        return [tuple(operations[start : start + size]) for start in range(0, len(operations), size)]

    async def _write(self, operations: Sequence[Create | Delete], session_id: int) -> None:
        """Write all or nothing, on this session only, if the server has multi. Raises the error of one operation."""
        if self._zk.has_multi:
            try:
                await self._zk.multi(operations, session_id=session_id)
            except MultiFailed as failure:
                raise failure.cause from failure
            return
        self._require(session_id)
        for operation in operations:
            if isinstance(operation, Create):
                await self._zk.create(operation.path, operation.data, ephemeral=operation.ephemeral)
            else:
                await self._zk.delete(operation.path, version=operation.version)

    async def nudge(self, action: Nudge) -> None:
        """Wake members that gave up, by creating and deleting an id in one transaction; repeat until it succeeds.

        Without multi no member is woken: a peer may read an id that exists for a moment, and assign partitions to it.
        """
        if not self._zk.has_multi:
            log.info("nudge_skipped", group=self._group, reason="this ZooKeeper has no multi")
            return
        operations = nudge_operations(self._group, self._consumer_id, self._rules.nudge_value)
        while True:
            try:
                await self._zk.multi(operations, session_id=action.session_id)
            except SessionChanged:
                return
            except ZooKeeperError as error:
                log.warning("nudge_failed", group=self._group, reason=reason_of(error))
                await self._clock.sleep(1.0)
            else:
                log.info("group_nudged", group=self._group)
                return

    def _require(self, session_id: int) -> None:
        if self._zk.session_id != session_id:
            raise SessionChanged(session_id, self._zk.session_id)

    def _failed(self, action: str, ticket: int, error: ZooKeeperError) -> Failed:
        self._log_failure(action, error)
        return Failed(ticket)

    def _log_failure(self, action: str, error: ZooKeeperError) -> None:
        if not isinstance(error, NotConnected | SessionChanged):
            log.warning("group_action_failed", action=action, group=self._group, reason=reason_of(error))

    # -- snapshots

    async def take_snapshot(self, action: TakeSnapshot) -> SnapshotTaken | Failed:
        """Read the group: the changes since the last time, or all of it.

        If the session ends meanwhile, the machine receives that event first, and ignores the answer by its ticket.
        """
        try:
            self._require(action.session_id)
            snapshot = await self._reader.read(self._consumer_id, action)
        except ZooKeeperError as error:
            return self._failed("snapshot", action.ticket, error)
        return SnapshotTaken(action.ticket, snapshot)

    def close(self) -> None:
        """Stop all watches."""
        self._nodes.close()
        self._owners.close()


def _parent(operation: Create) -> str:
    return operation.path.rpartition("/")[0]

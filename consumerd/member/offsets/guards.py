"""Guards of commits to ZooKeeper: a commit succeeds only while the partition is ours.

Strategy: a guard gives each partition operations before and after the write in the same multi; ZooKeeper then carries
them out with the write or refuses all. There are two guards:

    OwnedGuard    check(owner node): only while the node of the claim exists
    VacantGuard   create(owner node) ... delete(owner node): only while no member has claimed it

The second is for members that do not claim in ZooKeeper (fixed partitions, groups of a broker). ZooKeeper cannot check
that a node is missing, but a creation fails where there is one; no client ever sees the node, since it is deleted in
the same transaction, and only an owner watches for it.

Every owner node is created with version 0, so a check proves that the partition has an owner, not which one: what tells
a former owner from the present one is the version of the offset node; and a look before the write, which costs nothing
while the watch on the owner node says that it is the one that we made.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from consumerd.base.calls import read_all
from consumerd.base.errors import ZooKeeperError
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Check, Create, Delete, Operation, ZooKeeper
from consumerd.net.zk.errors import NodeExists, NoNode
from consumerd.wire.registry.paths import owner_path, owners_path


class GuardOperations(NamedTuple):
    """The operations before and after the write of one partition, in the same multi."""

    before: tuple[Operation, ...]
    after: tuple[Operation, ...] = ()


class GuardFailure(Enum):
    """The meaning of a guard operation's failure."""

    #: Send again: it may work now.
    RETRY = "retry"
    #: The partition is not ours to write.
    LOST = "lost"
    #: ZooKeeper does not permit the operation.
    REFUSED = "refused"


class Ownership(Protocol):
    """The part of a member that claims partitions and watches their owner nodes."""

    def known_version(self, partition: TopicPartition, session_id: int) -> int | None:
        """Return the version of this session's owner node; None unless its watch says that it still exists."""
        ...


class Guard:
    """The guard of one group in one ZooKeeper."""

    def __init__(self, zk: ZooKeeper, group: str) -> None:
        self._zk = zk
        self._group = group

    async def find_lost(self, partitions: list[TopicPartition], session_id: int) -> set[TopicPartition]:
        """Return those of `partitions` that are not ours to write; called before a commit."""
        held = await read_all(partitions, lambda each: self.holds(each, session_id))
        return {partition for partition, ours in held.items() if not ours}

    def operations(self, partition: TopicPartition) -> GuardOperations:
        """Return the operations around the write of `partition`."""
        raise NotImplementedError

    async def resolve(self, partition: TopicPartition, session_id: int, cause: ZooKeeperError) -> GuardFailure:
        """Return the meaning of an operation's failure with `cause`, after a repair where that is possible."""
        raise NotImplementedError

    async def holds(self, partition: TopicPartition, session_id: int) -> bool:
        """Whether the partition is ours to write, at this moment."""
        raise NotImplementedError


class OwnedGuard(Guard):
    """The owner node is an ephemeral of the very session that commits.

    `ownership`: an object that knows the owner without a request; by default every check is a request.
    """

    def __init__(self, zk: ZooKeeper, group: str, ownership: Ownership | None = None) -> None:
        super().__init__(zk, group)
        self._ownership = ownership
        #: Versions of our owner nodes, as last read. They are created with version 0; a peer may write to them.
        self._versions: dict[TopicPartition, int] = {}

    async def find_lost(self, partitions: list[TopicPartition], session_id: int) -> set[TopicPartition]:
        unknown = []
        for partition in partitions:
            version = None if self._ownership is None else self._ownership.known_version(partition, session_id)
            if version is None:
                unknown.append(partition)
            else:
                self._versions[partition] = version
        return await super().find_lost(unknown, session_id)

    def operations(self, partition: TopicPartition) -> GuardOperations:
        return GuardOperations((Check(owner_path(self._group, partition), self._versions.get(partition, 0)),))

    async def resolve(self, partition: TopicPartition, session_id: int, cause: ZooKeeperError) -> GuardFailure:
        return GuardFailure.RETRY if await self.holds(partition, session_id) else GuardFailure.LOST

    async def holds(self, partition: TopicPartition, session_id: int) -> bool:
        stat = await self._zk.exists(owner_path(self._group, partition))
        if stat is None or stat.ephemeral_owner != session_id:
            self._versions.pop(partition, None)
            return False
        self._versions[partition] = stat.version
        return True


class VacantGuard(Guard):
    """There is no owner node."""

    async def find_lost(self, partitions: list[TopicPartition], session_id: int) -> set[TopicPartition]:
        # A multi checks it by itself.
        return set() if self._zk.has_multi else await super().find_lost(partitions, session_id)

    def operations(self, partition: TopicPartition) -> GuardOperations:
        path = owner_path(self._group, partition)
        return GuardOperations((Create(path, b""),), (Delete(path),))

    async def resolve(self, partition: TopicPartition, session_id: int, cause: ZooKeeperError) -> GuardFailure:
        if isinstance(cause, NodeExists):
            return GuardFailure.LOST
        if not isinstance(cause, NoNode):
            return GuardFailure.REFUSED
        await self._zk.ensure(owners_path(self._group, partition.topic))
        return GuardFailure.RETRY

    async def holds(self, partition: TopicPartition, session_id: int) -> bool:
        return await self._zk.exists(owner_path(self._group, partition)) is None

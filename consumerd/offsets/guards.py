"""What a commit to ZooKeeper is bound to: operations that stand around the write, in the same multi.

Strategy: a guard looks at the owner nodes once and gives each partition its operations; ZooKeeper then carries them out
with the write or refuses all. Two of them:

    Owned    check(owner node), whose version was read: only who claimed the partition writes
    Vacant   create(owner node) ... delete(owner node): only while nobody has claimed it

The second is for members that do not claim in ZooKeeper (fixed partitions, groups of a broker). ZooKeeper cannot check
that a node is missing, but a creation fails where there is one; nobody ever sees the node, since it goes in the same
transaction, and nobody watches for it but who owns it.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from consumerd.ports import Check, Create, Delete
from consumerd.registry.paths import owner_path, owners_path
from consumerd.zk.errors import NodeExists, NoNode

if TYPE_CHECKING:
    from consumerd.errors import ZooKeeperError
    from consumerd.partition import TopicPartition
    from consumerd.ports import Operation, ZooKeeper


class Bracket(NamedTuple):
    """What stands before and behind the write of one partition."""

    before: tuple[Operation, ...]
    after: tuple[Operation, ...] = ()


class Verdict(Enum):
    """What the failure of a guard's operation means."""

    #: It may work now.
    AGAIN = "again"
    #: The partition is not ours to write.
    LOST = "lost"
    #: ZooKeeper does not let us ask.
    REFUSED = "refused"


class Guard(Protocol):
    """Of one group in one ZooKeeper."""

    async def bracket(self, partition: TopicPartition, session_id: int) -> Bracket | None:
        """The operations for a commit on `session_id`; None if the partition is not ours to write."""
        ...

    async def mend(self, partition: TopicPartition, cause: ZooKeeperError) -> Verdict:
        """What it means that one of them failed with `cause`; what can be mended is."""
        ...


class Owned:
    """The owner node is an ephemeral of the very session that commits, and stays so until the write is done."""

    def __init__(self, zk: ZooKeeper, group: str) -> None:
        self._zk = zk
        self._group = group

    async def bracket(self, partition: TopicPartition, session_id: int) -> Bracket | None:
        path = owner_path(self._group, partition)
        stat = await self._zk.exists(path)
        if stat is None or stat.ephemeral_owner != session_id:
            return None
        return Bracket((Check(path, stat.version),))

    async def mend(self, partition: TopicPartition, cause: ZooKeeperError) -> Verdict:
        return Verdict.LOST


class Vacant:
    """There is no owner node."""

    def __init__(self, zk: ZooKeeper, group: str) -> None:
        self._zk = zk
        self._group = group

    async def bracket(self, partition: TopicPartition, session_id: int) -> Bracket | None:
        path = owner_path(self._group, partition)
        return Bracket((Create(path, b""),), (Delete(path),))

    async def mend(self, partition: TopicPartition, cause: ZooKeeperError) -> Verdict:
        if isinstance(cause, NodeExists):
            return Verdict.LOST
        if not isinstance(cause, NoNode):
            return Verdict.REFUSED
        await self._zk.ensure(owners_path(self._group, partition.topic))
        return Verdict.AGAIN

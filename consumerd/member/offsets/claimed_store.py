"""Offsets in Kafka of partitions that are claimed in ZooKeeper.

Strategy: Kafka does not read owner nodes, and cannot reject a member that has lost a partition. So the owner nodes are
read right before each commit, and a partition that is not ours on this session is left out. A partition lost after the
read may still be written once: the owner's next commit corrects it, and until then its successor repeats. If the store
refuses partitions that are ours by the owner nodes, the group has members of another kind, as in
`consumerd.member.offsets.dual_store`: that stops the member. Another claim would not help, and would deliver the same
messages without end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from consumerd.base.partition import LogId, TopicPartition
from consumerd.base.ports import ZooKeeper
from consumerd.member.offsets.errors import OffsetsHeldError
from consumerd.member.offsets.guards import OwnedGuard, Ownership
from consumerd.member.offsets.store import NO_NOTES, CommitResult, OffsetStore, Trace
from consumerd.net.zk.errors import SessionChanged

if TYPE_CHECKING:
    from consumerd.member.offsets.store import Notes


class ClaimedStore:
    """Keeps offsets in `store` (Kafka's), of partitions that are claimed in `zk`."""

    def __init__(self, zk: ZooKeeper, group: str, store: OffsetStore, ownership: Ownership | None = None) -> None:
        self._zk = zk
        self._group = group
        self._owned = OwnedGuard(zk, group, ownership)
        self._store = store

    @property
    def keeps_for(self) -> float | None:
        """As the store."""
        return self._store.keeps_for

    async def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets of the store."""
        return await self._store.load(partitions)

    async def peek(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets of the store."""
        return await self._store.peek(partitions)

    async def changed(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """As the store."""
        return await self._store.changed(partitions)

    async def is_new(self, partition: TopicPartition) -> bool:
        """As the store."""
        return await self._store.is_new(partition)

    def log(self, partition: TopicPartition) -> LogId:
        """As the store."""
        return self._store.log(partition)

    async def commit(
        self, positions: Mapping[TopicPartition, int], *, session_id: int, notes: Notes = NO_NOTES
    ) -> CommitResult:
        """Store. Raises SessionChanged if the session of the claims is over, OffsetsHeldError, and errors of either."""
        if self._zk.session_id != session_id:
            raise SessionChanged(session_id, self._zk.session_id)
        wanted = list(positions)
        lost = frozenset(await self._owned.find_lost(wanted, session_id))
        ours = {each: positions[each] for each in wanted if each not in lost}
        if not ours:
            return CommitResult(frozenset(), lost)
        result = await self._store.commit(ours, session_id=session_id, notes=notes)
        if result.lost:
            raise OffsetsHeldError(self._group, min(result.lost), "Kafka")
        return CommitResult(result.committed, lost, result.refused)

    def trace(self, partition: TopicPartition) -> Trace | None:
        """As the store."""
        return self._store.trace(partition)

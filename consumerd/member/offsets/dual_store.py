"""Offsets in two stores at once: while a group moves from one to the other, and the way back stays open.

Strategy: what old consumers do with `dual.commit.enabled`, made to hold under failures.

    load    reads both, and the larger offset wins; one that does not answer makes the load wait
    commit  the store that knows a partition's owner is first; only what it accepted goes to the other

So the first store fences for both: an offset of a member that has lost its partition never reaches the second. The
second may lag behind, by a commit that failed or was interrupted; the offsets of both were handled. A commit has
succeeded once both have it; one that only the first has is repeated whole. A write to the second that was under way
while the partition changed its owner may set that store back: the larger offset wins, and the next commit corrects it.
If the second store refuses, the group has members of another kind, which the first cannot see: that stops the member
(OffsetsHeldError).

To set a group back, set it back in both stores: else the larger offset of the other store wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import structlog

from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.member.offsets.errors import OffsetsHeldError
from consumerd.member.offsets.store import NO_NOTES, CommitResult, OffsetStore, Trace

if TYPE_CHECKING:
    from consumerd.member.offsets.store import Notes

log = structlog.get_logger(__name__)


class DualOffsetStore(OffsetStore):
    """Two stores of one group. `guarding` is the one that rejects commits of lost partitions.

    `name`: the name of the other one, for messages.
    """

    def __init__(self, group: str, guarding: OffsetStore, following: OffsetStore, name: str) -> None:
        self._group = group
        self._name = name
        self._guarding = guarding
        self._following = following
        self._logs: dict[TopicPartition, LogId] = {}
        #: Partitions whose larger offset was that of the following store.
        self._ahead: set[TopicPartition] = set()
        self.keeps_for = min((store.keeps_for for store in (guarding, following) if store.keeps_for), default=None)

    async def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Load the larger offset of each; partitions that neither has are absent. Raises the errors of either store."""
        wanted = list(partitions)
        guarding = await self._guarding.load(wanted)
        following = await self._following.load(wanted)
        for partition in guarding.keys() & following.keys():
            if guarding[partition] != following[partition]:
                offsets = sorted((guarding[partition], following[partition]))
                log.info("stored_offsets_differ", partition=str(partition), offsets=offsets)
        self._ahead.difference_update(wanted)
        self._ahead.update(each for each in following if following[each] > guarding.get(each, -1))
        larger = _larger(guarding, following)
        for partition, offset in larger.items():
            stores = ((self._guarding, guarding), (self._following, following))
            logs = [store.log(partition) for store, loaded in stores if loaded.get(partition) == offset]
            known = (next((each for each in part if each is not None), None) for part in zip(*logs, strict=True))
            self._logs[partition] = LogId(*known)
        return larger

    async def peek(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = list(partitions)
        return _larger(await self._guarding.peek(wanted), await self._following.peek(wanted))

    async def changed(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        wanted = list(partitions)
        return await self._guarding.changed(wanted) | await self._following.changed(wanted)

    async def is_new(self, partition: TopicPartition) -> bool:
        """As the store that knows the members."""
        return await self._guarding.is_new(partition)

    def log(self, partition: TopicPartition) -> LogId:
        """Return that of the larger offset; of equal ones, what both stores know."""
        return self._logs.get(partition, UNKNOWN_LOG)

    async def commit(
        self, positions: Mapping[TopicPartition, int], *, session_id: int, notes: Notes = NO_NOTES
    ) -> CommitResult:
        """Store the positions in both. Raises OffsetsHeldError, and the errors of either; committing again is safe."""
        taken = await self._guarding.commit(positions, session_id=session_id, notes=notes)
        if not taken.committed:
            return taken
        rest = {partition: positions[partition] for partition in taken.committed}
        followed = await self._following.commit(rest, session_id=session_id, notes=notes)
        if followed.lost:
            raise OffsetsHeldError(self._group, min(followed.lost), self._name)
        return CommitResult(followed.committed, taken.lost, {**taken.refused, **followed.refused})

    def trace(self, partition: TopicPartition) -> Trace | None:
        """As the guarding store, which every offset is written to first; None if the other one has a larger offset."""
        return None if partition in self._ahead else self._guarding.trace(partition)


def _larger(*stores: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {
        partition: max(store[partition] for store in stores if partition in store)
        for partition in {each for store in stores for each in store}
    }

"""The account of a group that ZooKeeper coordinates: it holds members to their owner nodes.

Strategy: it is notified of every owner node that is created or deleted, and by which request. A member gets messages
and writes offsets only of partitions that it owns, or for as long as the event of a deletion by another client may
take; messages that were committed when it claimed are not delivered again.
"""

from __future__ import annotations

from collections.abc import Callable

from consumerd.base.partition import TopicPartition
from tests.simulation.account import Account, HandOver
from tests.simulation.kernel import Kernel
from tests.simulation.ownership import Cause, Claim, End, Ownership

#: Seconds after which a running member has ended the batches that it had when its session timed out.
_CLEARED = 0.5


class OwnerAccount(Account):
    """Of one group. `news`: seconds in which a process learns of changes of its nodes, where nothing keeps it."""

    def __init__(self, kernel: Kernel, news: Callable[[str], float]) -> None:
        super().__init__(kernel)
        self.ownership = Ownership()
        #: Members of other implementations: they read the offset before they claim.
        self.peers: set[str] = set()
        self._news = news
        #: Until when something may keep news from processes (None: from all).
        self._disturbed: dict[str | None, float] = {}
        #: The smallest offset that was written since the partition was claimed.
        self._least: dict[TopicPartition, int] = {}
        #: Partitions whose owner has written an offset since it claimed them.
        self._written: set[TopicPartition] = set()

    def claimed(self, partition: TopicPartition, member: str) -> None:
        """A process has made the owner node."""
        self._written.discard(partition)
        self._least.pop(partition, None)
        self.ownership.claimed(partition, Claim(self._kernel.now, member, self._committed.get(partition)))

    def unclaimed(self, partition: TopicPartition, cause: Cause) -> None:
        """An owner node went."""
        claim = self.ownership.claim(partition)
        self.ownership.ended(partition, End(self._kernel.now, cause))
        holder = self._in_hand.get(partition)
        if claim is not None and cause is Cause.TIMED_OUT and holder is not None and holder.member == claim.member:
            self._watch_out(holder)

    def _watch_out(self, holder: HandOver) -> None:
        """The session of the process that handles it has timed out: it has ended, or ends when the process wakes."""
        frozen = holder.member in self.frozen

        def look() -> None:
            if self._in_hand.get(holder.partition) is not holder or holder.member in self.careless:
                return
            if frozen or holder.member in self.frozen:
                self._watch_out(holder)
            else:
                self.violate(f"{holder.member} has {holder.partition} in hand still, without a session")

        self._kernel.after(_CLEARED, look)

    def disturbed(self, member: str | None, seconds: float) -> None:
        """For so long something may keep news from a process, or from all (None)."""
        self._disturbed[member] = max(self._disturbed.get(member, 0.0), self._kernel.now + seconds)

    def _may_hold(self, member: str, partition: TopicPartition) -> bool:
        return super()._may_hold(member, partition) or self._may_not_know(member, partition)

    def log_changed(self, partition: TopicPartition, start: int = 0) -> None:
        super().log_changed(partition, start)
        self._least[partition] = min(start, self._least.get(partition, start))

    def _check_begin(self, member: str, partition: TopicPartition, offset: int | None) -> bool:
        if member not in self.careless:
            self._require_owner(member, f"is handed {partition} at {offset}", partition)
            if member not in self.peers and offset is not None:
                self._require_new(member, partition, offset)
        return self.ownership.owns(member, partition)

    def _check_write(self, partition: TopicPartition, position: int, writer: str) -> None:
        """A member writes as the owner, or as a former owner that does not know it yet, before the next owner does."""
        self._least[partition] = min(position, self._least.get(partition, position))
        if not writer or writer in self.careless:
            return
        if self.ownership.owns(writer, partition):
            self._written.add(partition)
            return
        self._require_owner(writer, f"writes the offset {position} of {partition}", partition)
        if partition in self._written:
            self.violate(f"{writer} writes the offset {position} of {partition} after its next owner has")

    def _may_not_know(self, member: str, partition: TopicPartition) -> bool:
        """Whether a process that runs may think that the partition is its own, though it is not."""
        end = self.ownership.last_end(member, partition)
        if self.ownership.owns(member, partition) or end is None or end.cause is not Cause.TAKEN:
            return False
        disturbed = max(self._disturbed.get(each, 0.0) for each in (member, None))
        return self._kernel.now < max(end.time + self._news(member), disturbed)

    def _require_owner(self, member: str, what: str, partition: TopicPartition) -> None:
        if self.ownership.owns(member, partition) or self._may_not_know(member, partition):
            return
        end = self.ownership.last_end(member, partition)
        lost = "" if end is None else f" since {end.time:.6f} ({end.cause.value})"
        self.violate(f"{member} {what}, which it does not own{lost}")

    def _require_new(self, member: str, partition: TopicPartition, offset: int) -> None:
        """Messages that were committed before a partition was claimed are not delivered by the new owner."""
        claim = self.ownership.claim(partition)
        if claim is None or claim.member != member or claim.committed is None:
            return
        if offset < min(claim.committed, self._least.get(partition, claim.committed)):
            self.violate(f"{member} is handed {partition} at {offset}, but claimed it at {claim.committed}")

"""Who was handed what and when, and whether that may be: the account of one group.

Strategy: it hears of every message that is produced, of every hand-over's beginning and end, and of every offset that
is written; what may never be is a `violation` at that moment. What is lost or repeated is asked for in the end.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.ownership import Cause, Claim, End, Ownership

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.partition import TopicPartition
    from tests.simulation.kernel import Kernel


#: Seconds after which a member that runs has ended what its handlers had in hand when its session timed out.
_CLEARED = 0.5


class HandOver(NamedTuple):
    """One message given to a handler."""

    time: float
    member: str
    partition: TopicPartition
    offset: int
    #: Whether the partition was the member's then; if not, somebody else had taken it.
    owned: bool = True


class Account:
    """Of one group. Offsets are those of messages, positions those behind them."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.hand_overs: list[HandOver] = []
        self.violations: list[str] = []
        #: Whether an offset may be set back: where somebody seeks.
        self.may_go_back = False
        #: Who may set one back all the same: peers that write blindly.
        self.careless: set[str] = set()
        #: Processes that stand still now: what they have in hand is in nobody's.
        self.frozen: set[str] = set()
        self.ownership = Ownership()
        #: Seconds after which a process that nothing keeps from it knows what became of its nodes.
        self.news: Callable[[str], float] = lambda member: 1.0
        #: Until when something may keep it from processes (None: from all).
        self._disturbed: dict[str | None, float] = {}
        #: What members had in hand when their handlers were cancelled.
        self.cancelled: set[tuple[str, TopicPartition, int]] = set()
        #: Messages before these positions need not be handed over; None: not counted yet.
        self._default_since: float | None = None
        self._produced: dict[TopicPartition, list[int]] = {}
        self._since: dict[TopicPartition, float] = {}
        self._in_hand: dict[TopicPartition, HandOver] = {}
        self._handed: Counter[tuple[TopicPartition, int]] = Counter()
        self._handled: set[tuple[TopicPartition, int]] = set()
        self._committed: dict[TopicPartition, int] = {}
        #: The smallest offset that was written since the partition was claimed.
        self._least: dict[TopicPartition, int] = {}
        #: Partitions whose owner has written an offset since it claimed them.
        self._written: set[TopicPartition] = set()

    @property
    def count(self) -> int:
        """Messages that have to be handed over."""
        return sum(offset >= self._begin_of(tp) for tp, offsets in self._produced.items() for offset in offsets)

    # -- what happens

    def produced(self, partition: TopicPartition, offset: int) -> None:
        """A message is in the log."""
        self._produced.setdefault(partition, []).append(offset)

    def count_from(self, ends: dict[TopicPartition, int]) -> None:
        """Messages before these positions need not be handed over: there was no group yet."""
        self._since = dict(ends)
        self._default_since = 0

    def count_all(self, *, latest: bool = False) -> None:
        """Every message counts; with `latest` those behind the first that was handed over or committed."""
        self._default_since = math.inf if latest else 0

    def _begin_of(self, partition: TopicPartition) -> float:
        return self._since.get(partition, self._default_since or 0)

    def _counts_from(self, partition: TopicPartition, position: int) -> None:
        if self._default_since == math.inf:
            self._since[partition] = min(position, self._begin_of(partition))

    def begin(self, member: str, partition: TopicPartition, offsets: list[int]) -> None:
        """A handler gets messages."""
        holder = self._in_hand.get(partition)
        self._counts_from(partition, offsets[0])
        if holder is not None and not any(self._may_hold(each, partition) for each in (holder.member, member)):
            self.violate(f"{member} is handed {partition} at {offsets[0]} while {holder.member} has it in hand")
        if member not in self.careless:
            self._require_owner(member, f"is handed {partition} at {offsets[0]}", partition)
            self._require_new(member, partition, offsets[0])
        owned = self.ownership.owns(member, partition)
        self._in_hand[partition] = HandOver(self._kernel.now, member, partition, offsets[0], owned)
        for offset in offsets:
            self._handed[partition, offset] += 1
            self.hand_overs.append(HandOver(self._kernel.now, member, partition, offset, owned))

    def end(self, member: str, partition: TopicPartition, offsets: list[int], *, handled: bool) -> None:
        """The handler is through with them, or was cancelled."""
        holder = self._in_hand.get(partition)
        if holder is not None and holder.member == member:
            del self._in_hand[partition]
            if not handled:
                self.cancelled.update((member, partition, offset) for offset in offsets)
        if handled:
            self.handled(partition, offsets)

    def handled(self, partition: TopicPartition, offsets: list[int]) -> None:
        """These messages have been handled, whoever has the partition by now."""
        self._handled.update((partition, offset) for offset in offsets)

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
        """The session of whoever has it in hand has timed out: it has ended, or does when the process wakes."""
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
        """Whether a process may have something of the partition in hand beside its owner."""
        return member in self.frozen or member in self.careless or self._may_not_know(member, partition)

    def _may_not_know(self, member: str, partition: TopicPartition) -> bool:
        """Whether a process that runs may think that the partition is its own, though it is not."""
        end = self.ownership.last_end(member, partition)
        if self.ownership.owns(member, partition) or end is None or end.cause is not Cause.TAKEN:
            return False
        disturbed = max(self._disturbed.get(each, 0.0) for each in (member, None))
        return self._kernel.now < max(end.time + self.news(member), disturbed)

    def _require_owner(self, member: str, what: str, partition: TopicPartition) -> None:
        if self.ownership.owns(member, partition) or self._may_not_know(member, partition):
            return
        end = self.ownership.last_end(member, partition)
        lost = "" if end is None else f" since {end.time:.6f} ({end.cause.value})"
        self.violate(f"{member} {what}, which it does not own{lost}")

    def _require_new(self, member: str, partition: TopicPartition, offset: int) -> None:
        """What was committed before a partition was claimed is not handed over by the claimer."""
        claim = self.ownership.claim(partition)
        if claim is None or claim.member != member or claim.committed is None:
            return
        if offset < min(claim.committed, self._least.get(partition, claim.committed)):
            self.violate(f"{member} is handed {partition} at {offset}, but claimed it at {claim.committed}")

    def died(self, member: str) -> None:
        """What a dead process had in hand is in nobody's."""
        for partition in [each for each, holder in self._in_hand.items() if holder.member == member]:
            del self._in_hand[partition]

    def committed(self, partition: TopicPartition, position: int, writer: str = "") -> None:
        """An offset was written by a process."""
        self._counts_from(partition, position)
        before = self._committed.get(partition)
        self._committed[partition] = position
        self._least[partition] = min(position, self._least.get(partition, position))
        self._require_writer(partition, position, writer)
        if before is not None and position < before and not self.may_go_back and writer not in self.careless:
            self.violate(f"the offset of {partition} goes back from {before} to {position}, by {writer}")
        since = max(self._begin_of(partition), before or 0)
        for offset in reversed(self._produced.get(partition, [])):
            if offset < since:
                break
            if offset < position and (partition, offset) not in self._handled and self._default_since is not None:
                self.violate(f"{partition} is committed up to {position} by {writer}, but {offset} was not handled")
                break

    def _require_writer(self, partition: TopicPartition, position: int, writer: str) -> None:
        """A member of ours writes as the owner, or as one that cannot know better and that nobody has followed yet."""
        if not writer or writer in self.careless:
            return
        if self.ownership.owns(writer, partition):
            self._written.add(partition)
            return
        self._require_owner(writer, f"writes the offset {position} of {partition}", partition)
        if partition in self._written:
            self.violate(f"{writer} writes the offset {position} of {partition} after its next owner has")

    def violate(self, what: str) -> None:
        """Something that may never be has been."""
        self.violations.append(f"{self._kernel.now:.6f} {what}")
        self._kernel.note("VIOLATION", what)

    # -- what became of it

    def summary(self) -> dict[str, int]:
        """How many messages had to be handed over, were lost, were repeated, and what was not as it must be."""
        return {
            "messages": self.count,
            "lost": len(self.lost),
            "repeated": len(self.repeated),
            "uncommitted": len(self.uncommitted),
            "violations": len(self.violations),
        }

    @property
    def begun(self) -> set[TopicPartition]:
        """Partitions of which it is known where their messages begin to count."""
        return set(self._since)

    @property
    def flowing(self) -> set[TopicPartition]:
        """Partitions of which something was handed over."""
        return {partition for partition, _ in self._handed}

    @property
    def lost(self) -> list[tuple[TopicPartition, int]]:
        """Messages that nobody was handed."""
        return [
            (partition, offset)
            for partition, offsets in self._produced.items()
            for offset in offsets
            if offset >= self._begin_of(partition) and (partition, offset) not in self._handed
        ]

    @property
    def repeated(self) -> list[tuple[TopicPartition, int]]:
        """Messages that were handed over more than once."""
        return [message for message, times in self._handed.items() if times > 1]

    @property
    def uncommitted(self) -> list[TopicPartition]:
        """Partitions with handled messages behind the committed offset."""
        return sorted(
            {tp for tp, offset in self._handled if offset >= self._committed.get(tp, 0)},
            key=str,
        )

    def offsets(self, partition: TopicPartition) -> list[int]:
        """The messages that were produced to a partition."""
        return list(self._produced.get(partition, ()))

    def history(self, partition: TopicPartition) -> list[HandOver]:
        """The hand-overs of one partition."""
        return [each for each in self.hand_overs if each.partition == partition]

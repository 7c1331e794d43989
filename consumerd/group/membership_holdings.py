"""The partitions that a member claims, owns or releases, each with its state.

Strategy: a dictionary of small records whose states only change through the table, with a count per state kept beside
it, so that the questions the machine asks after every event need no walk over thousands of partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from consumerd.base.partition import TopicPartition
from consumerd.group.membership_snapshots import SnapshotRequest
from consumerd.group.membership_tables import HOLD, Hold, HoldCause, follow


@dataclass(slots=True, eq=False)
class Holding:
    """One partition, from the claim until it is free again."""

    partition: TopicPartition
    #: The stream that our owner node names, where there is one.
    stream: int
    state: Hold = Hold.FREE
    #: The ticket of the action under way; 0 when none is.
    ticket: int = 0
    #: The reason for which it is given up; None while it is not.
    reason: SnapshotRequest | None = None


class Holdings:
    """All holdings of a member by partition."""

    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, Holding] = {}
        self._by_ticket: dict[int, dict[TopicPartition, Holding]] = {}
        self._count: dict[Hold, int] = dict.fromkeys(Hold, 0)

    def __len__(self) -> int:
        return len(self._by_partition)

    def __iter__(self) -> Iterator[Holding]:
        """Iterate over a copy: states may change meanwhile."""
        return iter(list(self._by_partition.values()))

    def get(self, partition: TopicPartition) -> Holding | None:
        """Return the holding of a partition; None when it is free."""
        return self._by_partition.get(partition)

    def waiting_for(self, ticket: int) -> list[Holding]:
        """Return the holdings whose action under way has this ticket; none for an obsolete answer."""
        return list(self._by_ticket.get(ticket, {}).values())

    def waiting_among(self, ticket: int, partitions: Iterable[TopicPartition]) -> list[Holding]:
        """As `waiting_for`, of `partitions` only."""
        waiting = self._by_ticket.get(ticket, {})
        return [waiting[partition] for partition in sorted(partitions) if partition in waiting]

    def count(self, *states: Hold) -> int:
        """Return the number of partitions in these states."""
        return sum(self._count[state] for state in states)

    def new(self, partition: TopicPartition, stream: int) -> Holding:
        """Add a free partition that is about to be claimed."""
        holding = self._by_partition[partition] = Holding(partition, stream)
        self._count[Hold.FREE] += 1
        return holding

    def move(self, holding: Holding, cause: HoldCause, ticket: int = 0) -> None:
        """Follow the table. `ticket` is that of the action that begins now. Free partitions are forgotten."""
        self._count[holding.state] -= 1
        self._stop_waiting(holding)
        holding.state = follow(HOLD, holding.state, cause)
        holding.ticket = ticket
        self._count[holding.state] += 1
        if holding.state is Hold.FREE:
            del self._by_partition[holding.partition]
            self._count[Hold.FREE] -= 1
        elif ticket:
            self._by_ticket.setdefault(ticket, {})[holding.partition] = holding

    def _stop_waiting(self, holding: Holding) -> None:
        waiting = self._by_ticket.get(holding.ticket)
        if waiting is not None:
            waiting.pop(holding.partition, None)
            if not waiting:
                del self._by_ticket[holding.ticket]

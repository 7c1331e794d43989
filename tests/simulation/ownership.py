"""The owner of each partition over time, as the server has it, and the reason of the end of each ownership.

Strategy: it is notified of every owner node that is created or deleted. A member knows at once of its own delete, and
of the end of a session that it closed or slept through: from that moment on it may deliver nothing and write no offset.
It learns of a deletion by another client when the event has arrived.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from consumerd.base.partition import TopicPartition


class Cause(Enum):
    """Why an owner node went."""

    #: Its owner deleted it, or closed its session.
    RELEASED = "released"
    #: Nothing came from the owner for its session timeout.
    TIMED_OUT = "timed out"
    #: Another client deleted it, or ended the session.
    TAKEN = "taken"


class End(NamedTuple):
    """The end of an ownership."""

    time: float
    cause: Cause


class Claim(NamedTuple):
    """An ownership that lasts. `committed`: what the offset node said at its beginning."""

    time: float
    member: str
    committed: int | None


class Ownership:
    """Of all partitions of one group."""

    def __init__(self) -> None:
        self._claims: dict[TopicPartition, Claim] = {}
        self._ends: dict[TopicPartition, dict[str, list[End]]] = {}

    def claimed(self, partition: TopicPartition, claim: Claim) -> None:
        """An owner node was made."""
        self._claims[partition] = claim

    def ended(self, partition: TopicPartition, end: End) -> None:
        """An owner node went."""
        claim = self._claims.pop(partition, None)
        if claim is not None:
            self._ends.setdefault(partition, {}).setdefault(claim.member, []).append(end)

    def claim(self, partition: TopicPartition) -> Claim | None:
        """The ownership of this moment."""
        return self._claims.get(partition)

    def owns(self, member: str, partition: TopicPartition) -> bool:
        """Whether the node is the member's now."""
        claim = self._claims.get(partition)
        return claim is not None and claim.member == member

    def last_end(self, member: str, partition: TopicPartition) -> End | None:
        """The last ownership of the partition that the member lost; None where it never had one that ended."""
        ends = self._ends.get(partition, {}).get(member)
        return ends[-1] if ends else None

    def ends_between(self, member: str, partition: TopicPartition, begin: float, end: float) -> list[End]:
        """The member's ownerships of the partition that ended within a time."""
        return [each for each in self._ends.get(partition, {}).get(member, ()) if begin <= each.time <= end]

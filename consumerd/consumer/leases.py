"""Leases without a ZooKeeper session: from the heartbeats of a group, or from the configuration.

Each is a `consumerd.consumer.protocols.Lease`. The one of a group is read off the membership machine, which knows
when it sent what was confirmed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from consumerd.group.coordinated import CoordinatedMember
    from consumerd.ports import Clock

#: The session of partitions that are ours by configuration.
FIXED_SESSION: Final = 1


class GroupLease:
    """The lease of a member whose group a broker coordinates; a new session with every generation."""

    def __init__(self, member: CoordinatedMember, clock: Clock, session_timeout: float) -> None:
        self._member = member
        self._clock = clock
        self.session_timeout = session_timeout

    @property
    def session_id(self) -> int:
        """Stands for the generation; 0 while nothing is ours."""
        return self._member.session_id

    def lease_left(self) -> float:
        """Seconds for which the coordinator cannot have given our partitions away."""
        return self._member.lease_until - self._clock.monotonic()


class FixedLease:
    """Nobody takes over what is ours by configuration."""

    session_id = FIXED_SESSION
    #: Of no consequence beside a lease without end; finite, because margins are parts of it.
    session_timeout = 60.0

    def lease_left(self) -> float:
        """For ever."""
        return math.inf

"""Where one partition is read: from its leader, or from the follower that the leader named (KIP-392). No I/O.

Strategy: a leader may answer a FETCH that names our rack with the id of a nearer follower, and without
messages. The follower is asked until its lease ends; then the leader is asked again, and may name another one. What a
follower cannot answer decides nothing: the leader is asked for the messages themselves, without our rack, because it
would name the same follower again, and after a pause that doubles it is asked which follower to read from.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final

from consumerd.base.backoff import Backoff

#: Seconds for which the leader serves the messages itself after a follower failed: the first time, and at most.
PAUSES: Final = (1.0, 60.0)


class ReadReplica:
    """The follower of one partition, if there is one. Times are the clock's seconds."""

    __slots__ = ("_follower", "_pauses", "_until")

    def __init__(self, rng: Random) -> None:
        self._follower: int | None = None
        #: The end of the lease, or of the pause.
        self._until = math.inf
        self._pauses = Backoff(*PAUSES, rng)

    @property
    def failing(self) -> bool:
        """Whether a follower failed since one answered."""
        return self._pauses.attempts > 0

    def follower(self, now: float) -> int | None:
        """Return the broker id of the follower to ask; None: the leader."""
        if not self.stays(now):
            self.forget()
        return self._follower

    def paused(self, now: float) -> bool:
        """Whether the leader is to be asked for the messages themselves."""
        return self._follower is None and now < self._until < math.inf

    def stays(self, now: float) -> bool:
        """Whether the broker to ask is still the one of the last decision."""
        return now < self._until

    def named(self, follower: int, until: float) -> None:
        """Note that the leader named a follower, for a lease that ends at `until`."""
        self._follower, self._until = follower, until

    def answered(self) -> None:
        """Note that the follower answered without an error."""
        self._pauses.reset()

    def failed(self, now: float) -> None:
        """Note that the follower could not be asked, or that its response is to be checked against the leader's."""
        self.pause(now + self._pauses.next())

    def pause(self, until: float) -> None:
        """Ask the leader for the messages themselves until then."""
        self._follower, self._until = None, until

    def forget(self) -> None:
        """Ask the leader which broker to read from."""
        self._follower, self._until = None, math.inf

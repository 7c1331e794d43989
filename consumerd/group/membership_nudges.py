"""When to nudge: JVM members give up 8 s after a trigger and sit idle until the next one; we provide it.

Strategy: two signs. A release so late (M3), or after a trigger of unknown age, that a peer may have stopped waiting.
And partitions of peers that stay without an owner from one reconciliation to the next, which catches all that the
first sign cannot know (our process was stopped and did not notice; a peer lost its watch). A nudge costs each healthy
peer one rebalance of under 0.1 s, so nudges for the second sign, which may be in vain, become rarer and rarer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from consumerd.group.membership_settings import MembershipSettings
    from consumerd.partition import TopicPartition

#: Nudges in vain end up this many reconciliations apart.
_LONGEST_PAUSE = 20


class Nudges:
    """Whether a nudge is due."""

    def __init__(self, settings: MembershipSettings) -> None:
        self._settings = settings
        self.due = False
        self._unowned: AbstractSet[TopicPartition] = frozenset()
        self._not_before = 0.0
        self._pause = settings.reconcile_interval

    def released(self, trigger: float, trigger_known: bool, now: float) -> None:
        """A partition was released because of something that happened at `trigger`."""
        if not trigger_known or now - trigger > self._settings.nudge_after:
            self.due = True

    def surveyed(self, unowned: AbstractSet[TopicPartition], now: float) -> None:
        """These partitions of our peers had no owner at a reconciliation."""
        forsaken = self._unowned & unowned
        self._unowned = unowned
        if not unowned:
            self._pause = self._settings.reconcile_interval
        elif forsaken and now >= self._not_before:
            self.due = True
            self._not_before = now + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE * self._settings.reconcile_interval)

    def taken(self) -> bool:
        """Whether to nudge now; asking clears it."""
        due, self.due = self.due, False
        return due

    def forget(self) -> None:
        """The session is over, and that alone wakes everybody."""
        self.due = False
        self._unowned = frozenset()

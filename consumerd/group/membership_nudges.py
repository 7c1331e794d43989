"""When to nudge: JVM members give up 8 s after a trigger and sit idle until the next one; we provide it.

Strategy: two signs. One is a release so late (M3), or after a trigger of unknown age, that a peer may have stopped
waiting. The other is partitions that are not where they should be from one reconciliation to the next: those of peers
without an owner, ours in the hands of others. That catches what the first sign cannot know: our process was stopped and
did not notice, a peer lost its watch. As long as some of them find their place, a peer is at work (a JVM member claims
hundreds of partitions one after the other, for half a minute), and a nudge would have it begin anew. A nudge costs each
healthy peer one rebalance, so those for the second sign, which may be in vain, become rarer and rarer.
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
        self._misplaced: AbstractSet[TopicPartition] = frozenset()
        self._not_before = 0.0
        self._pause = settings.reconcile_interval

    def released(self, trigger: float, trigger_known: bool, now: float) -> None:
        """A partition was released because of something that happened at `trigger`."""
        if not trigger_known or now - trigger > self._settings.nudge_after:
            self.due = True

    def surveyed(self, misplaced: AbstractSet[TopicPartition], now: float) -> None:
        """These partitions were not where they should be at a reconciliation."""
        still, at_work = self._misplaced & misplaced, bool(self._misplaced - misplaced)
        self._misplaced = misplaced
        if not misplaced:
            self._pause = self._settings.reconcile_interval
        elif still and not at_work and now >= self._not_before:
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
        self._misplaced = frozenset()

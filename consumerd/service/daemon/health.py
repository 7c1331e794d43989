"""Liveness of the daemon and readiness of its member: the answers of /healthz, /readyz and the watchdog.

Strategy: two questions that must not be mixed up. *Alive* is about this process alone: its loop comes round, and the
member's main loop takes what is in its queue. Handlers, brokers and ZooKeeper have no part in it, since a restart
mends none of them. *Ready* is about the work: the session holds, what was assigned flows, no handler hangs or
waits for a full disk, nothing drains, and brokers can be reached. That is not so where a partition's end could not be
looked up, or no broker was registered, for a minute: a broker that restarts is back sooner. A batch hangs when neither
it ends nor its handler marks progress for `hung_after` seconds; that is seen by looking now and then, and costs the
handler nothing. What begins is logged as a warning, for those who have only the log.

Nothing is judged before a look. After the process was frozen (SIGSTOP, a paused machine), its clock has moved on and
nothing else has: a probe may come before the first look, and that look before a turn of the member's main loop. So the
time in which the main loop stands still is counted by looks, each of which counts for two seconds at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import structlog

from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.handlers.counts import HandlerCounts
from consumerd.member.consumer.running_member import RunningMember
from consumerd.service.daemon.lag import LagWatch

log = structlog.get_logger(__name__)

#: Seconds for which brokers may be unreachable before the member is not ready.
UNREACHABLE_AFTER: Final = 60.0
#: Partitions that a line of the log names.
_SHOWN: Final = 20
#: Seconds for which the member's main loop may leave an event in its queue: a turn of it never waits for anything.
STUCK_AFTER: Final = 30.0
#: Seconds that one look counts for at most, however long ago the former one was.
_LONGEST_LOOK: Final = 2.0


class _Progress(NamedTuple):
    """A batch being handled: the time of delivery, its number of handled messages, and the time of the last change."""

    began: float
    handled: int
    moved: float


class Health:
    """The health of one daemon. `look` has to be called about once a second while the loop runs."""

    def __init__(
        self,
        clock: Clock,
        *,
        hung_after: float,
        counts: HandlerCounts | None = None,
        lag: LagWatch | None = None,
    ) -> None:
        self._clock = clock
        self._lag = lag
        self._counts = counts or HandlerCounts()
        #: Seconds without progress of a batch after which its handler counts as hung.
        self.hung_after = hung_after
        self._member: RunningMember[Any] | None = None
        self._turns = -1
        self._looked_at = clock.monotonic()
        #: Seconds for which the main loop has not turned, as far as was seen.
        self._still = 0.0
        self._progress: dict[TopicPartition, _Progress] = {}
        #: The time since which no broker is registered; None while there are some, or that is not known.
        self._without_brokers: float | None = None
        #: The partitions that were logged as hung, and whether the brokers were logged as unreachable.
        self._hung_logged: set[TopicPartition] = set()
        self._unreachable_logged = False

    def watch(self, member: RunningMember[Any]) -> None:
        """Look at this member from now on."""
        self._member = member
        self._progress.clear()

    def look(self) -> None:
        """See what has moved since the last look."""
        member = self._member
        if member is None:
            return
        now = self._clock.monotonic()
        passed, self._looked_at = min(now - self._looked_at, _LONGEST_LOOK), now
        # Before it runs and while it leaves, the main loop waits for handlers, too.
        at_work = member.ready.is_set() and not member.stopping.is_set()
        if member.turns != self._turns or not member.waiting_events or not at_work:
            self._turns, self._still = member.turns, 0.0
        else:
            self._still += passed
        progress = {}
        for partition, batch in member.in_hand().items():
            known = self._progress.get(partition)
            if known is None or known.began != batch.since:
                progress[partition] = _Progress(batch.since, batch.handled, batch.since)
            elif known.handled != batch.handled:
                progress[partition] = _Progress(batch.since, batch.handled, now)
            else:
                progress[partition] = known
        self._progress = progress
        if member.brokers() != 0:
            self._without_brokers = None
        elif self._without_brokers is None:
            self._without_brokers = now
        self._log_hung(member)
        self._log_unreachable(member)

    def _log_hung(self, member: RunningMember[Any]) -> None:
        hung = self.hung
        if new := [partition for partition in hung if partition not in self._hung_logged]:
            log.warning(
                "handler_hung", group=member.settings.group, **_shown(new), seconds=round(self.busy()[new[0]], 1)
            )
        if self._hung_logged and not hung:
            log.info("handler_progressed", group=member.settings.group)
        self._hung_logged = set(hung)

    def _log_unreachable(self, member: RunningMember[Any]) -> None:
        unreachable = self.unreachable
        if unreachable == self._unreachable_logged:
            return
        self._unreachable_logged = unreachable
        group = member.settings.group
        if not unreachable:
            log.info("brokers_reachable", group=group)
        elif partitions := self.unreachable_partitions:
            reason = f"the ends of these partitions could not be looked up for {UNREACHABLE_AFTER:g} s"
            log.warning("brokers_unreachable", group=group, **_shown(partitions), reason=reason)
        else:
            reason = f"no broker has been registered for {UNREACHABLE_AFTER:g} s"
            log.warning("brokers_unreachable", group=group, reason=reason)

    def busy(self) -> dict[TopicPartition, float]:
        """Seconds without progress of each batch being handled, as of the last look."""
        return {partition: self._looked_at - each.moved for partition, each in self._progress.items()}

    @property
    def hung(self) -> list[TopicPartition]:
        """The partitions whose batch hangs."""
        return sorted(partition for partition, seconds in self.busy().items() if seconds >= self.hung_after)

    @property
    def unreachable_partitions(self) -> list[TopicPartition]:
        """The owned partitions whose end could not be looked up for `UNREACHABLE_AFTER`."""
        failing = [] if self._lag is None or self._member is None else self._lag.failing(UNREACHABLE_AFTER)
        owned = {view.partition for view in self._member.views()} if failing and self._member is not None else set()
        return [partition for partition in failing if partition in owned]

    @property
    def unreachable(self) -> bool:
        """Whether no broker is registered, or brokers of owned partitions do not answer, for `UNREACHABLE_AFTER`."""
        without = self._without_brokers
        lasts = without is not None and self._clock.monotonic() - without >= UNREACHABLE_AFTER
        return lasts or bool(self.unreachable_partitions)

    @property
    def sick(self) -> str | None:
        """The reason for which the process is not alive in the sense above, a word without data; None while it is."""
        return "member_stuck" if self._still >= STUCK_AFTER else None

    @property
    def unready(self) -> list[str]:
        """The reasons for which the member is not ready, words without data; empty while it is."""
        member = self._member
        if member is None:
            return ["starting"]
        if member.stopping.is_set():
            return ["stopping"]
        if not member.ready.is_set():
            return ["joining"]
        reasons = []
        if not member.in_session:
            reasons.append("session_lost")
        if not member.settled or any(view.position is None for view in member.views()):
            reasons.append("rebalancing")
        if self.unreachable:
            reasons.append("brokers_unreachable")
        if self._counts.disk_full:
            reasons.append("disk_full")
        if self.hung:
            reasons.append("handler_hung")
        return reasons


def _shown(partitions: Iterable[TopicPartition]) -> dict[str, Any]:
    """The fields of a log event that name partitions, not more than a line has room for."""
    names = [*map(str, partitions)]
    return {"partitions": names[:_SHOWN], **({"more": len(names) - _SHOWN} if len(names) > _SHOWN else {})}

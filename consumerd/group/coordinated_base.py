"""The part that both machines of a membership that a broker coordinates have in common.

Strategy: what does not depend on the group's protocol: the phase, the subscription and the topics that match it,
tickets, pauses after failures, the lease and its loss, and leaving. The machines are `consumerd.group.coordinated` (the
classic protocol) and `consumerd.group.consumer_protocol`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from consumerd.base.partition import TopicPartition
from consumerd.group import coordinated_events as e
from consumerd.group.coordinated_tables import FOLLOWING, MEMBER, Cause, CoordinationSettings, Phase
from consumerd.group.membership_tables import follow
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.subscription import StaticSubscription, Subscription
from consumerd.wire.v08.subscription import NO_GENERATION

NEVER: Final[float] = math.inf
#: Seconds between heartbeats while the group changes, and for how long it counts as changing after each change.
_EAGER: Final = 1.0
_EAGER_FOR: Final = 10.0
#: Seconds before the coordinator's rebalance timeout at which a drain ends, or a quarter of it, if that is less.
_DRAIN_MARGIN: Final = 2.0


class BrokerMember:
    """One member of one group. Not reentrant. Commits of offsets name it."""

    _handlers: ClassVar[dict[type[e.Event], Callable[[Any, Any], None]]]
    _phases: ClassVar[dict[tuple[Phase, Cause], Phase]]

    def __init__(self, subscription: Subscription, settings: CoordinationSettings) -> None:
        self._settings = settings
        self._phase = Phase.OUTSIDE
        self._now = 0.0
        self._actions: list[e.Action] = []
        self._tickets = 0
        #: Tickets of the phase's request, of a heartbeat, and of a topic refresh; 0 for none.
        self._waiting = self._beating = self._reading = 0
        self._stopping = False
        self.member_id = ""
        self.instance_id = settings.instance_id
        #: The group's generation; with the consumer protocol the member's epoch.
        self.generation = NO_GENERATION
        #: Whether this member is the leader, which assigns the partitions of this generation.
        self.leads = False
        self._sessions = 0
        #: A number for the time in which our partitions are ours without a break; never used again. 0 for none.
        self.session_id = 0
        #: Times of sending the last request that succeeded, and the last one after which nothing was to be released.
        self._confirmed_at = self._quiet_at = self._beat_sent_at = 0.0
        #: Until when heartbeats are sent more often.
        self._eager_until = -NEVER
        self._session_timeout = settings.session_timeout
        self._rebalance_timeout = settings.rebalance_timeout
        #: The topics to which we subscribe; for a filter, those that it matched when the topics were last read.
        self._topics: tuple[str, ...] = ()
        self._topics_known = False
        self._leaves = 0
        self._failures = 0
        self._retry_at = self._beat_at = self._refresh_at = 0.0
        self._timer_at = NEVER
        self._subscribe(subscription)

    # ---- State for other rooms --------------------------------------------------------------------------------------

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        """The partitions assigned to us, sorted."""
        raise NotImplementedError

    @property
    def settled(self) -> bool:
        """Whether we are a member and consume our assignment, which may be empty."""
        raise NotImplementedError

    @property
    def lease_until(self) -> float:
        """The time until which our partitions cannot have been given to others, on the clock of `handle`."""
        if not self.session_id:
            return -NEVER
        return min(self._confirmed_at + self._session_timeout, self._quiet_at + self._rebalance_timeout)

    # ---- Events -----------------------------------------------------------------------------------------------------

    def handle(self, event: e.Event, now: float) -> list[e.Action]:
        """Return the actions for `event` at the time `now` (seconds, monotonic)."""
        if self._phase is Phase.LEFT:
            return []
        self._now = now
        self._handlers[type(event)](self, event)
        self._proceed()
        actions, self._actions = self._actions, []
        return actions

    def _proceed(self) -> None:
        """Begin everything that the state allows."""
        raise NotImplementedError

    def _stop(self) -> None:
        """Begin to leave."""
        raise NotImplementedError

    @property
    def _holding(self) -> bool:
        """Whether partitions of ours flow, or are being drained."""
        raise NotImplementedError

    def _end_session(self) -> None:
        """Forget what was ours: nothing is held any more, or it is being abandoned."""
        raise NotImplementedError

    def _leave_epoch(self) -> int | None:
        """The epoch with which a member leaves; None where there is nothing to tell the coordinator."""
        raise NotImplementedError

    def _on_started(self, _: e.Started) -> None:
        """Do nothing: the state already allows the first actions."""

    def _on_timer_fired(self, _: e.TimerFired) -> None:
        self._timer_at = NEVER

    def _on_stop(self, _: e.StopRequested) -> None:
        self._stop()

    def _on_lease_expired(self, event: e.LeaseExpired) -> None:
        # If nothing is held, a heartbeat shows whether we are a member.
        if self._holding and event.session_id == self.session_id and self._phase in MEMBER:
            self._lose()

    def _on_failed(self, event: e.Failed) -> None:
        if event.ticket == self._beating:
            self._beating = 0
            self._beat_at = self._now + self._pause()
            if self._phase is Phase.JOINING:
                self._retry_at = self._beat_at
                self._move(Cause.OUT)
        elif event.ticket == self._reading:
            self._reading = 0
            self._refresh_at = self._retry_at = self._now + self._pause()
        elif event.ticket == self._waiting:
            self._waiting = 0
            self._back_off()
            if self._phase in (Phase.JOINING, Phase.SYNCING):
                self._move(Cause.OUT)
            elif self._phase is Phase.LEAVING and self._leaves >= self._settings.leave_attempts:
                self._move(Cause.GONE)

    def _on_abandoned(self, event: e.Abandoned) -> None:
        if event.ticket == self._waiting and self._phase is Phase.ABANDONING:
            self._move(Cause.EMPTY)

    def _on_left(self, event: e.Left) -> None:
        if event.ticket == self._waiting and self._phase is Phase.LEAVING:
            self._move(Cause.GONE)

    common_handlers: ClassVar[dict[type[e.Event], Callable[[Any, Any], None]]] = {
        e.Started: _on_started,
        e.TimerFired: _on_timer_fired,
        e.StopRequested: _on_stop,
        e.LeaseExpired: _on_lease_expired,
        e.Failed: _on_failed,
        e.Abandoned: _on_abandoned,
        e.Left: _on_left,
    }

    # ---- Parts ------------------------------------------------------------------------------------------------------

    def _move(self, cause: Cause) -> None:
        self._phase = follow(self._phases, self._phase, cause)
        self._waiting = 0
        if self._phase is Phase.LEAVING:
            self._retry_at = self._now

    def _begin_session(self) -> None:
        self._sessions += 1
        self.session_id = self._sessions

    def _lose(self) -> None:
        self._move(Cause.LOST)
        self._end_session()
        self._waiting = self._ticket()
        self._actions.append(e.Abandon(self._waiting))

    def _lose_if_late(self) -> None:
        """Abandon what is held when the lease is over."""
        if self._holding and self._phase in MEMBER and self._now >= self.lease_until:
            self._lose()

    def _proceed_leaving(self) -> None:
        if self._phase is not Phase.LEAVING or self._waiting or self._now < self._retry_at:
            return
        epoch = self._leave_epoch()
        if epoch is None:
            self._move(Cause.GONE)
            return
        self._leaves += 1
        self._waiting = self._ticket()
        self._actions.append(e.Leave(self._waiting, self.member_id, epoch))

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _pause(self) -> float:
        settings = self._settings
        self._failures = min(self._failures + 1, 20)
        return min(settings.retry_interval * 2.0 ** (self._failures - 1), settings.retry_interval_max)

    def _back_off(self) -> None:
        self._retry_at = self._now + self._pause()

    def _refuse(self, code: int) -> None:
        self._actions.append(e.Refuse(code))
        self._stop()

    def _set_timer(self) -> None:
        """Set the timer to the first of the times at which there is something to do; finish a member that has left."""
        if self._phase is Phase.LEFT:
            self._actions.append(e.Finished())
            return
        times: list[float] = []
        if self._phase in MEMBER:
            if not self._beating:
                times.append(self._beat_at)
            if self._holding:
                times.append(self.lease_until)
        if self._phase in FOLLOWING and not self._reading:
            times.append(self._refresh_at)
        if self._phase in (Phase.OUTSIDE, Phase.ASSIGNING, Phase.LEAVING) and not (self._waiting or self._reading):
            times.append(self._retry_at)
        if (at := min(times, default=NEVER)) < NEVER and at != self._timer_at:
            self._timer_at = at
            self._actions.append(e.SetTimer(at))

    def _drain_until(self) -> float:
        """The time at which a drain ends: before the coordinator stops waiting for us."""
        patience = self._rebalance_timeout
        latest = self._quiet_at + patience - min(_DRAIN_MARGIN, patience / 4)
        return max(self._now, min(self._now + self._settings.drain_timeout, latest))

    def _changing(self, interval: float) -> None:
        """Send heartbeats more often for a while, and at least for one interval: the group changes."""
        self._eager_until = self._now + max(_EAGER_FOR, interval + _EAGER)

    def _pace(self, interval: float) -> float:
        """The seconds between two heartbeats now."""
        return min(_EAGER, interval) if self._now < self._eager_until else interval

    def _read_topics(self, topics: tuple[str, ...] | None) -> None:
        if not self._reading:
            self._reading = self._ticket()
            self._actions.append(e.ReadTopics(self._reading, topics))

    def _subscribe(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._topics, self._topics_known = (), False
        if isinstance(subscription, StaticSubscription):
            self._topics, self._topics_known = tuple(sorted(subscription.streams)), True

    def _wanted(self, partitions: Mapping[str, int]) -> tuple[str, ...]:
        """The topics to which we subscribe, sorted, of those that there are."""
        if isinstance(self._subscription, StaticSubscription):
            return self._topics
        return tuple(sorted(topic for topic in partitions if self._matches(topic)))

    def _matches(self, topic: str) -> bool:
        try:
            return self._subscription.streams_for(topic) > 0
        except RegistryError as error:
            self._actions.append(e.Warn(f"topic {topic!r} is ignored: {error}"))
            return False

"""What a member of a group that a broker coordinates begins, as its state allows: the half of the machine that acts.

Strategy: `_proceed` runs after every event and looks at nothing but the state, so that late, doubled and lost events
lead to the same actions. The rules that it keeps are numbered in `consumerd.group.coordinated_tables`; the events are
taken in by `consumerd.group.coordinated`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from consumerd.group import coordinated_events as e
from consumerd.group.coordinated_leader import NO_WISHES
from consumerd.group.coordinated_tables import PHASES, Cause, CoordinationSettings, Phase
from consumerd.group.membership_tables import follow
from consumerd.registry import RegistryError, StaticSubscription
from consumerd.wire.v08.subscription import NO_GENERATION, MemberMetadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consumerd.partition import TopicPartition
    from consumerd.registry import Subscription

#: A drain ends so long before the coordinator's patience does, or a quarter of that patience, if that is less.
_DRAIN_MARGIN: Final = 2.0
#: So many refusals in a row are answered at once: the others wait for us.
_HURRIED: Final = 2
_NEVER: Final[float] = math.inf
_BEATING: Final = frozenset({Phase.STABLE, Phase.DRAINING})


class Steps:
    """The state of a member, and everything that is begun."""

    def __init__(self, subscription: Subscription, settings: CoordinationSettings) -> None:
        self._subscription = subscription
        self._settings = settings
        self._phase = Phase.OUTSIDE
        self._now = 0.0
        self._actions: list[e.Action] = []
        self._tickets = 0
        #: What the phase waits for; a heartbeat; a look at the topics; 0 for nothing.
        self._waiting = self._beating = self._looking = 0
        self._stopping = False
        self.member_id = ""
        self.instance_id = settings.instance_id
        self.generation = NO_GENERATION
        self._sessions = 0
        #: Stands for the generation as long as its partitions are ours; never used again. 0 for none.
        self.session_id = 0
        #: When the last request was sent that was answered well, and the last one that told of no rebalance.
        self._confirmed_at = self._quiet_at = self._sent_at = self._beat_sent_at = 0.0
        self._rebalance_timeout = settings.rebalance_timeout
        #: What we subscribe to; for a filter, what it matched when the topics were last seen.
        self._topics: tuple[str, ...] = ()
        self._topics_known = False
        if isinstance(subscription, StaticSubscription):
            self._topics, self._topics_known = tuple(sorted(subscription.streams)), True
        self._protocol = ""
        self._leads = self._keep = False
        self._wishes = NO_WISHES
        self._dealt: Mapping[str, int] = {}
        self._assigned: tuple[TopicPartition, ...] = ()
        self._flowing = False
        self._leaves = 0
        self._failures = 0
        self._retry_at = self._beat_at = self._look_at = 0.0
        self._timer_at = _NEVER

    # ---- What the states allow --------------------------------------------------------------------------------------

    def _proceed(self) -> None:
        if self._flowing and self._holds and self._now >= self.lease_until:
            self._lose()
        if self._phase is Phase.OUTSIDE:
            self._proceed_outside()
        elif self._phase is Phase.ASSIGNING and not self._waiting and self._now >= self._retry_at:
            self._waiting = self._ticket()
            self._actions.append(e.LookAtTopics(self._waiting, self._wishes.topics))
        elif self._phase is Phase.STABLE:
            self._proceed_stable()
        if self._phase in _BEATING:
            self._beat()
        if self._phase is Phase.LEAVING:
            self._proceed_leaving()
        self._set_timer()

    def _proceed_outside(self) -> None:
        if self._stopping:
            self._move(Cause.STOP)
        elif self._now < self._retry_at:
            return
        elif not self._topics_known:
            self._look(None)
        else:
            self._move(Cause.JOIN)
            self._waiting = self._ticket()
            metadata = MemberMetadata(self._topics).encode()
            protocols = tuple((name, metadata) for name in self._settings.assignors)
            self._actions.append(e.Join(self._waiting, self.member_id, protocols))

    def _proceed_stable(self) -> None:
        if not self._flowing:
            if self.lease_until - self._now > self._settings.session_timeout / 2:  # rule 5
                self._flowing = True
                self._actions.append(e.StartConsuming(self._assigned, self.session_id))
            else:
                self._beat_at = min(self._beat_at, self._now) if not self._failures else self._beat_at
        if self._now >= self._look_at:
            filtered = not isinstance(self._subscription, StaticSubscription)
            others = self._wishes.topics if self._leads else ()
            self._look(None if filtered else tuple(sorted({*self._topics, *others})))

    def _proceed_leaving(self) -> None:
        if self._waiting or self._now < self._retry_at:
            return
        # A static member's place is kept; a member without an id never was one.
        if self.instance_id is not None or not self.member_id:
            self._move(Cause.GONE)
            return
        self._leaves += 1
        self._waiting = self._ticket()
        self._actions.append(e.Leave(self._waiting, self.member_id))

    def _beat(self) -> None:
        if not self._beating and self._now >= self._beat_at:
            self._beating = self._ticket()
            self._beat_sent_at = self._now
            self._actions.append(e.Heartbeat(self._beating, self.generation, self.member_id))

    def _set_timer(self) -> None:
        times = [_NEVER]
        beats = self._phase in _BEATING
        if beats and not self._beating:
            times.append(self._beat_at)
        if beats and self._flowing:
            times.append(self.lease_until)
        if self._phase is Phase.STABLE and not self._looking:
            times.append(self._look_at)
        if self._phase in (Phase.OUTSIDE, Phase.ASSIGNING, Phase.LEAVING) and not (self._waiting or self._looking):
            times.append(self._retry_at)
        if self._phase is Phase.LEFT:
            self._actions.append(e.Finished())
        elif (at := min(times)) < _NEVER and at != self._timer_at:
            self._timer_at = at
            self._actions.append(e.SetTimer(at))

    @property
    def lease_until(self) -> float:
        """Until when nobody else can have been given what is ours (rule 3), on the clock of `handle`."""
        if not self.session_id:
            return -_NEVER
        return min(self._confirmed_at + self._settings.session_timeout, self._quiet_at + self._rebalance_timeout)

    # ---- Parts ------------------------------------------------------------------------------------------------------

    @property
    def _holds(self) -> bool:
        return self._phase in _BEATING

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _move(self, cause: Cause) -> None:
        self._phase = follow(PHASES, self._phase, cause)
        self._waiting = 0
        if self._phase is Phase.OUTSIDE and self._stopping:
            self._retry_at = self._now
        if self._phase is Phase.LEAVING:
            self._retry_at = self._now

    def _well(self) -> None:
        self._failures = 0

    def _pause(self) -> float:
        settings = self._settings
        self._failures = min(self._failures + 1, 20)
        return min(settings.retry_interval * 2.0 ** (self._failures - 1), settings.retry_interval_max)

    def _trouble(self) -> None:
        self._retry_at = self._now + self._pause()

    def _hurry(self) -> None:
        """The others wait for us, so the first attempts come at once."""
        if self._failures <= _HURRIED:
            self._retry_at = self._now

    def _sync(self, assignments: tuple[tuple[str, bytes], ...]) -> None:
        self._waiting = self._ticket()
        self._sent_at = self._now
        self._actions.append(e.Sync(self._waiting, self.generation, self.member_id, self._protocol, assignments))

    def _look(self, topics: tuple[str, ...] | None) -> None:
        if not self._looking:
            self._looking = self._ticket()
            self._actions.append(e.LookAtTopics(self._looking, topics))

    def _compare(self, partitions: Mapping[str, int]) -> None:
        """Rule 6."""
        wanted = self._topics
        if not isinstance(self._subscription, StaticSubscription):
            wanted = tuple(sorted(topic for topic in partitions if self._matches(topic)))
        known, self._topics_known = self._topics_known, True
        changed = wanted != self._topics
        self._topics = wanted
        if self._phase is Phase.STABLE and known:
            dealt = {topic: count for topic in self._wishes.topics if (count := partitions.get(topic))}
            if changed or (self._leads and dealt != self._dealt):
                self._drain(Cause.REJOIN)

    def _matches(self, topic: str) -> bool:
        try:
            return self._subscription.streams_for(topic) > 0
        except RegistryError as error:
            self._actions.append(e.Warn(f"the topic {topic!r} is left out: {error}"))
            return False

    def _drain(self, cause: Cause) -> None:
        """Rule 2."""
        patience = self._rebalance_timeout
        latest = self._quiet_at + patience - min(_DRAIN_MARGIN, patience / 4)
        self._move(cause)
        self._waiting = self._ticket()
        deadline = max(self._now, min(self._now + self._settings.drain_timeout, latest))
        self._actions.append(e.Drain(self._waiting, deadline))

    def _lose(self) -> None:
        self._move(Cause.LOST)
        self._give_up_generation()
        self._waiting = self._ticket()
        self._actions.append(e.Abandon(self._waiting))

    def _give_up_generation(self) -> None:
        self.session_id = 0
        self._assigned = ()
        self._flowing = False
        self._beating = self._looking = 0

    def _refuse(self, code: int) -> None:
        self._actions.append(e.Refuse(code))
        self._stop()

    def _stop(self) -> None:
        self._stopping = True
        if self._phase is Phase.STABLE:
            self._drain(Cause.STOP)
        elif self._phase in (Phase.JOINING, Phase.ASSIGNING, Phase.SYNCING):
            if self._waiting:
                self._actions.append(e.Forget(self._waiting))
            self._move(Cause.STOP)

"""The machine of a membership that a broker coordinates: what the member does next, given what happened and the time.

Strategy: pure, as `consumerd.group.membership`: `handle(event, now)` returns actions, whoever runs it performs them and
sends the answers back (`consumerd.group.coordinated_events`). States, table and theory of operation are in
`consumerd.group.coordinated_tables`. A handler per event, here, notes what changed; then everything that the state
allows is begun (`consumerd.group.coordinated_steps`).

Source: spec 002, group membership API; KIP-62, KIP-345 and KIP-394 for later brokers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Final

from consumerd.group import coordinated_events as e
from consumerd.group.coordinated_leader import NO_WISHES, deal_shares, read_wishes
from consumerd.group.coordinated_steps import Steps
from consumerd.group.coordinated_tables import Cause, Phase
from consumerd.partition import TopicPartition
from consumerd.wire.errors import FrameError
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.subscription import decode_assignment

if TYPE_CHECKING:
    from collections.abc import Callable

#: Who is told so is a member no more.
_OUT: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})


class CoordinatedMember(Steps):
    """One member of one group. Not reentrant. It is the `Membership` of `consumerd.offsets.KafkaOffsetStore`, too."""

    # ---- What others may see ----------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """Where the member is."""
        return self._phase

    @property
    def leads(self) -> bool:
        """Whether this member deals the partitions of the present generation."""
        return self._leads

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        """What is ours in this generation, sorted."""
        return self._assigned

    @property
    def settled(self) -> bool:
        """Whether we are a member and consume what is ours, be it nothing."""
        return self._phase is Phase.STABLE and self._flowing

    # ---- Events: note what changed ----------------------------------------------------------------------------------

    def handle(self, event: e.Event, now: float) -> list[e.Action]:
        """What to do about `event` at the time `now` (seconds, monotonic)."""
        if self._phase is Phase.LEFT:
            return []
        self._now = now
        self._handlers[type(event)](self, event)
        self._proceed()
        actions, self._actions = self._actions, []
        return actions

    def _on_started(self, _: e.Started) -> None:
        """Nothing changed: what the state allows begins."""

    def _on_timer_fired(self, _: e.TimerFired) -> None:
        self._timer_at = math.inf

    def _on_stop(self, _: e.StopRequested) -> None:
        self._stop()

    def _on_lease_expired(self, _: e.LeaseExpired) -> None:
        if self._flowing:  # else nothing is held, and a heartbeat tells whether we are a member (rule 5)
            self._lose()

    def _on_ownership_lost(self, event: e.OwnershipLost) -> None:
        if self._holds and event.partition in self._assigned:
            self._lose()
            self._retry_at = self._now + self._settings.retry_interval

    def _on_topics_seen(self, event: e.TopicsSeen) -> None:
        if self._phase is Phase.ASSIGNING and event.ticket == self._waiting:
            self._well()
            self._dealt = {topic: count for topic in self._wishes.topics if (count := event.partitions.get(topic))}
            self._move(Cause.DEALT)
            self._sync(() if self._keep else deal_shares(self._protocol, self._dealt, self._wishes))
        elif event.ticket == self._looking:
            self._looking = 0
            self._look_at = self._now + self._settings.look_interval
            self._well()
            self._compare(event.partitions)

    def _on_joined(self, event: e.Joined) -> None:
        if self._phase is not Phase.JOINING or event.ticket != self._waiting:
            return
        if event.protocol not in self._settings.assignors:
            self._refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            return
        self._well()
        self.member_id, self.generation = event.member_id, event.generation
        self._protocol, self._rebalance_timeout = event.protocol, event.rebalance_timeout
        self._leads, self._keep = event.leads, event.keep_assignment
        self._wishes = NO_WISHES
        if event.leads:
            self._wishes = read_wishes(event.members)
            self._actions += map(e.Warn, self._wishes.warnings)
            self._move(Cause.LEAD)
        else:
            self._move(Cause.FOLLOW)
            self._sync(())

    def _on_synced(self, event: e.Synced) -> None:
        if self._phase is not Phase.SYNCING or event.ticket != self._waiting:
            return
        try:
            assignment = decode_assignment(event.assignment)
        except FrameError as error:
            self._actions.append(e.Warn(f"the leader of the group deals what cannot be read: {error}"))
            self._move(Cause.OUT)
            self._trouble()
            return
        self._well()
        self._move(Cause.SYNCED)
        self._assigned = self._checked(assignment.partitions)
        self._sessions += 1
        self.session_id = self._sessions
        self._confirmed_at = self._quiet_at = self._sent_at
        self._beat_at = self._now  # the wait for the share has used up a part of the lease
        self._look_at = self._now + self._settings.look_interval
        self._flowing = False

    def _checked(self, dealt: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[TopicPartition, ...]:
        mine = {TopicPartition.numbered(topic, number) for topic, numbers in dealt for number in numbers}
        strange = {partition.topic for partition in mine if partition.topic not in self._topics}
        if strange:
            self._actions.append(e.Warn(f"the leader deals topics that were not asked for: {sorted(strange)}"))
        return tuple(sorted(each for each in mine if each.topic not in strange and each.partition >= 0))

    def _on_confirmed(self, event: e.Confirmed) -> None:
        if event.ticket == self._beating:
            self._beating = 0
            self._well()
            self._confirmed_at = self._quiet_at = self._beat_sent_at
            self._beat_at = self._beat_sent_at + self._settings.heartbeat_interval

    def _on_refused(self, event: e.Refused) -> None:
        if event.ticket == self._beating:
            self._beating = 0
            self._on_beat_refused(event.code)
        elif event.ticket == self._waiting:
            if self._phase is Phase.LEAVING:
                self._move(Cause.GONE)
                return
            self._on_step_refused(event)

    def _on_beat_refused(self, code: int) -> None:
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._well()
            self._confirmed_at = self._beat_sent_at
            self._beat_at = self._beat_sent_at + self._settings.heartbeat_interval
            if self._phase is Phase.STABLE:
                self._drain(Cause.REJOIN)
        elif code in _OUT:
            self._not_known(code)
            self._lose()
        else:
            if code == ErrorCode.FENCED_INSTANCE_ID:
                self._lose()
            self._refuse(code)

    def _on_step_refused(self, event: e.Refused) -> None:
        """JoinGroup or SyncGroup."""
        code = event.code
        if code == ErrorCode.MEMBER_ID_REQUIRED and event.member_id and event.member_id != self.member_id:
            self.member_id = event.member_id
        elif code in _OUT or code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._not_known(code)
            self._trouble()
            if self._phase is Phase.SYNCING:
                self._hurry()
        else:
            self._refuse(code)
            return
        self._move(Cause.OUT)

    def _not_known(self, code: int) -> None:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    def _on_failed(self, event: e.Failed) -> None:
        if event.ticket == self._beating:
            self._beating = 0
            self._beat_at = self._now + self._pause()
        elif event.ticket == self._looking:
            self._looking = 0
            self._look_at = self._retry_at = self._now + self._pause()
        elif event.ticket == self._waiting:
            self._waiting = 0
            self._trouble()
            if self._phase in (Phase.JOINING, Phase.SYNCING):
                self._move(Cause.OUT)
            elif self._phase is Phase.LEAVING and self._leaves >= self._settings.leave_attempts:
                self._move(Cause.GONE)

    def _on_empty(self, event: e.Drained | e.Abandoned) -> None:
        if event.ticket == self._waiting and self._phase in (Phase.DRAINING, Phase.ABANDONING):
            self._give_up_generation()
            self._move(Cause.EMPTY)

    def _on_left(self, event: e.Left) -> None:
        if event.ticket == self._waiting and self._phase is Phase.LEAVING:
            self._move(Cause.GONE)

    _handlers: ClassVar[dict[type[e.Event], Callable[[Any, Any], None]]] = {
        e.Started: _on_started,
        e.TimerFired: _on_timer_fired,
        e.StopRequested: _on_stop,
        e.LeaseExpired: _on_lease_expired,
        e.OwnershipLost: _on_ownership_lost,
        e.TopicsSeen: _on_topics_seen,
        e.Joined: _on_joined,
        e.Synced: _on_synced,
        e.Confirmed: _on_confirmed,
        e.Refused: _on_refused,
        e.Failed: _on_failed,
        e.Drained: _on_empty,
        e.Abandoned: _on_empty,
        e.Left: _on_left,
    }

"""The membership machine: what a member of a consumer group does next, given what happened and the time.

Strategy: pure. `Member.handle(event, now)` returns actions; whoever runs it performs them and sends their answers back
as events (`consumerd.group.events`). The states, their tables and the theory of operation are in
`consumerd.group.membership_tables`. Each event has a handler here, which only notes what changed; then everything that
the states allow is begun (`consumerd.group.membership_steering`).

Sources: spec 001 (registration and rebalancing algorithms); golden notes, 4 and 5; the five rules measured beside JVM
members (notes on mixed groups).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from consumerd.group import events as e
from consumerd.group.membership_looks import Look
from consumerd.group.membership_steering import Steering
from consumerd.group.membership_tables import LINK, PHASE, Hold, HoldCause, Link, LinkCause, Phase, PhaseCause, follow
from consumerd.registry import DialectError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from consumerd.partition import TopicPartition

_ANSWERS: dict[type[e.Claimed | e.Drained | e.Released | e.Abandoned], HoldCause] = {
    e.Claimed: HoldCause.CLAIMED,
    e.Drained: HoldCause.DRAINED,
    e.Released: HoldCause.RELEASED,
    e.Abandoned: HoldCause.ABANDONED,
}


class Member(Steering):
    """One member of one group. Not reentrant: `handle` is called with one event after the other."""

    # ---- What others may see ----------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """The place in the group."""
        return self._phase

    @property
    def link(self) -> Link:
        """The state of the session."""
        return self._link

    @property
    def target(self) -> Mapping[TopicPartition, int]:
        """What is to be ours as far as decided: partition -> stream."""
        return self._target.own

    @property
    def holds(self) -> dict[TopicPartition, Hold]:
        """Every partition that we have to do with, and how far it is."""
        return {holding.partition: holding.state for holding in self._holdings}

    @property
    def settled(self) -> bool:
        """Whether we are a member and consume exactly what is ours, be it nothing: readiness."""
        return (
            self._phase is Phase.MEMBER
            and self._link is Link.UP
            and self._decided
            and len(self._holdings) == self._holdings.count(Hold.CONSUMING) == len(self._target.own)
        )

    # ---- Events: note what changed ----------------------------------------------------------------------------------

    def handle(self, event: e.Event, now: float) -> list[e.Action]:
        """What to do about `event` at the time `now` (seconds, monotonic). See `consumerd.group.events`."""
        if self._phase is Phase.LEFT:
            return []
        self._now = now
        self._handlers[type(event)](self, event)
        self._proceed()
        actions, self._actions = self._actions, []
        return actions

    def _on_session_started(self, event: e.SessionStarted) -> None:
        if self._link is not Link.NONE:
            self._lose_session()
        self._link = follow(LINK, self._link, LinkCause.STARTED)
        self._session_id = event.session_id
        self._looks.want(Look(self._now))

    def _on_session_suspended(self, _: e.SessionSuspended) -> None:
        self._link = follow(LINK, self._link, LinkCause.SUSPENDED)
        self._looks.cancel()
        if self._link is Link.SUSPENDED and not self._paused:
            self._paused = True
            self._actions.append(e.PauseHandover())

    def _on_session_resumed(self, _: e.SessionResumed) -> None:
        self._link = follow(LINK, self._link, LinkCause.RESUMED)
        self._hold_until = None
        self._looks.want(Look(self._now, trigger_known=False))
        self._touched += self._holdings
        if self._phase is Phase.LEAVING:
            self._resume_handover()

    def _on_lease_expired(self, _: e.LeaseExpired) -> None:
        for holding in self._holdings:
            self._lose(holding)
        self._looks.want(Look(self._now, trigger_known=False))

    def _on_session_expired(self, _: e.SessionExpired) -> None:
        self._lose_session()

    def _on_triggered(self, _: e.Triggered) -> None:
        self._looks.want(Look(self._now))

    def _on_ownership_lost(self, event: e.OwnershipLost) -> None:
        holding = self._holdings.get(event.partition)
        if holding is not None:
            self._lose(holding)
        self._looks.want(Look(self._now))

    def _on_timer_fired(self, _: e.TimerFired) -> None:
        self._timer_at = None

    def _on_stop_requested(self, _: e.StopRequested) -> None:
        self._leave()

    def _on_snapshot_taken(self, event: e.SnapshotTaken) -> None:
        ended = self._looks.end(event.ticket, self._now)
        if ended is None:
            return
        snapshot = event.snapshot
        listed = snapshot.own_id_session == self._session_id
        try:
            target = self._formula.apply(snapshot)
        except DialectError as error:
            self._actions.append(e.RefuseGroup(str(error)))
            self._leave()
            return
        self._actions += map(e.Warn, self._formula.take_warnings())
        for partition, claim in ended.verified.items():
            holding = self._holdings.get(partition)
            ours = snapshot.owner_sessions.get(partition) == self._session_id
            if holding is not None and holding.claim == claim and not ours:
                self._lose(holding)
        self._resume_handover()
        self._phase = follow(PHASE, self._phase, PhaseCause.LISTED if listed else PhaseCause.UNLISTED)
        self._listed = True
        if listed:
            self._decide(target, ended.look)
            if snapshot.claimed is not None:
                self._survey(snapshot.claimed)
        else:
            self._registering = self._ticket()
            self._actions.append(e.Register(self._registering, self._session_id))

    def _on_registered(self, event: e.Registered) -> None:
        if event.ticket == self._registering:
            self._registering = 0
            self._phase = follow(PHASE, self._phase, PhaseCause.REGISTERED)
            self._looks.want(Look(self._now))

    def _on_registration_blocked(self, event: e.RegistrationBlocked) -> None:
        if event.ticket == self._registering:
            self._registering = 0
            self._phase = follow(PHASE, self._phase, PhaseCause.NOT_REGISTERED)
            self._looks.retry(self._now)

    def _on_unregistered(self, event: e.Unregistered) -> None:
        if event.ticket == self._unregistering:
            self._unregistering = 0
            self._listed = False

    def _on_failed(self, event: e.Failed) -> None:
        holding = self._holdings.waiting_for(event.ticket)
        if holding is not None:
            self._holdings.move(holding, HoldCause.FAILED)
            self._looks.want(Look(self._now))
        elif event.ticket == self._registering:
            self._on_registration_blocked(e.RegistrationBlocked(event.ticket))
        elif event.ticket == self._unregistering:
            self._unregistering = 0
        elif not self._looks.fail(event.ticket):
            return
        self._hold_until = self._now + self.settings.retry_interval

    def _on_claim_blocked(self, event: e.ClaimBlocked) -> None:
        holding = self._holdings.waiting_for(event.ticket)
        if holding is not None:
            self._holdings.move(holding, HoldCause.BLOCKED)
            self._looks.retry(self._now)

    def _on_answer(self, event: e.Claimed | e.Drained | e.Released | e.Abandoned) -> None:
        holding = self._holdings.waiting_for(event.ticket)
        if holding is None:
            return
        self._holdings.move(holding, _ANSWERS[type(event)])
        self._touched.append(holding)
        if isinstance(event, e.Released) and holding.reason is not None:
            self._nudges.released(holding.reason.trigger, holding.reason.trigger_known, self._now)

    _handlers: ClassVar[dict[type[e.Event], Callable[[Any, Any], None]]] = {
        e.SessionStarted: _on_session_started,
        e.SessionSuspended: _on_session_suspended,
        e.SessionResumed: _on_session_resumed,
        e.LeaseExpired: _on_lease_expired,
        e.SessionExpired: _on_session_expired,
        e.Triggered: _on_triggered,
        e.OwnershipLost: _on_ownership_lost,
        e.TimerFired: _on_timer_fired,
        e.StopRequested: _on_stop_requested,
        e.Failed: _on_failed,
        e.SnapshotTaken: _on_snapshot_taken,
        e.Registered: _on_registered,
        e.RegistrationBlocked: _on_registration_blocked,
        e.Unregistered: _on_unregistered,
        e.Claimed: _on_answer,
        e.ClaimBlocked: _on_claim_blocked,
        e.Drained: _on_answer,
        e.Released: _on_answer,
        e.Abandoned: _on_answer,
    }

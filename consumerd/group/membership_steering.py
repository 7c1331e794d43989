"""What a member begins to do: the second half of the membership machine.

Strategy: facts in, actions out, in one pass after every event (`_proceed`). Each kind of action is begun in exactly one
place here. The rules are numbered in the theory of operation (`consumerd.group.membership_tables`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.group import events as e
from consumerd.group.membership_holdings import Holding, Holdings
from consumerd.group.membership_looks import Look, Looks
from consumerd.group.membership_nudges import Nudges
from consumerd.group.membership_settings import MembershipSettings
from consumerd.group.membership_tables import LINK, PHASE, Hold, HoldCause, Link, LinkCause, Phase, PhaseCause, follow
from consumerd.group.membership_target import Formula, Target
from consumerd.group.rules import V07Rules
from consumerd.registry import StaticSubscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.group.rules import GroupRules
    from consumerd.partition import TopicPartition
    from consumerd.registry import Subscription


class Steering:
    """The facts about one member, and what follows from them. `rules`: the group's dialect, by default that of 0.7."""

    def __init__(
        self,
        group: str,
        consumer_id: str,
        subscription: Subscription,
        settings: MembershipSettings | None = None,
        rules: GroupRules | None = None,
    ) -> None:
        self.group = group
        self.consumer_id = consumer_id
        self.subscription = subscription
        self.settings = settings or MembershipSettings()
        self._formula = Formula(consumer_id, subscription, rules or V07Rules())
        self._topics = frozenset(subscription.streams) if isinstance(subscription, StaticSubscription) else None
        self._looks = Looks(self.settings)
        self._nudges = Nudges(self.settings)
        self._holdings = Holdings()
        self._link = Link.NONE
        self._phase = Phase.OUTSIDE
        self._session_id = 0
        # What is decided, why, and what of it is still to be claimed; nothing before the first snapshot of a session.
        self._decided = False
        self._target = Target()
        self._reason = Look(0.0)
        self._unclaimed: dict[TopicPartition, None] = {}
        # Tickets of what is under way, 0 for nothing.
        self._last_ticket = 0
        self._registering = 0
        self._unregistering = 0
        #: Whether an id node of this session may stand.
        self._listed = False
        self._paused = False
        #: After a failure, ZooKeeper is left alone until then.
        self._hold_until: float | None = None
        self._timer_at: float | None = None
        # Of the event being handled.
        self._now = 0.0
        self._actions: list[e.Action] = []
        self._touched: list[Holding] = []
        self._fresh = False

    # ---- Changes of more than one fact ------------------------------------------------------------------------------

    def _decide(self, target: Target, reason: Look) -> None:
        """From now on this is the aim."""
        self._decided = True
        self._target = target
        self._reason = reason
        self._fresh = True
        self._touched += self._holdings
        self._unclaimed = {p: None for p in target.own if self._holdings.get(p) is None}

    def _leave(self) -> None:
        self._phase = follow(PHASE, self._phase, PhaseCause.STOP)
        self._looks.forget()
        self._decide(Target(), Look(self._now))

    def _lose(self, holding: Holding) -> None:
        """Whatever is done with the partition ends at once: its owner node is not ours any more, or may not be."""
        if holding.state in (Hold.CONSUMING, Hold.DRAINING):
            self._abandon(holding, HoldCause.LOST)
        elif holding.state is Hold.OWNED:
            self._holdings.move(holding, HoldCause.LOST)

    def _lose_session(self) -> None:
        """All nodes of the session are gone with it."""
        self._link = follow(LINK, self._link, LinkCause.EXPIRED)
        self._phase = follow(PHASE, self._phase, PhaseCause.SESSION_LOST)
        for holding in self._holdings:
            if holding.state in (Hold.CONSUMING, Hold.DRAINING):
                self._abandon(holding, HoldCause.SESSION_LOST)
            elif holding.state is not Hold.ORPHANED:
                self._holdings.move(holding, HoldCause.SESSION_LOST, holding.ticket)
        self._registering = self._unregistering = 0
        self._listed = False
        self._decided = self._phase is Phase.LEAVING
        self._target = Target()
        self._unclaimed = {}
        self._hold_until = None
        self._looks.forget()
        self._nudges.forget()

    def _resume_handover(self) -> None:
        if self._paused:
            self._paused = False
            self._actions.append(e.ResumeHandover())

    def _survey(self, claimed: frozenset[TopicPartition]) -> None:
        """Look for partitions that are not where they should be, and look again soon if there are any."""
        astray = (self._target.others - claimed) | self._unclaimed.keys()
        self._nudges.surveyed(astray, self._now)
        if astray:
            self._looks.reconcile_within(self._now, self.settings.patience)

    # ---- Actions: begin all that is allowed now ---------------------------------------------------------------------

    def _proceed(self) -> None:
        if self._hold_until is not None and self._now >= self._hold_until:
            self._hold_until = None
            self._touched += self._holdings
        self._looks.tick(self._now)
        touched, self._touched = self._touched, []
        for holding in touched:
            self._steer(holding)
        if self._may_write and self._phase is Phase.MEMBER and not self._holdings.count(Hold.DRAINING, Hold.RELEASING):
            if self._decided and (self._fresh or self._looks.idle):
                self._claim()
            if self._nudges.taken():
                self._actions.append(e.Nudge(self._session_id))
        self._fresh = False
        if self._may_write and self._phase in (Phase.OUTSIDE, Phase.MEMBER):
            self._look()
        if self._phase is Phase.LEAVING:
            self._finish()
        self._set_timer()

    @property
    def _may_write(self) -> bool:
        return self._link is Link.UP and self._hold_until is None

    def _ticket(self) -> int:
        self._last_ticket += 1
        return self._last_ticket

    def _begin(self, holding: Holding, cause: HoldCause, action: Callable[[int], e.Action]) -> None:
        ticket = self._ticket()
        self._holdings.move(holding, cause, ticket)
        self._actions.append(action(ticket))

    def _steer(self, holding: Holding) -> None:
        """Take a partition one step towards the target, if something is to be done and nothing under way."""
        if not self._decided:
            return
        partition = holding.partition
        stream = self._target.own.get(partition)
        wanted = stream == holding.stream
        match holding.state:
            case Hold.FREE | Hold.DOUBTFUL if stream is not None and (wanted or holding.state is Hold.FREE):
                self._unclaimed[partition] = None
            case Hold.CONSUMING if not wanted:
                self._drain(holding)
            case Hold.OWNED if wanted and self._link is Link.UP and self._phase is Phase.MEMBER:
                holding.reason = None
                self._holdings.move(holding, HoldCause.START)
                self._actions.append(e.StartConsuming(partition, self._session_id, holding.stream))
            case Hold.OWNED | Hold.DOUBTFUL if not wanted and self._may_write:
                holding.reason = holding.reason or self._reason
                self._begin(holding, HoldCause.RELEASE, lambda ticket: e.Release(partition, ticket, self._session_id))
            case _:
                pass

    def _abandon(self, holding: Holding, cause: HoldCause) -> None:
        self._begin(holding, cause, lambda ticket: e.Abandon(holding.partition, ticket))

    def _drain(self, holding: Holding) -> None:
        holding.reason = self._reason
        deadline = self._reason.trigger + self.settings.drain_timeout
        self._begin(holding, HoldCause.DRAIN, lambda ticket: e.Drain(holding.partition, ticket, deadline))

    def _claim(self) -> None:
        """Claim whatever is to be ours and is not, from what was just seen."""
        unclaimed, self._unclaimed = self._unclaimed, {}
        for partition in unclaimed:
            stream = self._target.own.get(partition)
            if stream is None:
                continue
            holding = self._holdings.get(partition) or self._holdings.new(partition, stream)
            if holding.state is Hold.FREE or (holding.state is Hold.DOUBTFUL and holding.stream == stream):
                holding.claim = self._ticket()
                self._holdings.move(holding, HoldCause.CLAIM, holding.claim)
                self._actions.append(e.Claim(partition, holding.claim, self._session_id, stream))

    def _look(self) -> None:
        wanted = self._looks.wanted
        if wanted is None or self._looks.under_way is not None:
            return
        owned = (Hold.CONSUMING, Hold.DRAINING, Hold.OWNED) if wanted.verify else ()
        verified = {holding.partition: holding.claim for holding in self._holdings if holding.state in owned}
        ticket = self._ticket()
        self._looks.begin(ticket, verified)
        self._actions.append(e.TakeSnapshot(ticket, self._session_id, self._topics, frozenset(verified), wanted.survey))

    def _finish(self) -> None:
        """Unregister when nothing is held any more, then be gone."""
        if len(self._holdings) or self._registering or self._unregistering:
            return
        if self._listed and self._link is not Link.NONE:
            if self._may_write:
                self._unregistering = self._ticket()
                self._actions.append(e.Unregister(self._unregistering, self._session_id))
            return
        self._phase = follow(PHASE, self._phase, PhaseCause.GONE)
        self._actions.append(e.Finished())

    def _set_timer(self) -> None:
        """One timer, for whatever comes first. One that is set too early is left alone."""
        if self._link is not Link.UP or self._phase is Phase.LEFT:
            return
        times = [at for at in (self._hold_until, self._looks.next_time) if at is not None]
        if times and (self._timer_at is None or min(times) < self._timer_at):
            self._timer_at = min(times)
            self._actions.append(e.SetTimer(self._timer_at))

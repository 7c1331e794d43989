"""The membership machine: from an event and the time to the next actions of a member of a consumer group.

Strategy: pure. `ZooKeeperMember.handle(event, now)` returns actions; its runner performs them and sends their answers
back as events (`consumerd.group.events`). The states, their tables and the theory of operation are in
`consumerd.group.membership_tables`. Each event has a handler here, which only notes what changed; then, in one pass
(`_proceed`), everything that the states allow is begun: each kind of action in exactly one place, all partitions for
which it is due in one action.

Drains end a while after their trigger, since JVM peers look for what they are waiting for until 6 s after the trigger
that they saw. While snapshots cannot be taken a trigger grows old, and its deadline may be over before anything is
drained. Whether peers saw it when we did is not known then: they did if only we were cut off, and did not if ZooKeeper
was unavailable to all. So the earlier deadline holds as long as it lies ahead. Once it is over, stopping handlers at
once gains little: peers that saw the trigger with us have made their last attempt, or are about to, and the nudge that
follows a late release wakes them; peers that could not see it saw it hardly earlier than we could take a snapshot. From
the first snapshot that shows it the drain then has its full time: it is late at most, and loses nothing.

Sources: spec 001 (registration and rebalancing algorithms); golden notes, 4 and 5; the five rules measured beside JVM
members (notes on mixed groups).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar

from consumerd.base.partition import TopicPartition
from consumerd.group import events as e
from consumerd.group.membership_holdings import Holding, Holdings
from consumerd.group.membership_snapshots import Jitter, SnapshotRequest, SnapshotSchedule
from consumerd.group.membership_tables import (
    LINK,
    PHASE,
    Hold,
    HoldCause,
    Link,
    LinkCause,
    MembershipSettings,
    Phase,
    PhaseCause,
    follow,
)
from consumerd.group.rules import GroupRules, V07Rules
from consumerd.group.target_assignment import TargetAssignment, TargetAssignmentBuilder
from consumerd.wire.registry.errors import DialectError
from consumerd.wire.registry.subscription import StaticSubscription, Subscription

#: Longest interval between nudges that have no effect, in reconciliations.
_LONGEST_PAUSE = 20


class _Nudges:
    """Whether a nudge is due: JVM members give up 8 s after a trigger and sit idle until the next one; we provide it.

    There are two signs. One is a release so late (M3), or after a trigger of unknown age, that a peer may have stopped
    waiting. The other is partitions that are not where they should be from one reconciliation to the next: those of
    peers without an owner, ours with another owner. That catches cases without the first sign: our process was
    stopped and did not notice, a peer lost its watch. As long as some of them find their place, a peer is at work (a
    JVM member claims hundreds of partitions one after the other, for half a minute), and a nudge would restart it. A
    nudge costs each healthy peer one rebalance, so those for the second sign, which may be in vain, become rarer and
    rarer.
    """

    def __init__(self, settings: MembershipSettings) -> None:
        self._settings = settings
        self.due = False
        self._misplaced: AbstractSet[TopicPartition] = frozenset()
        self._not_before = 0.0
        self._pause = settings.reconcile_interval

    def released(self, trigger: float, trigger_known: bool, now: float) -> None:
        """Note that a partition was released because of an event at `trigger`."""
        if not trigger_known or now - trigger > self._settings.nudge_after:
            self.due = True

    def owners_listed(self, misplaced: AbstractSet[TopicPartition], now: float) -> None:
        """Note the partitions that did not have their expected owner at a reconciliation."""
        still, at_work = self._misplaced & misplaced, bool(self._misplaced - misplaced)
        self._misplaced = misplaced
        if not misplaced:
            self._pause = self._settings.reconcile_interval
        elif still and not at_work and now >= self._not_before:
            self.due = True
            self._not_before = now + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE * self._settings.reconcile_interval)

    def taken(self) -> bool:
        """Return whether to nudge now, and clear the request."""
        due, self.due = self.due, False
        return due

    def forget(self) -> None:
        """Forget all signs: the end of the session wakes all members by itself."""
        self.due = False
        self._misplaced = frozenset()


class ZooKeeperMember:
    """One member of one group. Not reentrant: `handle` is called with one event after the other.

    `rules`: the group's dialect, by default that of 0.7. Random values (the settling time of a burst) follow from
    the consumer id alone, so equal events lead to equal actions.
    """

    def __init__(
        self,
        consumer_id: str,
        subscription: Subscription,
        settings: MembershipSettings | None = None,
        rules: GroupRules | None = None,
    ) -> None:
        self.consumer_id = consumer_id
        self.settings = settings or MembershipSettings()
        self._rules = rules or V07Rules()
        self._subscribe(subscription)
        self._snapshots = SnapshotSchedule(self.settings, Jitter(consumer_id))
        self._nudges = _Nudges(self.settings)
        self._holdings = Holdings()
        #: The state of the session, and the phase of the membership.
        self.link = Link.NONE
        self.phase = Phase.OUTSIDE
        self._session_id = 0
        # The target, its reason, and its unclaimed partitions; empty before the first snapshot of a session.
        self._decided = False
        self._target = TargetAssignment()
        self._reason = SnapshotRequest(0.0)
        self._unclaimed: dict[TopicPartition, None] = {}
        #: Whether there ever was a target: from then on a group is not refused any more.
        self._was_member = False
        self._dialect_error = ""
        # Tickets of the actions under way, 0 for none.
        self._last_ticket = 0
        self._registering = 0
        self._unregistering = 0
        #: Whether an id node of this session may exist.
        self._listed = False
        #: Whether that node may hold our former subscription, and the subscription of the node being created.
        self._outdated = False
        self._announced = subscription
        #: Time until which nothing is written, after a failed write.
        self._hold_until: float | None = None
        self._failed_writes = 0
        self._timer_at: float | None = None
        # Facts of the event being handled.
        self._now = 0.0
        self._actions: list[e.Action] = []
        self._lost: dict[HoldCause, list[Holding]] = {}
        self._touched: list[Holding] = []
        self._fresh = False

    # ---- State for other rooms --------------------------------------------------------------------------------------

    @property
    def target(self) -> Mapping[TopicPartition, int]:
        """The target of the last decision: partition -> stream."""
        return self._target.own

    @property
    def holds(self) -> dict[TopicPartition, Hold]:
        """The state of every partition that is claimed, owned or released."""
        return {holding.partition: holding.state for holding in self._holdings}

    def waits_only_for(self, blocked: Container[TopicPartition]) -> bool:
        """Whether a target is decided, and all of it is consumed or among `blocked`."""
        if not self._decided or self.phase is not Phase.MEMBER or self.link is not Link.UP:
            return False
        held = map(self._holdings.get, rest := [each for each in self._target.own if each not in blocked])
        return sum(each is not None and each.state is Hold.CONSUMING for each in held) == len(rest)

    def why_not_consumed(self, partition: TopicPartition) -> str | None:
        """Why this member does not consume a partition, as a clause; None if it does. The order is `_proceed`'s."""
        holding = self._holdings.get(partition)
        state = Hold.FREE if holding is None else holding.state
        if state is Hold.CONSUMING:
            return None
        if self.link is not Link.UP:
            return "there is no connection to ZooKeeper"
        if self.phase is not Phase.MEMBER:
            leaving = self.phase in (Phase.LEAVING, Phase.LEFT)
            return "the member is leaving the group" if leaving else "the member's id node is not registered"
        if not self._decided:
            return "no snapshot of the group was read in this session"
        if partition not in self._target.own:
            others = partition in self._target.others
            return "it is assigned to another member" if others else "it is in no topic that the group consumes"
        if self._hold_until is not None:
            return "a write to ZooKeeper failed and is tried again later"
        if state is Hold.CLAIMING:
            return "its owner node is being created"
        if given_up := self._holdings.count(Hold.DRAINING, Hold.RELEASING):
            return f"this member gives up its former partitions first, {given_up} of them now"
        return "it is claimed after the next snapshot of the group"

    @property
    def settled(self) -> bool:
        """Whether we are a member and consume exactly our target, which may be empty: readiness."""
        return (
            self.phase is Phase.MEMBER
            and self.link is Link.UP
            and self._decided
            and len(self._holdings) == self._holdings.count(Hold.CONSUMING) == len(self._target.own)
        )

    # ---- Events: note what changed ----------------------------------------------------------------------------------

    def handle(self, event: e.Event, now: float) -> list[e.Action]:
        """Return the actions for `event` at the time `now` (seconds, monotonic). See `consumerd.group.events`."""
        if self.phase is Phase.LEFT:
            return []
        self._now = now
        self._handlers[type(event)](self, event)
        self._proceed()
        actions, self._actions = self._actions, []
        return actions

    def prepare(self, snapshot: e.MembershipSnapshot) -> Generator[None, None, None]:
        """Compute the target of this snapshot in steps of some milliseconds, before `SnapshotTaken`.

        Optional: without it `handle` computes all at once. Other events may be handled between the steps.
        """
        return self._target_builder.steps(snapshot)

    def _on_session_started(self, event: e.SessionStarted) -> None:
        if self.link is not Link.NONE:
            self._lose_session()
        self.link = follow(LINK, self.link, LinkCause.STARTED)
        self._session_id = event.session_id
        self._snapshots.request(SnapshotRequest(self._now))

    def _on_session_suspended(self, _: e.SessionSuspended) -> None:
        self.link = follow(LINK, self.link, LinkCause.SUSPENDED)
        self._snapshots.cancel()

    def _on_session_resumed(self, _: e.SessionResumed) -> None:
        self.link = follow(LINK, self.link, LinkCause.RESUMED)
        self._hold_until = None
        self._failed_writes = 0
        self._snapshots.request(SnapshotRequest(self._now, trigger_known=False))
        self._snapshots.hurry()
        self._touched += self._holdings

    def _on_lease_expired(self, _: e.LeaseExpired) -> None:
        for holding in self._holdings:
            self._lose(holding)
        self._snapshots.request(SnapshotRequest(self._now, trigger_known=False))

    def _on_session_expired(self, _: e.SessionExpired) -> None:
        self._lose_session()

    def _on_triggered(self, _: e.Triggered) -> None:
        self._snapshots.request(SnapshotRequest(self._now))

    def _on_ownership_lost(self, event: e.OwnershipLost) -> None:
        for partition in sorted(event.partitions):
            holding = self._holdings.get(partition)
            if holding is not None:
                self._lose(holding)
        self._snapshots.request(SnapshotRequest(self._now))

    def _on_timer_fired(self, _: e.TimerFired) -> None:
        self._timer_at = None

    def _on_subscription_changed(self, event: e.SubscriptionChanged) -> None:
        """Register again with the next snapshot; the one after that gives the new target.

        Until then the former target stays: nothing is released that others could not claim yet.
        """
        self._subscribe(event.subscription)
        self._outdated = self.link is not Link.NONE
        if self.phase is not Phase.LEAVING and self.link is not Link.NONE:
            self._snapshots.cancel()  # it reads the former topics
            self._snapshots.request(SnapshotRequest(self._now))
            self._snapshots.hurry()

    def _on_stop_requested(self, _: e.StopRequested) -> None:
        self._leave()

    def _on_snapshot_taken(self, event: e.SnapshotTaken) -> None:
        ended = self._snapshots.end(event.ticket, self._now)
        if ended is None:
            return
        snapshot = event.snapshot
        listed = snapshot.own_id_session == self._session_id and not self._outdated
        target = self._apply(snapshot)
        if target is None and not self._was_member:
            self._actions.append(e.RefuseGroup(self._dialect_error))
            self._leave()
            return
        for partition in sorted(ended.verified):
            holding = self._holdings.get(partition)
            if holding is not None and snapshot.owner_sessions.get(partition) != self._session_id:
                self._lose(holding)
        if target is None and not listed:  # our node must not break members that have changed the dialect meanwhile
            self.phase = follow(PHASE, self.phase, PhaseCause.UNLISTED)
            self.phase = follow(PHASE, self.phase, PhaseCause.NOT_REGISTERED)
            self._snapshots.retry(self._now)
            return
        self._actions += map(e.Warn, self._target_builder.take_warnings())
        self.phase = follow(PHASE, self.phase, PhaseCause.LISTED if listed else PhaseCause.UNLISTED)
        self._listed = True
        if not listed:
            self._registering = self._ticket()
            self._announced = self.subscription
            self._actions.append(e.Register(self._registering, self._session_id, self._outdated))
        elif target is not None:
            self._was_member = True
            self._decide(target, ended.request)
            if snapshot.claimed is not None:
                self._find_misplaced(snapshot.claimed)

    def _apply(self, snapshot: e.MembershipSnapshot) -> TargetAssignment | None:
        """Return the target of a snapshot; None if the group has members of another dialect.

        A member that owns something continues then: JVM peers cannot rebalance either, and the operator is to stop the
        member that registered by mistake.
        """
        try:
            target = self._target_builder.build(snapshot)
        except DialectError as error:
            if self._was_member and str(error) != self._dialect_error:
                self._actions.append(e.Warn(f"{error}; owned partitions are kept until that member leaves"))
            self._dialect_error = str(error)
            return None
        self._dialect_error = ""
        return target

    def _on_registered(self, event: e.Registered) -> None:
        if event.ticket == self._registering:
            self._registering = 0
            if self._announced is self.subscription:
                self._outdated = False
            self.phase = follow(PHASE, self.phase, PhaseCause.REGISTERED)
            self._snapshots.retried_well()
            self._snapshots.request(SnapshotRequest(self._now))
            self._snapshots.hurry()

    def _on_registration_blocked(self, event: e.RegistrationBlocked) -> None:
        if event.ticket == self._registering:
            self._registering = 0
            self.phase = follow(PHASE, self.phase, PhaseCause.NOT_REGISTERED)
            self._snapshots.retry(self._now)

    def _on_unregistered(self, event: e.Unregistered) -> None:
        if event.ticket == self._unregistering:
            self._unregistering = 0
            self._listed = False

    def _on_failed(self, event: e.Failed) -> None:
        if event.ticket == self._registering:
            self._on_registration_blocked(e.RegistrationBlocked(event.ticket))
        elif event.ticket == self._unregistering:
            self._unregistering = 0
        else:
            self._snapshots.fail(event.ticket, self._now)
            return
        self._hold_writes()

    def _on_claimed(self, event: e.Claimed) -> None:
        claimed = self._holdings.waiting_among(event.ticket, event.claimed)
        for holding in claimed:
            self._holdings.move(holding, HoldCause.CLAIMED)
            self._touched.append(holding)
        blocked = self._holdings.waiting_among(event.ticket, event.blocked)
        for holding in blocked:
            self._holdings.move(holding, HoldCause.BLOCKED)
        if claimed or blocked:
            self._failed_writes = 0
        if blocked:
            self._snapshots.retry(self._now)
        elif claimed:
            self._snapshots.retried_well()
        self._fail_rest(event.ticket)

    def _on_released(self, event: e.Released) -> None:
        for holding in self._holdings.waiting_among(event.ticket, event.partitions):
            self._failed_writes = 0
            self._holdings.move(holding, HoldCause.RELEASED)
            self._touched.append(holding)
            if holding.reason is not None:
                self._nudges.released(holding.reason.trigger, holding.reason.trigger_known, self._now)
        self._fail_rest(event.ticket)

    def _fail_rest(self, ticket: int) -> None:
        """Note the partitions that an answer left out: whether the action was carried out for them is unknown."""
        failed = self._holdings.waiting_for(ticket)
        for holding in failed:
            self._holdings.move(holding, HoldCause.FAILED)
        if failed:
            self._snapshots.request(SnapshotRequest(self._now))
            self._hold_writes()

    def _on_drained(self, event: e.Drained) -> None:
        for holding in self._holdings.waiting_among(event.ticket, event.partitions):
            self._holdings.move(holding, HoldCause.DRAINED)
            self._touched.append(holding)

    def _on_abandoned(self, event: e.Abandoned) -> None:
        for holding in self._holdings.waiting_among(event.ticket, event.partitions):
            self._holdings.move(holding, HoldCause.ABANDONED)
            self._touched.append(holding)

    _handlers: ClassVar[dict[type[e.Event], Callable[[Any, Any], None]]] = {
        e.SessionStarted: _on_session_started,
        e.SessionSuspended: _on_session_suspended,
        e.SessionResumed: _on_session_resumed,
        e.LeaseExpired: _on_lease_expired,
        e.SessionExpired: _on_session_expired,
        e.Triggered: _on_triggered,
        e.OwnershipLost: _on_ownership_lost,
        e.TimerFired: _on_timer_fired,
        e.SubscriptionChanged: _on_subscription_changed,
        e.StopRequested: _on_stop_requested,
        e.Failed: _on_failed,
        e.SnapshotTaken: _on_snapshot_taken,
        e.Registered: _on_registered,
        e.RegistrationBlocked: _on_registration_blocked,
        e.Unregistered: _on_unregistered,
        e.Claimed: _on_claimed,
        e.Drained: _on_drained,
        e.Released: _on_released,
        e.Abandoned: _on_abandoned,
    }

    # ---- Changes of more than one fact ------------------------------------------------------------------------------

    def _subscribe(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self._target_builder = TargetAssignmentBuilder(self.consumer_id, subscription, self._rules)
        self._topics = frozenset(subscription.streams) if isinstance(subscription, StaticSubscription) else None

    def _decide(self, target: TargetAssignment, reason: SnapshotRequest) -> None:
        """Set the target."""
        self._decided = True
        self._target = target
        self._reason = reason
        self._fresh = True
        self._touched += self._holdings
        self._unclaimed = {p: None for p in target.own if self._holdings.get(p) is None}

    def _leave(self) -> None:
        self.phase = follow(PHASE, self.phase, PhaseCause.STOP)
        self._snapshots.forget()
        self._decide(TargetAssignment(), SnapshotRequest(self._now))

    def _lose(self, holding: Holding) -> None:
        """End all work on the partition at once: its owner node is not, or may not be, ours any more."""
        if holding.state in (Hold.CONSUMING, Hold.DRAINING):
            self._lost.setdefault(HoldCause.LOST, []).append(holding)
        elif holding.state is Hold.OWNED:
            self._holdings.move(holding, HoldCause.LOST)

    def _hold_writes(self) -> None:
        """Write nothing for a while, longer each time until something was written."""
        if self._hold_until is None:
            pause = self.settings.retry_interval * 2.0 ** min(self._failed_writes, 20)
            self._hold_until = self._now + min(pause, self.settings.retry_interval_max)
            self._failed_writes += 1

    def _lose_session(self) -> None:
        """Note that the session ended, and all its nodes with it."""
        self.link = follow(LINK, self.link, LinkCause.EXPIRED)
        self.phase = follow(PHASE, self.phase, PhaseCause.SESSION_LOST)
        for holding in self._holdings:
            if holding.state in (Hold.CONSUMING, Hold.DRAINING):
                self._lost.setdefault(HoldCause.SESSION_LOST, []).append(holding)
            elif holding.state is not Hold.ORPHANED:
                self._holdings.move(holding, HoldCause.SESSION_LOST, holding.ticket)
        self._registering = self._unregistering = 0
        self._listed = self._outdated = False
        self._decided = self.phase is Phase.LEAVING
        self._target = TargetAssignment()
        self._unclaimed = {}
        self._hold_until = None
        self._failed_writes = 0
        self._snapshots.forget()
        self._nudges.forget()

    def _find_misplaced(self, claimed: frozenset[TopicPartition]) -> None:
        """Note partitions without their expected owner; if there are any, reconcile again soon."""
        misplaced = (self._target.others - claimed) | self._unclaimed.keys()
        self._nudges.owners_listed(misplaced, self._now)
        if misplaced:
            self._snapshots.reconcile_within(self._now, self.settings.patience)

    # ---- Actions: begin all that is allowed now ---------------------------------------------------------------------

    def _proceed(self) -> None:
        self._abandon_lost()
        if self._hold_until is not None and self._now >= self._hold_until:
            self._hold_until = None
            self._touched += self._holdings
        self._snapshots.tick(self._now)
        touched, self._touched = self._touched, []
        self._steer(touched)
        if self._may_write and self.phase is Phase.MEMBER and not self._holdings.count(Hold.DRAINING, Hold.RELEASING):
            if self._fresh or self._snapshots.idle:
                self._claim()
            if self._nudges.taken():
                self._actions.append(e.Nudge(self._session_id))
        self._fresh = False
        if (
            self.link is Link.UP
            and self.phase in (Phase.OUTSIDE, Phase.MEMBER)
            and self._snapshots.may_begin(self._now)
        ):
            self._take_snapshot()
        if self.phase is Phase.LEAVING:
            self._finish()
        self._set_timer()

    @property
    def _may_write(self) -> bool:
        return self.link is Link.UP and self._hold_until is None

    def _ticket(self) -> int:
        self._last_ticket += 1
        return self._last_ticket

    def _steer(self, touched: Iterable[Holding]) -> None:
        """Take one step towards the target for each partition that needs one and has no action under way."""
        start: list[Holding] = []
        drain: list[Holding] = []
        release: list[Holding] = []
        for holding in dict.fromkeys(touched):
            stream = self._target.own.get(holding.partition)
            wanted = stream == holding.stream
            match holding.state:
                case Hold.FREE | Hold.DOUBTFUL if stream is not None and (wanted or holding.state is Hold.FREE):
                    self._unclaimed[holding.partition] = None
                case Hold.CONSUMING if not wanted:
                    drain.append(holding)
                case Hold.OWNED if wanted and self.link is Link.UP and self.phase is Phase.MEMBER:
                    start.append(holding)
                case Hold.OWNED | Hold.DOUBTFUL if not wanted and self._may_write:
                    release.append(holding)
                case _:
                    pass
        if start:
            self._start(start)
        if drain:
            self._drain(drain)
        if release:
            self._release(release)

    def _start(self, holdings: list[Holding]) -> None:
        for holding in holdings:
            holding.reason = None
            self._holdings.move(holding, HoldCause.START)
        self._actions.append(e.StartConsuming(self._session_id, {each.partition: each.stream for each in holdings}))

    def _drain(self, holdings: list[Holding]) -> None:
        ticket = self._ticket()
        for holding in holdings:
            holding.reason = self._reason
            self._holdings.move(holding, HoldCause.DRAIN, ticket)
        deadline = self._reason.trigger + self.settings.drain_timeout
        if deadline <= self._now:  # no snapshot was possible for so long: see above
            deadline = self._now + self.settings.drain_timeout
        self._actions.append(e.Drain(ticket, _partitions(holdings), deadline))

    def _release(self, holdings: list[Holding]) -> None:
        ticket = self._ticket()
        for holding in holdings:
            holding.reason = holding.reason or self._reason
            self._holdings.move(holding, HoldCause.RELEASE, ticket)
        self._actions.append(e.Release(ticket, self._session_id, _partitions(holdings)))

    def _abandon_lost(self) -> None:
        lost, self._lost = self._lost, {}
        for cause, holdings in lost.items():
            ticket = self._ticket()
            for holding in holdings:
                self._holdings.move(holding, cause, ticket)
            self._actions.append(e.Abandon(ticket, _partitions(holdings)))

    def _claim(self) -> None:
        """Claim the partitions of the target that are not ours, by the last snapshot."""
        unclaimed, self._unclaimed = self._unclaimed, {}
        if not unclaimed:
            if self._fresh and not self._holdings.count(Hold.CLAIMING):
                self._snapshots.retried_well()  # the blocked partitions are no longer in the target
            return
        ticket = self._ticket()
        streams: dict[TopicPartition, int] = {}
        for partition in unclaimed:
            stream = self._target.own.get(partition)
            if stream is None:
                continue
            holding = self._holdings.get(partition) or self._holdings.new(partition, stream)
            if holding.state is Hold.FREE or (holding.state is Hold.DOUBTFUL and holding.stream == stream):
                self._holdings.move(holding, HoldCause.CLAIM, ticket)
                streams[partition] = stream
        if streams:
            self._actions.append(e.Claim(ticket, self._session_id, streams))

    def _take_snapshot(self) -> None:
        request = self._snapshots.pending
        assert request is not None
        owned = (Hold.CONSUMING, Hold.DRAINING, Hold.OWNED) if request.verify else ()
        verified = _partitions(holding for holding in self._holdings if holding.state in owned)
        ticket = self._ticket()
        self._snapshots.begin(ticket, verified)
        self._actions.append(e.TakeSnapshot(ticket, self._session_id, self._topics, verified, request.list_owners))

    def _finish(self) -> None:
        """Unregister when nothing is held any more, then finish."""
        if len(self._holdings) or self._registering or self._unregistering:
            return
        if self._listed and self.link is not Link.NONE:
            if self._may_write:
                self._unregistering = self._ticket()
                self._actions.append(e.Unregister(self._unregistering, self._session_id))
            return
        self.phase = follow(PHASE, self.phase, PhaseCause.GONE)
        self._actions.append(e.Finished())

    def _set_timer(self) -> None:
        """Set the one timer to the earliest due time. One that is set too early is left alone."""
        if self.link is not Link.UP or self.phase is Phase.LEFT:
            return
        # Work that is already due waits for something other than time.
        times = [at for at in (self._hold_until, self._snapshots.next_time) if at is not None and at > self._now]
        if times and (self._timer_at is None or min(times) < self._timer_at):
            self._timer_at = min(times)
            self._actions.append(e.SetTimer(self._timer_at))


def _partitions(holdings: Iterable[Holding]) -> frozenset[TopicPartition]:
    return frozenset(holding.partition for holding in holdings)

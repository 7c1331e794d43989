"""The machine of a membership that a broker coordinates: from an event and the time to the member's next actions.

Strategy: pure, as `consumerd.group.membership`: `handle(event, now)` returns actions, and its runner performs them and
sends the answers back (`consumerd.group.coordinated_events`). States, table and theory of operation, with the numbered
rules, are in `consumerd.group.coordinated_tables`. A handler per event notes what changed. Then `_proceed` begins
everything that the state allows: it depends on nothing but the state, so that late, doubled and lost events lead to the
same actions. What a leader computes (subscriptions read, partitions assigned) are functions beside the machine.

Source: spec 002, group membership API; KIP-62, KIP-345 and KIP-394 for later brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.group import coordinated_events as e
from consumerd.group.assignors import range_shares, roundrobin_shares
from consumerd.group.coordinated_base import BrokerMember
from consumerd.group.coordinated_tables import ASSIGNORS, MEMBER, PHASES, Cause, CoordinationSettings, Phase
from consumerd.wire.errors import FrameError, WireError
from consumerd.wire.registry.subscription import StaticSubscription, Subscription
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.subscription import (
    MemberAssignment,
    MemberMetadata,
    decode_assignment,
    decode_metadata,
)

#: Codes after which this process is no longer a member.
_OUT: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
#: Number of refusals of SyncGroup in a row that are retried at once: the other members wait for us.
_HURRIED: Final = 2


class MemberSubscriptions(NamedTuple):
    """The subscriptions of a generation: member id -> topics; group instance ids of static members."""

    members: Mapping[str, tuple[str, ...]]
    instances: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def topics(self) -> tuple[str, ...]:
        """Return all topics to which any member subscribes, sorted."""
        return tuple(sorted({topic for topics in self.members.values() for topic in topics}))


#: The subscriptions as seen by a member that does not lead.
NO_SUBSCRIPTIONS = MemberSubscriptions({}, {})


def read_subscriptions(members: Iterable[e.GroupMember]) -> MemberSubscriptions:
    """Return the subscriptions of the members that JoinGroup lists for the leader.

    An unreadable one counts as no subscription, with a warning, so that one broken member does not stop the group.
    """
    wanted: dict[str, tuple[str, ...]] = {}
    instances: dict[str, str] = {}
    warnings = []
    for member in members:
        try:
            wanted[member.member_id] = decode_metadata(member.metadata).topics
        except WireError as error:
            wanted[member.member_id] = ()
            warnings.append(f"member {member.member_id} is assigned nothing: {error}")
        if member.instance_id is not None:
            instances[member.member_id] = member.instance_id
    return MemberSubscriptions(wanted, instances, tuple(warnings))


def assign_shares(
    protocol: str, partitions: Mapping[str, int], subscriptions: MemberSubscriptions
) -> tuple[tuple[str, bytes], ...]:
    """Return the encoded assignment of each member, which may be empty.

    `partitions`: topic -> number of partitions. `protocol`: one of ASSIGNORS.
    """
    assert protocol in ASSIGNORS  # the coordinator picks among those that we offered, which the caller checks
    assign = range_shares if protocol == "range" else roundrobin_shares
    shares = assign(partitions, subscriptions.members, subscriptions.instances)
    return tuple(
        (member, MemberAssignment(tuple((topic, tuple(numbers)) for topic, numbers in share.items())).encode())
        for member, share in shares.items()
    )


class CoordinatedMember(BrokerMember):
    """One member of one group of the classic protocol."""

    _phases = PHASES

    def __init__(self, subscription: Subscription, settings: CoordinationSettings) -> None:
        super().__init__(subscription, settings)
        self._sent_at = 0.0
        #: Whether the last JoinGroup carried our former subscription.
        self._outdated = False
        self._protocol = ""
        self._keep = False
        self._member_subscriptions = NO_SUBSCRIPTIONS
        self._partition_counts: Mapping[str, int] = {}
        self._assigned: tuple[TopicPartition, ...] = ()
        self._flowing = False
        #: SyncGroup requests in a row that were refused.
        self._refusals = 0

    # ---- State for other rooms --------------------------------------------------------------------------------------

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        """The partitions assigned to us in this generation, sorted."""
        return self._assigned

    @property
    def settled(self) -> bool:
        """Whether we are a member and consume our assignment, which may be empty."""
        return self._phase is Phase.STABLE and self._flowing

    # ---- Events: note what changed ----------------------------------------------------------------------------------

    def _on_subscription_changed(self, event: e.SubscriptionChanged) -> None:
        self._subscribe(event.subscription)
        self._outdated = True
        self._reading = 0  # the answer would be about the former topics

    def _on_ownership_lost(self, event: e.OwnershipLost) -> None:
        if self._phase in MEMBER and event.partition in self._assigned:
            self._lose()
            self._retry_at = self._now + self._settings.retry_interval

    def _on_topics_read(self, event: e.TopicsRead) -> None:
        if self._phase is Phase.ASSIGNING and event.ticket == self._waiting:
            self._partition_counts = {
                topic: count for topic in self._member_subscriptions.topics if (count := event.partitions.get(topic))
            }
            self._move(Cause.ASSIGNED)
            self._sync(
                () if self._keep else assign_shares(self._protocol, self._partition_counts, self._member_subscriptions)
            )
        elif event.ticket == self._reading:
            self._reading = 0
            self._refresh_at = self._now + self._settings.reconcile_interval
            self._failures = 0
            self._compare(event.partitions)

    def _on_joined(self, event: e.Joined) -> None:
        if self._phase is not Phase.JOINING or event.ticket != self._waiting:
            return
        if event.protocol not in self._settings.assignors:
            self._refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            return
        self.member_id, self.generation = event.member_id, event.generation
        self._protocol, self._rebalance_timeout = event.protocol, event.rebalance_timeout
        self.leads, self._keep = event.leads, event.keep_assignment
        self._member_subscriptions = NO_SUBSCRIPTIONS
        if event.leads:
            self._member_subscriptions = read_subscriptions(event.members)
            self._actions += map(e.Warn, self._member_subscriptions.warnings)
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
            self._actions.append(e.Warn(f"cannot read the assignment from the group leader: {error}"))
            self._move(Cause.OUT)
            self._back_off()
            return
        self._failures = 0  # not before: JoinGroup may succeed, and SyncGroup fail, again and again
        self._refusals = 0
        self._move(Cause.SYNCED)
        self._assigned = self._checked(assignment.partitions)
        self._begin_session()
        self._confirmed_at = self._quiet_at = self._sent_at
        self._beat_at = self._now  # the wait for the share has used up a part of the lease
        self._changing(self._settings.heartbeat_interval)
        self._refresh_at = self._now + self._settings.reconcile_interval

    def _checked(self, shares: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[TopicPartition, ...]:
        mine = {TopicPartition.numbered(topic, number) for topic, numbers in shares for number in numbers}
        strange = {partition.topic for partition in mine if partition.topic not in self._topics}
        if strange:
            names = sorted(strange)
            self._actions.append(e.Warn(f"the group leader assigned topics that are not subscribed to: {names}"))
        return tuple(sorted(each for each in mine if each.topic not in strange and each.partition >= 0))

    def _on_confirmed(self, event: e.Confirmed) -> None:
        if event.ticket == self._beating:
            self._beating = 0
            self._failures = 0
            self._confirmed_at = self._quiet_at = self._beat_sent_at
            self._beat_at = self._beat_sent_at + self._pace(self._settings.heartbeat_interval)

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
            self._failures = 0
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
        """Handle an error code of JoinGroup or SyncGroup."""
        code = event.code
        if code == ErrorCode.MEMBER_ID_REQUIRED and event.member_id and event.member_id != self.member_id:
            self.member_id = event.member_id
        elif code in _OUT or code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._not_known(code)
            self._back_off()
            if self._phase is Phase.SYNCING:
                self._refusals += 1
                if self._refusals <= _HURRIED:
                    self._retry_at = self._now
        else:
            self._refuse(code)
            return
        self._move(Cause.OUT)

    def _not_known(self, code: int) -> None:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    def _on_drained(self, event: e.Drained) -> None:
        if event.ticket == self._waiting and self._phase is Phase.DRAINING:
            self._end_session()
            self._move(Cause.EMPTY)

    _handlers: ClassVar[dict[type[e.Event], Callable[[Any, Any], None]]] = {
        **BrokerMember.common_handlers,
        e.SubscriptionChanged: _on_subscription_changed,
        e.OwnershipLost: _on_ownership_lost,
        e.TopicsRead: _on_topics_read,
        e.Joined: _on_joined,
        e.Synced: _on_synced,
        e.Confirmed: _on_confirmed,
        e.Refused: _on_refused,
        e.Drained: _on_drained,
    }

    # ---- Actions that the states allow ----------------------------------------------------------------------------

    def _proceed(self) -> None:
        self._lose_if_late()
        if self._phase is Phase.OUTSIDE:
            self._proceed_outside()
        elif self._phase is Phase.ASSIGNING and not self._waiting and self._now >= self._retry_at:
            self._waiting = self._ticket()
            self._actions.append(e.ReadTopics(self._waiting, self._member_subscriptions.topics))
        elif self._phase is Phase.STABLE:
            self._proceed_stable()
        if self._phase in MEMBER:
            self._beat()
        self._proceed_leaving()
        self._set_timer()

    def _proceed_outside(self) -> None:
        if self._stopping:
            self._move(Cause.STOP)
        elif self._now < self._retry_at:
            return
        elif not self._topics_known:
            self._read_topics(None)
        else:
            self._move(Cause.JOIN)
            self._outdated = False
            self._waiting = self._ticket()
            metadata = MemberMetadata(self._topics).encode()
            protocols = tuple((name, metadata) for name in self._settings.assignors)
            self._actions.append(e.Join(self._waiting, self.member_id, protocols))

    def _proceed_stable(self) -> None:
        if self._outdated:
            self._drain(Cause.REJOIN)
            return
        # Rule 5. The next heartbeat is due before half of the session timeout is over.
        if not self._flowing and self.lease_until - self._now > self._settings.session_timeout / 2:
            self._flowing = True
            self._actions += (e.Settled(), e.StartConsuming(self._assigned, self.session_id))
        if self._now >= self._refresh_at:
            filtered = not isinstance(self._subscription, StaticSubscription)
            others = self._member_subscriptions.topics  # none unless we lead
            self._read_topics(None if filtered else tuple(sorted({*self._topics, *others})))

    def _beat(self) -> None:
        if not self._beating and self._now >= self._beat_at:
            self._beating = self._ticket()
            self._beat_sent_at = self._now
            self._actions.append(e.Heartbeat(self._beating, self.generation, self.member_id))

    # ---- Parts ------------------------------------------------------------------------------------------------------

    @property
    def _holding(self) -> bool:
        return self._flowing

    def _leave_epoch(self) -> int | None:
        # A static member's place is kept; a member without an id never was one.
        return -1 if self.instance_id is None and self.member_id else None

    def _sync(self, assignments: tuple[tuple[str, bytes], ...]) -> None:
        self._waiting = self._ticket()
        self._sent_at = self._now
        self._actions.append(e.Sync(self._waiting, self.generation, self.member_id, self._protocol, assignments))

    def _compare(self, partitions: Mapping[str, int]) -> None:
        """Leave STABLE to join again if the topics differ from those assigned (rule 6)."""
        wanted = self._wanted(partitions)
        self._topics_known = True
        changed = wanted != self._topics
        self._topics = wanted
        if self._phase is Phase.STABLE:
            counts = {topic: count for topic in self._member_subscriptions.topics if (count := partitions.get(topic))}
            if changed or (self.leads and counts != self._partition_counts):
                self._drain(Cause.REJOIN)

    def _drain(self, cause: Cause) -> None:
        """Begin a drain, with the deadline of rule 2."""
        self._move(cause)
        self._waiting = self._ticket()
        self._actions.append(e.Drain(self._waiting, self._drain_until()))

    def _end_session(self) -> None:
        self.session_id = 0
        self._assigned = ()
        self._flowing = False
        self._beating = self._reading = 0

    def _stop(self) -> None:
        self._stopping = True
        if self._phase is Phase.STABLE:
            self._drain(Cause.STOP)
        elif self._phase in (Phase.JOINING, Phase.ASSIGNING, Phase.SYNCING):
            if self._waiting:
                self._actions.append(e.Forget(self._waiting))
            self._move(Cause.STOP)

"""The machine of a membership by the consumer protocol (KIP-848): from an event and the time to the next actions.

Strategy: pure, as `consumerd.group.coordinated`; events and actions are those of `consumerd.group.coordinated_events`.
States, table and theory of operation, with the numbered rules, are in `consumerd.group.consumer_protocol_tables`.
A handler per event notes what changed, then `_proceed` begins everything that the state allows.

Source: KIP-848; spec 002 for the error codes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.group import coordinated_events as e
from consumerd.group.consumer_protocol_tables import PHASES
from consumerd.group.coordinated_base import BrokerMember
from consumerd.group.coordinated_tables import FOLLOWING, MEMBER, Cause, CoordinationSettings, Phase
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription, Subscription
from consumerd.wire.registry.topic_filter import FilterKind
from consumerd.wire.v08.error_codes import ErrorCode

#: Codes after which this process is no longer a member, or never was one.
_OUT: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
#: Epochs of heartbeats that do not say how far a member is.
_JOIN_EPOCH, _LEAVE_EPOCH, _LEAVE_FOR_A_WHILE = 0, -1, -2
#: Heartbeats per session timeout, at least: the broker's interval may be too long for a shorter timeout of ours.
_BEATS: Final = 3
#: Session timeouts for which a static member waits for its former process, which the broker may give a longer one.
_UNRELEASED_FOR: Final = 1.5


class _Place(NamedTuple):
    """A partition as the coordinator names it."""

    topic_id: bytes
    number: int


class ConsumerProtocolMember(BrokerMember):
    """One member of one group of the consumer protocol. `member_id`: its own choice, unique for each process."""

    _phases = PHASES

    def __init__(self, subscription: Subscription, settings: CoordinationSettings, member_id: str) -> None:
        #: The pattern that the coordinator matches; empty where a former one has to be withdrawn, None for none.
        self._pattern: str | None = None
        super().__init__(subscription, settings)
        self.member_id = member_id
        self._interval = settings.heartbeat_interval
        #: What flows or is being drained, with the ids of the topics.
        self._held: dict[TopicPartition, bytes] = {}
        #: What the coordinator assigned to us last.
        self._target: frozenset[_Place] = frozenset()
        #: Partitions that are drained, by the tickets of their drains.
        self._drains: dict[int, frozenset[TopicPartition]] = {}
        #: What the last heartbeat named as held, and whether it was answered well (rule 2).
        self._named: frozenset[_Place] = frozenset()
        self._answered = False
        #: Whether a heartbeat is due at once.
        self._urgent = False
        #: The topics by their ids, and those that we may not see, when topics were last read.
        self._names: dict[bytes, str] = {}
        self._denied: frozenset[str] = frozenset()
        self._seen = False
        #: Whether the coordinator may know us.
        self._known = False
        #: When the coordinator first said that a former process has our instance id.
        self._unreleased_since: float | None = None
        #: What `Settled` was last reported for.
        self._reported: frozenset[TopicPartition] | None = None

    # ---- State for other rooms --------------------------------------------------------------------------------------

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        """The partitions assigned to us whose topics are known, sorted."""
        return tuple(sorted(self._assigned_by_name()))

    @property
    def settled(self) -> bool:
        """Whether we are a member and consume exactly what the coordinator assigned, which may be nothing."""
        return self._phase is Phase.STABLE and self._places() == self._target

    # ---- Events: note what changed ----------------------------------------------------------------------------------

    def _on_subscription_changed(self, event: e.SubscriptionChanged) -> None:
        former = self._subscribed
        self._subscribe(event.subscription)
        self._reading, self._seen = 0, False  # the answer would be about the former topics
        self._refresh_at = self._now
        if self._topics_known or self._pattern:
            self._urgent = True
        else:
            self._topics = former  # until the filter was matched: without topics, all would be revoked

    def _on_ownership_lost(self, event: e.OwnershipLost) -> None:
        if event.partition in self._held and self._phase in MEMBER:
            self._back_off()
            self._lose()

    def _on_topics_read(self, event: e.TopicsRead) -> None:
        if event.ticket != self._reading:
            return
        self._reading = 0
        self._seen = True
        self._refresh_at = self._now + self._settings.reconcile_interval
        self._names = dict(event.ids)
        former = self._subscribed
        self._denied = event.denied
        self._topics, self._topics_known = self._wanted(event.partitions), True
        if self._subscribed != former:
            self._urgent = True
        if self._unknown_ids():  # brokers learn of topics at different times
            self._refresh_at = self._now + self._pause()

    def _on_assigned(self, event: e.Assigned) -> None:
        if event.ticket != self._beating:
            return
        self._beating = 0
        self._failures = 0
        self.member_id = event.member_id or self.member_id
        former = self._target, self.generation
        self.generation = event.epoch
        if event.session_timeout:
            self._session_timeout = min(event.session_timeout, self._settings.session_timeout)
        if event.interval > 0:
            self._interval = min(event.interval, self._session_timeout / _BEATS)
        if event.assignment is not None:
            self._target = frozenset(
                _Place(topic_id, number)
                for topic_id, numbers in event.assignment.items()
                for number in numbers
                if number >= 0
            )
        if self._phase is Phase.JOINING or former != (self._target, self.generation):
            self._changing(self._interval)
        self._beat_at = self._beat_sent_at + self._pace(self._interval)
        self._answered = True
        self._confirmed_at = self._beat_sent_at
        released = self._named <= self._target
        if released:
            self._quiet_at = self._beat_sent_at
        if self._phase is Phase.JOINING:
            self._begin()
        elif self._phase is Phase.ACKNOWLEDGING and released:
            self._move(Cause.ACKNOWLEDGED)
        if self._unknown_ids():
            self._refresh_at = self._now

    def _begin(self) -> None:
        self._move(Cause.JOINED)
        self._unreleased_since = None
        self._quiet_at = self._beat_sent_at
        self._begin_session()

    def _on_refused(self, event: e.Refused) -> None:
        if event.ticket == self._beating:
            self._beating = 0
            if self._phase is Phase.JOINING:
                self._on_join_refused(event.code)
            else:
                self._on_beat_refused(event.code)
        elif event.ticket == self._waiting and self._phase is Phase.LEAVING:
            self._move(Cause.GONE)

    def _on_join_refused(self, code: int) -> None:
        if code == ErrorCode.UNRELEASED_INSTANCE_ID and self._waits_for_former_process():
            self._retry_at = self._now + self._settings.retry_interval_max
        elif code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self._seen = False
            self._back_off()
        elif code in _OUT:
            self._back_off()
        else:
            self._refuse(code)
            return
        self._move(Cause.OUT)

    def _waits_for_former_process(self) -> bool:
        if self._unreleased_since is None:
            self._unreleased_since = self._now
            self._actions.append(
                e.Warn(
                    f"another process, perhaps a former one of this member, has the group.instance_id "
                    f"{self.instance_id!r}; joining is repeated until the broker has removed it"
                )
            )
        return self._now - self._unreleased_since < _UNRELEASED_FOR * self._session_timeout

    def _on_beat_refused(self, code: int) -> None:
        if code in _OUT or code == ErrorCode.GROUP_ID_NOT_FOUND:
            self._known = code == ErrorCode.FENCED_MEMBER_EPOCH
            self._back_off()
            self._lose()
        elif code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self._beat_at = self._now + self._pause()
            self._refresh_at = self._now
        else:
            if code in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID):
                self._known = False
                self._lose()
            self._refuse(code)

    def _on_drained(self, event: e.Drained) -> None:
        drained = self._drains.pop(event.ticket, None)
        if drained is None:
            return
        for partition in drained:
            self._held.pop(partition, None)
        self._urgent = True
        if self._drains:
            return
        if self._phase is Phase.RECONCILING:
            self._move(Cause.RELEASED)
        elif self._phase is Phase.DRAINING:
            self._end_session()
            self._move(Cause.EMPTY)

    _handlers: ClassVar[dict[type[e.Event], Callable[[Any, Any], None]]] = {
        **BrokerMember.common_handlers,
        e.SubscriptionChanged: _on_subscription_changed,
        e.OwnershipLost: _on_ownership_lost,
        e.TopicsRead: _on_topics_read,
        e.Assigned: _on_assigned,
        e.Refused: _on_refused,
        e.Drained: _on_drained,
    }

    # ---- Actions that the states allow ----------------------------------------------------------------------------

    def _proceed(self) -> None:
        self._lose_if_late()
        if self._phase is Phase.OUTSIDE:
            self._proceed_outside()
        if self._phase in FOLLOWING:
            self._revoke()
            self._start()
            if self._now >= self._refresh_at:
                self._read_topics(self._topics_to_read)
        if self._phase in MEMBER:
            self._beat()
        self._proceed_leaving()
        if self.settled and (ours := frozenset(self._held)) != self._reported:
            self._reported = ours
            self._actions.append(e.Settled())
        self._set_timer()

    def _proceed_outside(self) -> None:
        if self._stopping:
            self._move(Cause.STOP)
        elif self._now < self._retry_at:
            return
        elif not self._seen:
            self._read_topics(self._topics_to_read)
        else:
            self._move(Cause.JOIN)
            self.generation = _JOIN_EPOCH
            self._known = True
            self._send()

    def _revoke(self) -> None:
        """Drain what is held and not assigned any more (rule 3)."""
        draining = self._draining
        revoked = frozenset(
            partition
            for partition, topic_id in self._held.items()
            if _Place(topic_id, partition.partition) not in self._target and partition not in draining
        )
        if revoked:
            self._move(Cause.REVOKED)
            self._drain(revoked)

    def _start(self) -> None:
        """Begin the flow of what is assigned and not held (rule 2), while the lease is fresh."""
        if not self._answered or self.lease_until - self._now <= self._session_timeout / 2:
            return
        new = {
            partition: topic_id
            for partition, topic_id in self._assigned_by_name().items()
            if partition not in self._held
        }
        if new:
            self._held |= new
            self._actions.append(e.StartConsuming(tuple(sorted(new)), self.session_id))

    def _beat(self) -> None:
        if not self._beating and (self._urgent or self._now >= self._beat_at):
            self._send()

    def _send(self) -> None:
        """Send a heartbeat that names all (rule 1)."""
        self._beating = self._ticket()
        self._beat_sent_at = self._now
        self._urgent = self._answered = False
        self._named = self._places()
        owned: defaultdict[bytes, list[int]] = defaultdict(list)
        for topic_id, number in sorted(self._named):
            owned[topic_id].append(number)
        self._actions.append(
            e.ConsumerHeartbeat(
                self._beating,
                self.member_id,
                self.generation,
                self._subscribed,
                self._pattern,
                {topic_id: tuple(numbers) for topic_id, numbers in owned.items()},
            )
        )

    # ---- Parts ------------------------------------------------------------------------------------------------------

    @property
    def _subscribed(self) -> tuple[str, ...]:
        """The topics that heartbeats name: one that may not be seen would make the coordinator refuse all."""
        if self._pattern:
            return ()
        return tuple(topic for topic in self._topics if topic not in self._denied)

    @property
    def _topics_to_read(self) -> tuple[str, ...] | None:
        return self._topics if isinstance(self._subscription, StaticSubscription) else None

    @property
    def _draining(self) -> frozenset[TopicPartition]:
        return frozenset().union(*self._drains.values())

    def _places(self) -> frozenset[_Place]:
        return frozenset(_Place(topic_id, partition.partition) for partition, topic_id in self._held.items())

    def _assigned_by_name(self) -> dict[TopicPartition, bytes]:
        return {
            TopicPartition.numbered(name, number): topic_id
            for topic_id, number in self._target
            if (name := self._names.get(topic_id)) is not None
        }

    def _unknown_ids(self) -> bool:
        return any(topic_id not in self._names for topic_id, _ in self._target)

    def _subscribe(self, subscription: Subscription) -> None:
        super()._subscribe(subscription)
        pattern = None
        if (
            self._settings.broker_filter
            and isinstance(subscription, FilterSubscription)
            and subscription.filter.kind is FilterKind.WHITELIST  # RE2 has no pattern for what does not match another
        ):
            pattern = subscription.filter.text
        self._pattern = "" if pattern is None and self._pattern is not None else pattern

    def _drain(self, partitions: frozenset[TopicPartition]) -> None:
        ticket = self._ticket()
        self._drains[ticket] = partitions
        self._actions.append(e.Drain(ticket, self._drain_until(), partitions))

    @property
    def _holding(self) -> bool:
        return bool(self._held)

    def _leave_epoch(self) -> int | None:
        if not self._known:
            return None
        return _LEAVE_EPOCH if self.instance_id is None else _LEAVE_FOR_A_WHILE

    def _end_session(self) -> None:
        self.session_id = 0
        self._held, self._drains = {}, {}
        self._target = self._named = frozenset()
        self._beating = 0
        self._answered = self._urgent = False
        self._reported = None

    def _stop(self) -> None:
        self._stopping = True
        if self._phase in FOLLOWING:
            self._move(Cause.STOP)
            if rest := frozenset(self._held) - self._draining:
                self._drain(rest)
            if not self._drains:
                self._end_session()
                self._move(Cause.EMPTY)
        elif self._phase is Phase.JOINING:
            if self._beating:
                self._actions.append(e.Forget(self._beating))
                self._beating = 0
            self._move(Cause.STOP)

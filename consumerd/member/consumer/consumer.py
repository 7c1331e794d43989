"""The consumer in a group in ZooKeeper: runs the membership machine and performs its actions.

Strategy: one queue of events, one loop that feeds them to the pure machine
(`consumerd.group.membership.ZooKeeperMember`), one method per kind of action. Each action that takes time runs in a
task of one TaskGroup and puts its answer into the queue; so the machine is never entered twice, and there is no lock
around decisions. Three functions tell the story: `run` (start, main loop, end:
`consumerd.member.consumer.running_member`), `_perform` (an action), and `request_stop`.

    ZooKeeper session ──events──►┐                           ┌──► GroupCoordination (znodes)
    watches, timer, answers ────►│ queue ► ZooKeeperMember ──┤
    failures, stop ─────────────►┘                           └──► OwnedPartitions (fetch ► lane ► handler ► tracker)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from random import Random
from typing import Final, TypeVar, Unpack

import structlog

from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.base.ports import SessionEvent, ZooKeeper
from consumerd.base.turns import in_turns
from consumerd.group import events
from consumerd.group.membership import ZooKeeperMember
from consumerd.group.membership_tables import Phase
from consumerd.member.consumer.backends import GroupBackend
from consumerd.member.consumer.blocked import BlockedClaim, BlockedClaims
from consumerd.member.consumer.coordination import GroupCoordination
from consumerd.member.consumer.errors import GroupRefusedError
from consumerd.member.consumer.fence import Fence
from consumerd.member.consumer.missing_topics import MissingTopics
from consumerd.member.consumer.running_member import MemberParts, RunningMember
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.consumer.taken_id import TakenId
from consumerd.wire.registry.subscription import Subscription

log = structlog.get_logger(__name__)

_Action = TypeVar("_Action", bound=events.Action)

#: Seconds for which partitions of a broker that is not registered any more are remembered: it may be gone for good.
_REMEMBERED: Final = 24 * 3600.0


class GroupConsumer(RunningMember[events.Event]):
    """One member of one group. `zk` is a started session; it stays the caller's, who closes it after `run`.

    `backend` is the dialect of the group (`consumerd.member.consumer.backends`).
    """

    _member: ZooKeeperMember

    def __init__(
        self,
        settings: ConsumerSettings,
        *,
        zk: ZooKeeper,
        backend: GroupBackend,
        rng: Random,
        **parts: Unpack[MemberParts],
    ) -> None:
        super().__init__(settings, stop_event=events.StopRequested(), **parts)
        self._zk = zk
        self._trigger_queued = False
        self._ever_registered = False
        self._registering: tuple[asyncio.Task[None], int] | None = None
        self._nudging: set[asyncio.Task[None]] = set()
        self._target: dict[TopicPartition, int] | None = None
        #: Partitions of 0.7 that were ours when the registration of their broker went away, with the time of that.
        self._unregistered: dict[TopicPartition, float] = {}
        #: The partitions that were logged as ours.
        self._shown: dict[TopicPartition, int] | None = None
        self._blocked = BlockedClaims(settings.group)
        self._looked_for_unclaimed = 0.0
        self._taken_id = TakenId(settings.group, settings.consumer_id, self.clock)
        self._awaited = MissingTopics(settings.group, settings.subscription)
        #: Set by `_begin`.
        self._unsubscribe: Callable[[], None]
        self._member = ZooKeeperMember(settings.consumer_id, settings.subscription, settings.membership, backend.rules)
        self.fence = Fence(zk, self.clock, settings.lease_margin)
        pool, self._fetching, self.brokers = backend.fetching(zk, self, rng)
        self._coordination = GroupCoordination(zk, settings, backend, clock=self.clock, triggered=self._triggered)
        store = backend.store(zk, settings.group, self._coordination)
        self.cluster = backend.cluster(zk)
        self._make_partitions(pool, store, self._ownership_lost)

    @property
    def assigned(self) -> list[TopicPartition]:
        """The partitions that are to be ours, as far as decided; those that are still claimed or searched too."""
        return sorted(self._member.target)

    @property
    def blocked(self) -> Mapping[TopicPartition, BlockedClaim] | None:
        blocked = self._blocked.by_partition
        return blocked if self._member.waits_only_for(blocked) else None

    def why_not_consumed(self, partition: TopicPartition) -> str | None:
        return self._member.why_not_consumed(partition) or super().why_not_consumed(partition)

    @property
    def unregistered(self) -> list[TopicPartition]:
        since = self.clock.monotonic() - _REMEMBERED
        return sorted(partition for partition, gone in self._unregistered.items() if gone >= since)

    def _subscription_changed(self, subscription: Subscription) -> events.Event:
        return events.SubscriptionChanged(subscription)

    # -- life

    def _begin(self) -> None:
        self._unsubscribe = self._zk.subscribe(self._session_event)
        if self._zk.session_id:
            self._queue.put_nowait(events.SessionStarted(self._zk.session_id))

    def _stragglers(self) -> list[asyncio.Task[None]]:
        return list(self._nudging)

    def _finish(self) -> None:
        self._unsubscribe()
        self._coordination.close()

    def _background(self) -> list[Callable[[], Coroutine[None, None, None]]]:
        return [*self._fetching, self._watch_lease, *super()._background()]

    def _before(self, event: events.Event) -> None:
        match event:
            case events.Triggered():
                self._trigger_queued = False
            case events.SubscriptionChanged(subscription):
                self._awaited = MissingTopics(self.settings.group, subscription)
                self._unregistered.clear()
                self._coordination.change_subscription(subscription)
            case events.Registered():
                self._ever_registered = True
                log.info("member_registered", group=self.settings.group, consumer=self.settings.consumer_id)
            case events.SnapshotTaken(_, snapshot):
                self._taken_id.seen(snapshot.own_id_session, self._zk.session_id, self._coordination.patience)
            case events.SessionResumed() | events.SessionStarted():
                self._taken_id.interrupted()
            case events.RegistrationBlocked():
                self._give_up_on_taken_id()
            case events.StopRequested():
                self._hurry_registration()
            case _:
                pass

    def _after(self, event: events.Event) -> None:
        self._note_assignment(event)
        if isinstance(event, events.Claimed):
            now = self.clock.monotonic()
            self._blocked.answered(event.claimed, event.blocked, self._coordination.holder, now)
        self._blocked.keep(self._member.target)
        self._note_unclaimed()
        self._note_ownership()

    def _note_assignment(self, event: events.Event) -> None:
        if not isinstance(event, events.SnapshotTaken) or self._member.phase is not Phase.MEMBER:
            return
        self._awaited.look(event.snapshot.topics)
        existing = {
            TopicPartition(topic, broker, each)
            for topic, brokers in event.snapshot.topics.items()
            for broker, numbers in brokers.items()
            for each in numbers
        }
        self._partitions.starts.exist(existing)
        self._note_unregistered(existing)
        target = dict(self._member.target)
        if target != self._target:
            self._target = target
            self.stats.rebalances += 1

    def _note_unregistered(self, existing: set[TopicPartition]) -> None:
        """Remember what was ours of brokers of 0.7 that are not registered now: nobody owns it, and its lag grows."""
        now = self.clock.monotonic()
        gone = {each: now for each in self._target or () if each.broker != NO_BROKER} | self._unregistered
        self._unregistered = {each: since for each, since in gone.items() if each not in existing}

    def _note_unclaimed(self) -> None:
        """Log why partitions wait, if they do: looked at every second at most, since there may be thousands."""
        now = self.clock.monotonic()
        if self._member.settled:
            self._blocked.unclaimed({}, now)
        elif self._member.target and now >= self._looked_for_unclaimed + 1.0:
            self._looked_for_unclaimed = now
            why = {each: self._member.why_not_consumed(each) for each in self._member.target}
            self._blocked.unclaimed({each: reason for each, reason in why.items() if reason is not None}, now)

    def _note_ownership(self) -> None:
        """Log what is owned once that is the assignment. Ready: each first claim is answered, if not granted."""
        if self._member.settled and self._member.target != self._shown:
            self._shown = dict(self._member.target)
            log.info("rebalanced", group=self.settings.group, partitions=sorted(map(str, self._shown)))
        if not self.ready.is_set() and self.blocked is not None:
            self.ready.set()

    def _give_up_on_taken_id(self) -> None:
        """Stop at a start: a node that outlived any dead session belongs to a live process."""
        if not self._ever_registered and self.settings.fixed_id:
            refusal = self._taken_id.refusal(self._coordination.patience)
            if refusal is not None:
                self.request_stop(refusal)

    def _hurry_registration(self) -> None:
        """End the wait of a registration for the node of a dead process, because of a stop."""
        if self._registering is not None and not self._registering[0].done():
            task, ticket = self._registering
            task.cancel()
            self._queue.put_nowait(events.Failed(ticket))

    # -- actions

    def _perform(self, action: events.Action) -> bool:
        match action:
            case events.TakeSnapshot():
                self._answer(self._take_snapshot, action)
            case events.Register():
                self._registering = (self._answer(self._coordination.register, action), action.ticket)
            case events.Unregister():
                self._answer(self._coordination.unregister, action)
            case events.Claim():
                self._answer(self._coordination.claim, action)
            case events.Release():
                self._answer(self._coordination.release, action)
            case events.Nudge():
                nudging = self._tasks.create_task(self._coordination.nudge(action))
                self._nudging.add(nudging)
                nudging.add_done_callback(self._nudging.discard)
            case _:
                return self._perform_flow(action)
        return True

    async def _take_snapshot(self, action: events.TakeSnapshot) -> events.SnapshotTaken | events.Failed:
        answer = await self._coordination.take_snapshot(action)
        if isinstance(answer, events.SnapshotTaken):
            await in_turns(self._member.prepare(answer.snapshot))  # a large group must not hold up heartbeats
        return answer

    def _perform_flow(self, action: events.Action) -> bool:
        match action:
            case events.StartConsuming(session_id, streams):
                self._partitions.start(streams, session_id, self._tasks)
            case events.Drain(ticket, partitions, deadline):
                self._end(partial(self._partitions.drain, partitions, deadline), part=partial(events.Drained, ticket))
            case events.Abandon(ticket, partitions):
                self._end(partial(self._partitions.abandon, partitions), part=partial(events.Abandoned, ticket))
            case events.RefuseGroup(reason):
                self.request_stop(GroupRefusedError(self.settings.group, reason))
            case _:
                return super()._perform(action)
        return True

    def _answer(
        self, work: Callable[[_Action], Coroutine[None, None, events.Event]], action: _Action
    ) -> asyncio.Task[None]:
        async def perform() -> None:
            # The coroutine is made here: a task that is cancelled before its first step would leave it unawaited.
            self._queue.put_nowait(await work(action))

        return self._tasks.create_task(perform())

    # -- news from outside

    def _triggered(self) -> None:
        """A watch fired. Bursts become one event: the snapshot that it leads to sees them all."""
        if not self._trigger_queued:
            self._trigger_queued = True
            self._queue.put_nowait(events.Triggered())

    def _ownership_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self._coordination.look_again(partitions)
        self._queue.put_nowait(events.OwnershipLost(partitions))

    def _session_event(self, event: SessionEvent, session_id: int) -> None:
        match event:
            case SessionEvent.NEW:
                self._queue.put_nowait(events.SessionStarted(session_id))
            case SessionEvent.SUSPENDED:
                self._queue.put_nowait(events.SessionSuspended())
            case SessionEvent.RECONNECTED:
                self._queue.put_nowait(events.SessionResumed())
            case SessionEvent.EXPIRED:
                self._queue.put_nowait(events.SessionExpired())

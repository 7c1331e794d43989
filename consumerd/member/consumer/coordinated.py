"""The consumer in a group that a broker coordinates (0.9 and later).

Strategy: as `consumerd.member.consumer.consumer.GroupConsumer`: one queue of events, one loop that feeds them to the
pure machine (`consumerd.group.coordinated`), one method per kind of action. The flow of messages is the same, on a pool
that follows leaders and a store that the coordinator fences by generation. Heartbeats are tasks of their own, so
however long a handler takes, the member stays one.

    coordinator ──answers──►┐                             ┌──► GroupRequests (join, sync, heartbeat, leave)
    timer, lease ──────────►│ queue ► CoordinatedMember ──┤
    failures, stop ────────►┘                             └──► OwnedPartitions (fetch ► lane ► handler ► tracker)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any, NamedTuple, Unpack
from uuid import UUID

import structlog

from consumerd.base.errors import BrokerError, ConsumerdError, IdTakenError
from consumerd.base.partition import TopicPartition
from consumerd.group import coordinated_events as events
from consumerd.group.consumer_protocol import ConsumerProtocolMember
from consumerd.group.coordinated import CoordinatedMember
from consumerd.group.coordinated_base import BrokerMember
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.member.consumer.backends_v08 import ClusterBackend
from consumerd.member.consumer.fence import Fence, GroupLease
from consumerd.member.consumer.group_requests import ConsumerGroupRequests, GroupRequests
from consumerd.member.consumer.missing_topics import MissingTopics
from consumerd.member.consumer.running_member import MemberParts, RunningMember
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.wire.registry.subscription import Subscription
from consumerd.wire.v08.error_codes import ErrorCode, error_info

log = structlog.get_logger(__name__)


class GroupMetadata(NamedTuple):
    """A member in one generation of a group that a broker coordinates, as commits in a transaction name it."""

    generation: int
    member_id: str
    instance_id: str | None = None


class CoordinatedConsumer(RunningMember[events.Event]):
    """One member of one group. The caller closes the parts of `backend` after `run`.

    Numbers of streams in the subscription have no effect: a member has one share. `settings.consumer_id` is for logs
    and handlers; the coordinator gives the member's real id.
    """

    _member: BrokerMember

    def __init__(
        self,
        settings: ConsumerSettings,
        coordination: CoordinationSettings,
        *,
        backend: ClusterBackend,
        rng: Random,
        **parts: Unpack[MemberParts],
    ) -> None:
        super().__init__(settings, stop_event=events.StopRequested(), **parts)
        self._coordination = coordination
        self._requests: GroupRequests
        if coordination.protocol == "consumer":
            member_id = str(UUID(int=rng.getrandbits(128), version=4))
            self._member = ConsumerProtocolMember(settings.subscription, coordination, member_id)
            self._requests = ConsumerGroupRequests(backend.client, settings.group, coordination)
        else:
            self._member = CoordinatedMember(settings.subscription, coordination)
            self._requests = GroupRequests(backend.client, settings.group, coordination)
        self.fence = Fence(
            GroupLease(self._member, self.clock, coordination.session_timeout), self.clock, settings.lease_margin
        )
        pool = backend.pool(self, rng)
        self._request = self._requests.actions
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._awaited = MissingTopics(settings.group, settings.subscription)
        store = backend.store(settings.group, self._member)
        self.cluster, self.brokers = backend.cluster, backend.brokers
        self._make_partitions(
            pool, store, lambda partitions: self._queue.put_nowait(events.OwnershipLost(min(partitions)))
        )

    @property
    def assigned(self) -> list[TopicPartition]:
        """The partitions that are ours in this generation."""
        return list(self._member.assigned)

    @property
    def member_id(self) -> str:
        """The id that the coordinator gave; empty before."""
        return self._member.member_id

    @property
    def group_metadata(self) -> GroupMetadata:
        """The member in the present generation."""
        member = self._member
        return GroupMetadata(member.generation, member.member_id, member.instance_id)

    def _subscription_changed(self, subscription: Subscription) -> events.Event:
        self._awaited = MissingTopics(self.settings.group, subscription)
        return events.SubscriptionChanged(subscription)

    # -- life

    def _begin(self) -> None:
        self._queue.put_nowait(events.Started())

    def _background(self) -> list[Callable[[], Coroutine[None, None, None]]]:
        return [self._pool.run, self._watch_lease, *super()._background()]

    def _stragglers(self) -> list[asyncio.Task[None]]:
        return list(self._asking.values())

    def _finish(self) -> None:
        self._requests.forget()

    def _after(self, event: events.Event) -> None:
        if isinstance(event, events.TopicsRead):
            self._partitions.starts.exist(
                TopicPartition.numbered(topic, number)
                for topic, count in event.partitions.items()
                for number in range(count)
            )
            topics = {topic: {0: range(count)} for topic, count in event.partitions.items()}
            self._awaited.look(topics, self._requests.denied_topics)

    # -- actions

    def _perform(self, action: events.Action) -> bool:
        if (request := self._request.get(type(action))) is not None:
            self._answer(request, action)
            return True
        match action:
            case events.Forget(ticket):
                if ticket in self._asking:
                    self._asking[ticket].cancel()
                    self._requests.forget()
            case events.StartConsuming(partitions, session_id):
                self._start(partitions, session_id)
            case events.Drain(ticket, deadline, partitions):
                leaving = self._partitions.partitions if partitions is None else partitions
                self._end(partial(self._partitions.drain, leaving, deadline), whole=events.Drained(ticket))
            case events.Settled():
                self._rebalanced()
            case events.Abandon(ticket):
                held = self._partitions.partitions
                log.warning("partitions_abandoned", group=self.settings.group, partitions=len(held))
                self._end(partial(self._partitions.abandon, held), whole=events.Abandoned(ticket))
            case events.Refuse(code):
                self.request_stop(self._refusal(code))
            case _:
                return super()._perform(action)
        return True

    def _answer(self, request: Callable[[Any], Coroutine[None, None, events.Event]], action: Any) -> None:
        async def perform() -> None:
            self._queue.put_nowait(await request(action))

        task = self._asking[action.ticket] = self._tasks.create_task(perform())
        task.add_done_callback(lambda _: self._asking.pop(action.ticket, None))

    def _start(self, partitions: tuple[TopicPartition, ...], session_id: int) -> None:
        self._partitions.start(dict.fromkeys(partitions, 0), session_id, self._tasks)

    def _rebalanced(self) -> None:
        self.stats.rebalances += 1
        member = self._member
        log.info(
            "rebalanced",
            group=self.settings.group,
            generation=member.generation,
            member=member.member_id,
            leader=member.leads,
            partitions=[str(partition) for partition in member.assigned],
        )
        self.ready.set()

    def _refusal(self, code: int) -> ConsumerdError:
        if code in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID):
            return IdTakenError(
                f"the group.instance_id {self._coordination.instance_id!r} is held by another live member of group "
                f"{self.settings.group!r}; give each member its own."
            )
        return self._requests.refusal or BrokerError(
            f"cannot be a member of group {self.settings.group!r}: {error_info(code)}"
        )

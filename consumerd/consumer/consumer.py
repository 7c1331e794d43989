"""A group member at work: runs the membership machine and performs what it asks for.

Strategy: one queue of events, one loop that feeds them to the pure machine (`consumerd.group.membership.Member`), one
method per kind of action. Whatever takes time runs in a task of one TaskGroup and puts its answer into the queue; so
the machine is never entered twice, and there is no lock around decisions. Three functions tell the story: `run`
(start, main loop, end), `_perform` (an action), and `request_stop`.

    ZooKeeper session ──events──►┐                    ┌──► GroupCoordination (znodes)
    watches, timer, answers ────►│ queue ► Member ────┤
    failures, stop ─────────────►┘                    └──► OwnedPartitions (fetch ► lane ► handler ► tracker)
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

import structlog

from consumerd.cluster import BrokerDirectory
from consumerd.consumer.awaited import AwaitedTopics
from consumerd.consumer.controls import PartitionControls
from consumerd.consumer.coordination import GroupCoordination
from consumerd.consumer.errors import GroupRefusedError
from consumerd.consumer.fence import Fence
from consumerd.consumer.listeners import Announcer, NoHooks
from consumerd.consumer.partitions import OwnedPartitions
from consumerd.consumer.sinks import PartitionedHandler, PlainHandler
from consumerd.consumer.stats import ConsumerStats
from consumerd.errors import ConsumerdError, ExitCode, IdTakenError
from consumerd.fetch import ByteBudget, FetchPool
from consumerd.group import Member, Phase, events
from consumerd.handlers import HandlerContext
from consumerd.offsets import ZooKeeperOffsetStore
from consumerd.ports import SessionEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from random import Random

    from consumerd.consumer.listeners import RebalanceListener
    from consumerd.consumer.settings import ConsumerSettings
    from consumerd.handlers import Handler
    from consumerd.net import Connector
    from consumerd.partition import TopicPartition
    from consumerd.ports import Clock, ZooKeeper

log = structlog.get_logger(__name__)

_Action = TypeVar("_Action", bound=events.Action)


class GroupConsumer:
    """One member of one group. `zk` is a started session; it stays the caller's, who closes it after `run`.

    `handler` is what the policies of retrying have wrapped already; it is started before the member registers, and
    stopped when nothing is held any more. `listener` is told of partitions that come and go.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        *,
        zk: ZooKeeper,
        connect: Connector,
        handler: Handler | PartitionedHandler,
        clock: Clock,
        rng: Random,
        listener: RebalanceListener | None = None,
    ) -> None:
        self._settings = settings
        self._zk = zk
        self._handler = handler
        self._clock = clock
        self.stats = ConsumerStats()
        #: Set when the member is registered and its first assignment is decided, also when that is nothing.
        self.ready = asyncio.Event()
        self._queue: asyncio.Queue[events.Event] = asyncio.Queue()
        self._trigger_queued = False
        #: Set when leaving has begun, whoever asked for it.
        self.stopping = asyncio.Event()
        self._failure: ConsumerdError | None = None
        self._ever_registered = False
        self._timer: asyncio.Task[None] | None = None
        self._registering: tuple[asyncio.Task[None], int] | None = None
        self._nudging: set[asyncio.Task[None]] = set()
        self._drains: dict[TopicPartition, asyncio.Task[None]] = {}
        self._target: dict[TopicPartition, int] | None = None
        self._awaited = AwaitedTopics(settings.group, settings.subscription)
        self._tasks = asyncio.TaskGroup()
        self._member = Member(settings.group, settings.consumer_id, settings.subscription, settings.membership)
        self._fence = Fence(zk, clock, settings.lease_margin)
        self._directory = BrokerDirectory(zk, clock=clock)
        budget = ByteBudget(settings.budget)
        self._pool = FetchPool(connect, self._directory, budget, settings.fetch, clock, rng, self)
        self._coordination = GroupCoordination(
            zk,
            settings.group,
            settings.consumer_id,
            settings.subscription.format(),
            clock=clock,
            triggered=self._triggered,
        )
        self._announcer = (
            Announcer(listener, timeout=settings.listener_timeout, clock=clock, failed=self.request_stop)
            if listener is not None
            else None
        )
        store = ZooKeeperOffsetStore(zk, settings.group)
        self._partitions = OwnedPartitions(
            settings,
            self._pool,
            budget,
            store,
            handler if isinstance(handler, PartitionedHandler) else PlainHandler(handler),
            self._fence,
            clock,
            self.stats,
            self._announcer or NoHooks(),
            failed=self.request_stop,
            lost=lambda partition: self._queue.put_nowait(events.OwnershipLost(partition)),
            progressed=self._check_end,
        )
        self.controls = PartitionControls(self._partitions, self._pool, store)

    @property
    def failure(self) -> ConsumerdError | None:
        """What `run` will raise, once something went wrong that it cannot mend."""
        return self._failure

    @property
    def assigned(self) -> list[TopicPartition]:
        """The partitions that are to be ours, as far as decided; those that are still claimed or searched too."""
        return sorted(self._member.target)

    @property
    def owned(self) -> dict[TopicPartition, int | None]:
        """The partitions that flow now, with their handled positions (None until the start is found)."""
        return {partition: self._partitions.position(partition) for partition in sorted(self._partitions.partitions)}

    # -- life

    async def run(self) -> None:
        """Join, consume, and leave when `request_stop` was called (or at the end, if that was asked for).

        Raises what stopped the member: HandlerFailedError, IdTakenError, GroupRefusedError, fetch errors with the
        policy `fail`, ZooKeeperError. Cancelling it ends all handlers but releases nothing: closing the ZooKeeper
        session does that.
        """
        settings = self._settings
        await self._start_handler()
        unsubscribe = self._zk.subscribe(self._session_event)
        try:
            async with self._tasks:
                background = [self._tasks.create_task(self._stop_if_it_fails(work)) for work in self._background()]
                if self._zk.session_id:
                    self._queue.put_nowait(events.SessionStarted(self._zk.session_id))
                await self._main_loop()
                for task in [*background, *self._nudging, *([self._timer] if self._timer else [])]:
                    task.cancel()
        finally:
            unsubscribe()
            self._coordination.close()
            await self._handler.stop()
        log.info("member_left", group=settings.group, consumer=settings.consumer_id, **self.stats.totals())
        if self._failure is not None:
            raise self._failure

    def _background(self) -> list[Callable[[], Coroutine[None, None, None]]]:
        """What runs beside the main loop."""
        works = [self._directory.run, self._pool.run, self._watch_lease]
        if self._settings.auto_commit:
            works.append(self._commit_loop)
        if self._announcer is not None:
            works.append(self._announcer.run)
        return works

    async def _stop_if_it_fails(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """What runs beside the main loop ends the member in order when it meets something that it cannot mend."""
        try:
            await work()
        except ConsumerdError as error:
            self.request_stop(error)

    async def _start_handler(self) -> None:
        context = HandlerContext(self._settings.group, self._settings.consumer_id, self._clock)
        try:
            await self._handler.start(context)
        except BaseException:
            await self._handler.stop()
            raise

    def request_stop(self, failure: ConsumerdError | None = None) -> None:
        """Leave in order: drain, commit, release, unregister. The first `failure` given comes out of `run`."""
        if failure is not None and self._failure is None:
            self._failure = failure
            level = logging.INFO if failure.exit_code is ExitCode.OK else logging.ERROR
            log.log(level, "member_stops", group=self._settings.group, reason=str(failure))
        self.stopping.set()
        self._queue.put_nowait(events.StopRequested())

    async def _main_loop(self) -> None:
        while True:
            event = await self._queue.get()
            if isinstance(event, events.Triggered):
                self._trigger_queued = False
            elif isinstance(event, events.Registered):
                self._ever_registered = True
                log.info("member_registered", group=self._settings.group, consumer=self._settings.consumer_id)
            elif isinstance(event, events.RegistrationBlocked):
                self._give_up_on_taken_id()
            elif isinstance(event, events.StopRequested):
                self._hurry_registration()
            for action in self._member.handle(event, self._clock.monotonic()):
                if isinstance(action, events.Finished):
                    return
                self._perform(action)
            self._note_assignment(event)
            self._check_end()

    def _note_assignment(self, event: events.Event) -> None:
        if not isinstance(event, events.SnapshotTaken) or self._member.phase is not Phase.MEMBER:
            return
        self._awaited.look(event.snapshot.topics)
        target = dict(self._member.target)
        if target != self._target:
            self._target = target
            self.stats.rebalances += 1
            log.info("rebalanced", group=self._settings.group, partitions=sorted(map(str, target)))
        self.ready.set()

    def _give_up_on_taken_id(self) -> None:
        """At a start, a node that outlived any dead session of our kind is that of a live process."""
        if not self._ever_registered and self._settings.fixed_id:
            self.request_stop(
                IdTakenError(
                    f"the consumer id {self._settings.consumer_id!r} is held by another live member of group "
                    f"{self._settings.group!r}; give each member its own consumer_id."
                )
            )

    def _hurry_registration(self) -> None:
        """Registering may wait for the node of a dead process; whoever is asked to stop meanwhile does not."""
        if self._registering is not None and not self._registering[0].done():
            task, ticket = self._registering
            task.cancel()
            self._queue.put_nowait(events.Failed(ticket))

    def _check_end(self) -> None:
        if self._settings.stop_at_end and self._member.settled and self._partitions.all_at_end:
            self.request_stop()

    # -- actions

    def _perform(self, action: events.Action) -> None:
        match action:
            case events.TakeSnapshot():
                self._answer(self._coordination.take_snapshot, action)
            case events.Register():
                self._registering = (self._answer(self._coordination.register, action), action.ticket)
            case events.Unregister():
                self._answer(self._coordination.unregister, action)
            case events.Claim():
                self._answer(self._coordination.claim, action)
            case events.Release():
                self._answer(self._coordination.release, action)
            case events.Nudge():
                self._nudging = {task for task in self._nudging if not task.done()}
                self._nudging.add(self._tasks.create_task(self._coordination.nudge(action)))
            case events.SetTimer(at):
                self._set_timer(at)
            case events.Warn(reason):
                log.warning("group_warning", group=self._settings.group, reason=reason)
            case events.RefuseGroup(reason):
                self.request_stop(GroupRefusedError(self._settings.group, reason))
            case _:
                self._perform_flow(action)

    def _perform_flow(self, action: events.Action) -> None:
        match action:
            case events.StartConsuming(partition, session_id, stream):
                self._partitions.start(partition, stream, session_id, self._tasks)
            case events.Drain(partition, ticket, deadline):
                self._drains[partition] = self._tasks.create_task(self._drain(partition, ticket, deadline))
            case events.Abandon(partition, ticket):
                self._tasks.create_task(self._abandon(partition, ticket))
            case events.PauseHandover():
                self._fence.close()
            case events.ResumeHandover():
                self._fence.open()
            case _:
                raise AssertionError(f"no way to perform {action}")

    def _answer(
        self, work: Callable[[_Action], Coroutine[None, None, events.Event]], action: _Action
    ) -> asyncio.Task[None]:
        async def perform() -> None:
            # The coroutine is made here: a task that is cancelled before its first step would leave it unawaited.
            self._queue.put_nowait(await work(action))

        return self._tasks.create_task(perform())

    async def _drain(self, partition: TopicPartition, ticket: int, deadline: float) -> None:
        try:
            await self._partitions.drain(partition, deadline)
        finally:
            self._drains.pop(partition, None)
        self._queue.put_nowait(events.Drained(partition, ticket))

    async def _abandon(self, partition: TopicPartition, ticket: int) -> None:
        if drain := self._drains.get(partition):
            drain.cancel()
            await asyncio.wait([drain])
        await self._partitions.abandon(partition)
        self._queue.put_nowait(events.Abandoned(partition, ticket))

    def _set_timer(self, at: float) -> None:
        async def fire() -> None:
            await self._clock.sleep(at - self._clock.monotonic())
            self._queue.put_nowait(events.TimerFired())

        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._tasks.create_task(fire())

    # -- news from outside

    def _triggered(self) -> None:
        """A watch fired. Bursts become one event: the snapshot that it leads to sees them all."""
        if not self._trigger_queued:
            self._trigger_queued = True
            self._queue.put_nowait(events.Triggered())

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
        log.info("session_event", event_kind=event.value, session=f"{session_id:#x}")

    async def _watch_lease(self) -> None:
        await self._fence.watch(lambda: self._queue.put_nowait(events.LeaseExpired()))

    async def _commit_loop(self) -> None:
        while True:
            await self._clock.sleep(self._settings.commit_interval)
            if self._fence.is_open:
                await self._partitions.commit_all()

    # -- news from fetching (consumerd.fetch.FetchListener)

    def failed(self, partition: TopicPartition, error: ConsumerdError) -> None:
        """A `fail` policy: the daemon stops."""
        self.request_stop(error)

    def reset(self, partition: TopicPartition, old: int, new: int) -> None:
        """The log no longer has our offset. The tracker follows with the first batch from there."""
        log.warning("offset_out_of_range", partition=str(partition), offset=old, going_on_at=new)

    def skipped(self, partition: TopicPartition, offset: int, next_offset: int, reason: str) -> None:
        """A `skip` policy."""
        log.error("message_skipped", partition=str(partition), offset=offset, next_offset=next_offset, reason=reason)

    def parked(self, partition: TopicPartition, reason: str) -> None:
        """A `park` policy."""
        log.error("partition_parked", partition=str(partition), reason=reason)

"""The base of all members, for partitions assigned through ZooKeeper, by a broker or by the configuration.

Strategy: one queue of events, one loop that takes them, tasks in one TaskGroup, and a life in three parts: `_begin`,
`_main_loop`, `_finish`. The subclasses have a machine or none, and perform its actions. The handler is started before
anything else and stopped when the member owns nothing any more; the first permanent failure makes the member leave in
order, and is raised by `run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NotRequired, TypedDict, TypeVar, cast

import structlog

from consumerd.base.budget import ByteBudget
from consumerd.base.clock import Interval
from consumerd.base.errors import ConsumerdError, ExitCode, reason_of
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.base.settings.group import CommitSection
from consumerd.base.settings.processing import HandlerSection
from consumerd.group.shared_events import Finished, LeaseExpired, SetTimer, TimerFired, Warn
from consumerd.handlers import Handler, HandlerContext
from consumerd.handlers.rate import RateLimiter
from consumerd.member.consumer.controls import PartitionControls
from consumerd.member.consumer.fence import Fence
from consumerd.member.consumer.listeners import Announcer, RebalanceListener
from consumerd.member.consumer.owned_partition import OwnedView
from consumerd.member.consumer.partition_work import BatchInHand
from consumerd.member.consumer.partitions import OwnedPartitions
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.consumer.sinks import PartitionedHandler, PlainHandler
from consumerd.member.consumer.stats import ConsumerStats, Rebalance, SeenLogChange
from consumerd.member.fetch.log_changes import LogChange, LogChangeKind
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.offsets.store import OffsetStore
from consumerd.wire.registry.subscription import Subscription

if TYPE_CHECKING:
    from consumerd.member.consumer.blocked import BlockedClaim
    from consumerd.member.fetch.listener import FetchCounters

log = structlog.get_logger(__name__)

_Event = TypeVar("_Event")


class MemberParts(TypedDict):
    """What any member is made with, beside its settings.

    `handler` is already wrapped by the retry policies; it is started before the member joins, and stopped when it owns
    nothing any more. `listener` is notified of partitions that come and go. `budget` is the memory that members of one
    process share; by default the member has one of its own, of `settings.fetch.budget` bytes.
    """

    handler: Handler | PartitionedHandler
    clock: Clock
    listener: NotRequired[RebalanceListener | None]
    budget: NotRequired[ByteBudget | None]


class RunningMember(Generic[_Event]):
    """A running member. For its arguments see `MemberParts`; `stop_event` makes its machine leave."""

    #: The machine that decides, if there is one: a subclass names its type.
    _member: Any
    #: Made by the subclass with `_make_partitions`.
    _partitions: OwnedPartitions
    #: Unless the handler has a sink for each partition: such a handler is never exchanged.
    _plain: PlainHandler
    fence: Fence
    _pool: FetchPool
    controls: PartitionControls
    #: Tells the cluster's name, for `HandlerContext.cluster`.
    cluster: Callable[[], Awaitable[str | None]]
    #: Tells the number of brokers that are registered, as last seen; None while it is not known.
    brokers: Callable[[], int | None]

    def __init__(
        self,
        settings: ConsumerSettings,
        *,
        handler: Handler | PartitionedHandler,
        clock: Clock,
        listener: RebalanceListener | None = None,
        stop_event: _Event,
        budget: ByteBudget | None = None,
    ) -> None:
        self.settings = settings
        self._handler = handler
        #: Whether the handler was started and not stopped yet.
        self._handler_runs = False
        self.clock = clock
        self.stats = ConsumerStats()
        self.rate = RateLimiter(settings.handler.max_rate, clock, delay=settings.handler.delay)
        self._commit_interval = Interval(settings.commit.interval, clock)
        #: Set when the member is in its group and its first assignment is decided, also when that is nothing, and each
        #: of its partitions is either owned or known to have another owner.
        self.ready = asyncio.Event()
        #: Set when the handler has started, and the main loop is about to.
        self.running = asyncio.Event()
        #: Set when the member has begun to leave.
        self.stopping = asyncio.Event()
        #: Time of its start, on the clock.
        self.stopping_since: float | None = None
        self._queue: asyncio.Queue[_Event] = asyncio.Queue()
        self._stop_event = stop_event
        self._failure: ConsumerdError | None = None
        self._timer: asyncio.Task[None] | None = None
        #: While the handler starts: expires when the member is to leave.
        self._starting: asyncio.Timeout | None = None
        #: Bytes of messages that are held in memory; other members of the process may share it.
        self.budget = budget or ByteBudget(settings.fetch.budget)
        #: Events taken from the queue so far; the count rises while the queue is not empty.
        self.turns = 0
        #: The partitions that were ours before the present rebalance, and the time when it began.
        self._unsettled_since: float | None = None
        self._settled_with: tuple[int, frozenset[TopicPartition]] = 0, frozenset()
        self._tasks = asyncio.TaskGroup()
        self.hooks = Announcer(listener, timeout=settings.listener_timeout, clock=clock, failed=self.request_stop)

    def _make_partitions(
        self,
        pool: FetchPool,
        store: OffsetStore,
        lost: Callable[[frozenset[TopicPartition]], None],
    ) -> None:
        handler = self._handler
        self._pool = pool
        if not isinstance(handler, PartitionedHandler):
            handler = self._plain = PlainHandler(handler)
        self._partitions = OwnedPartitions(self, handler, pool, self.budget, store, lost)
        self.controls = PartitionControls(self._partitions, pool, store)

    @property
    def failure(self) -> ConsumerdError | None:
        """The permanent error that `run` will raise; None before one occurred."""
        return self._failure

    @property
    def assigned(self) -> list[TopicPartition]:
        """The partitions that are to be ours, as far as decided, whether they flow or not."""
        raise NotImplementedError

    @property
    def owned(self) -> dict[TopicPartition, int | None]:
        """The partitions that flow now, with their handled positions (None until the start is found)."""
        return {partition: self._partitions.position(partition) for partition in sorted(self._partitions.partitions)}

    @property
    def blocked(self) -> Mapping[TopicPartition, BlockedClaim] | None:
        """The assigned partitions that wait for another owner; None if that is not known, or nothing is claimed."""
        return None

    def why_not_consumed(self, partition: TopicPartition) -> str | None:
        """Why an assigned partition is not consumed, as a clause; None if it is, or that is not known."""
        return self._partitions.starts.waiting.get(partition)

    @property
    def unregistered(self) -> list[TopicPartition]:
        """Partitions of 0.7 that were ours when their broker's registration went away, which was less than a day ago.

        Nobody owns them until the broker is back.
        """
        return []

    @property
    def settled(self) -> bool:
        """Whether the member is in its group and consumes exactly its assignment, which may be empty."""
        return bool(self._member.settled)

    @property
    def in_session(self) -> bool:
        """Whether the session or generation holds at this moment: no other member can own what is ours."""
        session_id = self.fence.session_id
        return session_id != 0 and self.fence.allows(session_id)

    @property
    def waiting_events(self) -> int:
        """Events that the main loop has not taken yet."""
        return self._queue.qsize()

    @property
    def fetched(self) -> FetchCounters:
        """The counters of fetching."""
        return self._pool.counters

    def views(self) -> list[OwnedView]:
        """The present state of the owned partitions, sorted."""
        return self._partitions.views()

    def in_hand(self) -> dict[TopicPartition, BatchInHand]:
        """The batches that handlers have now, by partition."""
        return self._partitions.in_hand()

    # -- life

    async def run(self) -> None:
        """Join, consume, and leave when `request_stop` was called (or at the end, if so configured).

        Raises the failure that stopped the member: HandlerFailedError, IdTakenError, GroupRefusedError, fetch errors
        with the policy `fail`, ZooKeeperError, BrokerError. Cancelling it ends all handlers but releases nothing: the
        basis of the membership (the ZooKeeper session, heartbeats) then ends by itself.
        """
        if not await self._start_handler():
            return
        self._begin()
        try:
            async with self._tasks:
                self.running.set()
                background = [self._tasks.create_task(self._stop_if_it_fails(work)) for work in self._background()]
                try:
                    await self._main_loop()
                except BaseException:
                    await self._partitions.end_all()
                    raise
                for task in [*background, *self._stragglers(), *([self._timer] if self._timer else [])]:
                    task.cancel()
        finally:
            self._finish()
            await self._stop_handler()
        settings = self.settings
        log.info("member_left", group=settings.group, consumer=settings.consumer_id, **self.stats.totals())
        if self._failure is not None:
            raise self._failure

    def _begin(self) -> None:
        """Prepare, before any task runs."""

    async def _main_loop(self) -> None:
        """Take events until the member has left."""
        while True:
            event = await self._queue.get()
            self.turns += 1
            self._before(event)
            for action in self._decide(event):
                if not self._perform(action):
                    return
            self._after(event)
            self._note_rebalance()
            self.check_end()

    def _before(self, event: _Event) -> None:
        """Handle the part of an event that does not concern the machine."""

    def _decide(self, event: _Event) -> Iterable[Any]:
        """Return the machine's actions for an event."""
        actions: Iterable[Any] = self._member.handle(event, self.clock.monotonic())
        return actions

    def _perform(self, action: Any) -> bool:
        """Begin an action; False for the last one, when the member has left."""
        match action:
            case SetTimer(at):
                self._set_timer(at, TimerFired())
            case Warn(reason):
                log.warning("group_warning", group=self.settings.group, reason=reason)
            case Finished():
                return False
            case _:
                raise AssertionError(f"no way to perform {action}")
        return True

    def _after(self, event: _Event) -> None:
        """Handle the consequences of an event, after the machine's actions."""

    def _note_rebalance(self) -> None:
        """Measure from the event that unsettled the member to the one that settles it on another assignment."""
        if not self.settled:
            if self._unsettled_since is None:
                self._unsettled_since = self.clock.monotonic()
            return
        count, before = self._settled_with
        began, self._unsettled_since = self._unsettled_since, None
        if count == self.stats.rebalances:
            return
        ours = frozenset(self.assigned)
        self._settled_with = self.stats.rebalances, ours
        now = self.clock.monotonic()
        seconds = 0.0 if began is None else now - began
        gained, lost = tuple(sorted(ours - before)), tuple(sorted(before - ours))
        self.stats.rebalanced(Rebalance(now, seconds, len(ours), gained, lost))

    def _end(
        self,
        work: Callable[[Callable[[frozenset[TopicPartition]], None]], Coroutine[None, None, None]],
        *,
        part: Callable[[frozenset[TopicPartition]], _Event] | None = None,
        whole: _Event | None = None,
    ) -> None:
        """Begin to end flows. `part` makes the event for some partitions that have ended, `whole` is that for all."""

        def ended(partitions: frozenset[TopicPartition]) -> None:
            if part is not None:
                self._queue.put_nowait(part(partitions))

        async def end() -> None:
            await work(ended)
            if whole is not None:
                self._queue.put_nowait(whole)

        self._tasks.create_task(end())

    def _stragglers(self) -> list[asyncio.Task[None]]:
        """Tasks that are cancelled once the main loop has ended."""
        return []

    def _finish(self) -> None:
        """Clean up after every kind of end, when no task runs any more."""

    def _background(self) -> list[Callable[[], Coroutine[None, None, None]]]:
        """Return the work that runs beside the main loop."""
        return [self.hooks.run, *([self._commit_loop, self._check_loop] if self.settings.auto_commit else [])]

    async def _stop_if_it_fails(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run `work` beside the main loop; its permanent error makes the member leave in order."""
        try:
            await work()
        except ConsumerdError as error:
            self.request_stop(error)

    async def _start_handler(self) -> bool:
        """Start the handler; return whether it started. A stop ends the wait for a handler that starts slowly."""
        self._handler_runs = True
        context = HandlerContext(self.settings.group, self.settings.consumer_id, self.clock, member=_MemberPort(self))
        limit = asyncio.timeout(0 if self.stopping.is_set() else None)
        try:
            async with limit:
                self._starting = limit
                try:
                    await self._handler.start(context)
                finally:
                    self._starting = None
        except BaseException as error:
            await self._stop_handler()
            if not (isinstance(error, TimeoutError) and limit.expired()):
                raise
            if self._failure is not None:
                raise self._failure from error
            return False
        return True

    async def _stop_handler(self) -> None:
        """Stop the handler; its error is a failure of the member, unless there is an earlier one."""
        if not self._handler_runs:
            return
        self._handler_runs = False
        try:
            await self._handler.stop()
        except ConsumerdError as error:
            log.error("handler_not_stopped", group=self.settings.group, reason=reason_of(error))
            self._failure = self._failure or error

    # -- changes while it runs

    def change(self, commit: CommitSection, handler: HandlerSection) -> None:
        """Use other values of the keys that change at once."""
        self.settings = replace(self.settings, commit=commit, handler=handler)
        self._commit_interval.change(commit.interval)
        self.rate.change(handler.max_rate)

    def change_subscription(self, subscription: Subscription) -> None:
        """Consume other topics: register again with them. Partitions that stay ours continue meanwhile."""
        self.settings = replace(self.settings, subscription=subscription)
        log.info("subscription_changed", group=self.settings.group, topics=subscription.format())
        self._queue.put_nowait(self._subscription_changed(subscription))

    def _subscription_changed(self, subscription: Subscription) -> _Event:
        """Return the event for the machine."""
        raise NotImplementedError

    async def exchange_handler(
        self, handler: Handler, section: HandlerSection, former: Callable[[], Handler]
    ) -> ConsumerdError | None:
        """Stop the handler between batches and pass all later ones to `handler`, whose table is `section`.

        All flows end first, as in a drain: calls under way end, at the drain timeout they are cancelled, and what was
        handled is committed. So each message is handled by the one or by the other, and a handler that keeps positions
        is asked for them. Returns the error of a handler that does not start; then one that `former` makes continues,
        and if that does not start either, or the old one does not stop, the member stops.
        """
        await self.running.wait()
        if self.stopping.is_set():
            return None
        # One of the member's own tasks: it ends before the handler is stopped for good.
        task = self._tasks.create_task(self._exchange_handler(handler, section, former), name="exchange handler")
        await asyncio.wait([task])
        return None if task.cancelled() else task.result()

    async def _exchange_handler(
        self, handler: Handler, section: HandlerSection, former: Callable[[], Handler]
    ) -> ConsumerdError | None:
        began = self.clock.monotonic()
        await self._partitions.interrupt(began + self.settings.membership.drain_timeout)
        await self._stop_handler()
        if self._failure is not None:
            self.request_stop()
            return None
        error = None
        try:
            started = await self._start_other(handler)
            self.settings = replace(self.settings, handler=section)
        except ConsumerdError as failure:
            log.error("handler_not_started", group=self.settings.group, reason=reason_of(failure))
            error = failure
            try:
                started = await self._start_other(former())
            except ConsumerdError as second:
                self.request_stop(second)
                return error
        if started:
            self._partitions.resume(self._tasks)
            seconds = round(self.clock.monotonic() - began, 3)
            log.info("handler_exchanged", group=self.settings.group, seconds=seconds, former=error is not None)
        return error

    async def _start_other(self, handler: Handler) -> bool:
        self._handler = handler
        self._plain.replace(handler)
        return await self._start_handler()

    def request_stop(self, failure: ConsumerdError | None = None) -> None:
        """Leave in order: drain, commit, give back. The first `failure` given comes out of `run`."""
        if failure is not None and self._failure is None:
            self._failure = failure
            reason = reason_of(failure)
            if failure.exit_code is ExitCode.OK:
                log.info("member_stopping", group=self.settings.group, reason=reason)
            else:
                log.error("member_stopping", group=self.settings.group, reason=reason)
        if not self.stopping.is_set():
            self.stopping_since = self.clock.monotonic()
        self.stopping.set()
        if self._starting is not None:
            self._starting.reschedule(asyncio.get_running_loop().time())
        self._queue.put_nowait(self._stop_event)

    def check_end(self) -> None:
        """Leave, if the member stops at the end and all partitions are handled to it."""
        if self.settings.stop_at_end and self.settled and self._partitions.all_at_end:
            self.request_stop()

    def _tell(self, event: object) -> None:
        """Queue an event of any machine."""
        self._queue.put_nowait(cast("_Event", event))

    async def _watch_lease(self) -> None:
        await self.fence.watch(lambda session_id: self._tell(LeaseExpired(session_id)))

    def _set_timer(self, at: float, event: object) -> None:
        async def fire() -> None:
            await self.clock.sleep(at - self.clock.monotonic())
            self._tell(event)

        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._tasks.create_task(fire())

    async def _commit_loop(self) -> None:
        while True:
            await self._commit_interval.wait()
            await self._partitions.commit_all()

    async def _check_loop(self) -> None:
        """Check the committed offsets regularly: another process's write would stay while a partition is idle."""
        while True:
            await self.clock.sleep(self.settings.membership.reconcile_interval)
            await self._partitions.check_committed()

    # -- news from fetching (consumerd.member.fetch.listener.FetchListener)

    def failed(self, partition: TopicPartition, error: ConsumerdError) -> None:
        """Stop the member, as the policy `fail` says."""
        self.request_stop(error)

    async def reset(self, partition: TopicPartition, old: int, new: int) -> None:
        """The log no longer has our offset. The tracker follows by an empty batch, and that is committed."""
        log.warning("offset_out_of_range", partition=str(partition), offset=old, reset_to=new)
        await self._partitions.reset(partition)

    async def log_changed(self, partition: TopicPartition, change: LogChange, new: int) -> None:
        """The log is another one than that of our position. Else as `reset`."""
        self.stats.of(partition).log_change = SeenLogChange(change, new, self.clock.monotonic())
        gone = change.messages_gone
        log.warning(
            "log_truncated" if change.kind is LogChangeKind.TRUNCATED else "log_replaced",
            partition=str(partition),
            offset=change.offset,
            continue_at=new,
            **({} if gone is None else {"messages_gone": gone}),
            **(
                {"former": str(change.former), "now": str(change.now)}
                if change.reason is None
                else {"reason": f"the log {change.reason}"}
            ),
        )
        await self._partitions.reset(partition)

    def skipped(self, partition: TopicPartition, offset: int, next_offset: int, reason: str) -> None:
        log.error("message_skipped", partition=str(partition), offset=offset, next_offset=next_offset, reason=reason)

    def parked(self, partition: TopicPartition, reason: str) -> None:
        log.error("partition_parked", partition=str(partition), reason=reason)


class _MemberPort:
    """The operations of the member that a handler may use (`consumerd.handlers.context.MemberPort`)."""

    def __init__(self, member: RunningMember[Any]) -> None:
        self._member = member

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self._member.controls.assignment())

    async def cluster(self) -> str | None:
        return await self._member.cluster()

    async def commit(self) -> dict[TopicPartition, int]:
        return await self._member.controls.commit()

    async def committed(self, partition: TopicPartition) -> int | None:
        return await self._member.controls.committed_offset(partition)

    def pause(self, partition: TopicPartition) -> None:
        self._member.controls.pause(partition)

    def resume(self, partition: TopicPartition) -> None:
        self._member.controls.resume(partition)

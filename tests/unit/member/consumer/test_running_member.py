"""The life of a member without its membership: its loop and timers, its handler, what it measures, and how it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from consumerd.base.budget import ByteBudget
from consumerd.base.errors import BrokerError, ConsumerdError, HandlerFailedError
from consumerd.base.partition import TopicPartition
from consumerd.base.settings.group import CommitSection
from consumerd.base.settings.processing import HandlerSection
from consumerd.handlers import Batch, Handler, HandlerContext
from consumerd.member.consumer.errors import ConsumerTimeoutError
from consumerd.member.consumer.fence import Fence
from consumerd.member.consumer.partitions import OwnedPartitions
from consumerd.member.consumer.running_member import RunningMember
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.consumer.stats import Rebalance
from consumerd.member.fetch.listener import FetchCounters
from consumerd.testing.clock import FakeClock
from consumerd.testing.group import changed
from consumerd.wire.registry.subscription import StaticSubscription
from tests.support.waiting import turns

T0, T1 = (TopicPartition("t", 0, number) for number in range(2))


@dataclass
class Lease:
    """As much of a session as the fence looks at."""

    session_id: int = 1
    left: float = 10.0
    session_timeout: float = 6.0

    def lease_left(self) -> float:
        return self.left


class Slow(Handler):
    """Starts when `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.starts, self.stops = 0, 0

    async def start(self, context: HandlerContext) -> None:
        self.starts += 1
        await self.go.wait()

    async def stop(self) -> None:
        self.stops += 1

    async def handle(self, batch: Batch) -> None:
        raise NotImplementedError


class Ready(Slow):
    """Starts at once."""

    def __init__(self) -> None:
        super().__init__()
        self.go.set()


@dataclass
class Flows:
    """Instead of partitions: the times at which the member's background calls came."""

    clock: FakeClock
    commits: list[float] = field(default_factory=list)
    checks: list[float] = field(default_factory=list)
    failure: ConsumerdError | None = None
    ended: bool = False
    resumed: int = 0

    async def commit_all(self) -> None:
        self.commits.append(self.clock.now)

    async def check_committed(self) -> None:
        self.checks.append(self.clock.now)
        if self.failure is not None:
            raise self.failure

    async def interrupt(self, deadline: float) -> None:
        self.clock.jump(1.0)

    def resume(self, group: asyncio.TaskGroup) -> None:
        self.resumed += 1

    async def end_all(self) -> None:
        self.ended = True


class Member(RunningMember[str]):
    """A member whose machine is the test; "stop" ends it."""

    def __init__(self, handler: Handler, *, budget: ByteBudget | None = None, **settings: Any) -> None:
        self.time = FakeClock()
        super().__init__(
            changed(ConsumerSettings("g", "g_a", StaticSubscription({"t": 1})), **settings),
            handler=handler,
            clock=self.time,
            listener=None,
            stop_event="stop",
            budget=budget,
        )
        self.lease = Lease()
        self.fence = Fence(self.lease, self.time, 0.5)
        self._make_partitions(cast("Any", SimpleNamespace(counters=FetchCounters())), cast("Any", None), lambda _: None)
        self.flows = Flows(self.time)
        self._partitions = cast("OwnedPartitions", self.flows)
        #: Events that came, with their times.
        self.events: list[tuple[str, float]] = []
        self.is_settled = True
        self.ours: list[TopicPartition] = []
        self.ends = 0

    @property
    def assigned(self) -> list[TopicPartition]:
        return list(self.ours)

    @property
    def settled(self) -> bool:
        return self.is_settled

    def _decide(self, event: str) -> list[str]:
        self.events.append((event, self.time.now))
        return [event]

    def _perform(self, action: str) -> bool:
        return action != "stop"

    def check_end(self) -> None:
        pass

    def _finish(self) -> None:
        self.ends += 1

    def put(self, event: str) -> None:
        self._queue.put_nowait(event)

    def set_timer(self, at: float, event: str) -> None:
        self._set_timer(at, event)

    async def settle(self, settled: bool, ours: list[TopicPartition] | None = None) -> None:
        """Handle an event, after which the member is settled or not, perhaps with another assignment."""
        self.is_settled = settled
        if ours is not None:
            self.ours = ours
            self.stats.rebalances += 1
        self.put("changed")
        await turns()


@asynccontextmanager
async def running(member: Member) -> AsyncIterator[None]:
    """Run the member, and stop it at the end; raises what stopped it before."""
    run = asyncio.create_task(member.run())
    await member.running.wait()
    try:
        yield
    finally:
        member.request_stop()
        await run


async def test_measures_rebalances_from_the_first_change_until_all_is_settled() -> None:
    member = Member(Ready())
    async with running(member):
        await member.settle(False)
        member.time.jump(2.0)
        await member.settle(False)
        member.time.jump(3.0)
        await member.settle(True, [T1, T0])
        assert list(member.stats.history) == [Rebalance(1005.0, 5.0, 2, (T0, T1), ())]
        await member.settle(True)
        # The session was suspended, and everything is still ours.
        await member.settle(False)
        await member.settle(True)
        assert len(member.stats.history) == 1
        member.time.jump(1.0)
        await member.settle(True, [T1])
        assert list(member.stats.history)[1:] == [Rebalance(1006.0, 0.0, 1, (), (T0,))]


async def test_is_in_session_while_its_lease_lasts() -> None:
    member = Member(Ready())
    assert member.in_session
    member.lease.left = 0.0
    outdated = member.in_session
    member.lease.left, member.lease.session_id = 10.0, 0
    assert (outdated, member.in_session) == (False, False)


async def test_counts_events_that_wait_and_that_were_taken() -> None:
    member = Member(Ready())
    member.put("one")
    member.put("two")
    assert (member.waiting_events, member.turns) == (2, 0)
    async with running(member):
        await turns()
        assert (member.waiting_events, member.turns) == (0, 2)


async def test_members_of_a_process_share_a_budget() -> None:
    budget = ByteBudget(1 << 20)
    assert Member(Ready(), budget=budget).budget is budget
    assert Member(Ready(), budget=None).budget is not budget


async def test_timer_fires_on_time_and_replaces_the_former_one() -> None:
    member = Member(Ready(), auto_commit=False)
    async with running(member):
        member.set_timer(1005.0, "former")
        await turns()
        member.set_timer(1007.0, "timer")
        await turns()
        await member.time.advance(60.0)
        assert member.events == [("timer", 1007.0)]


async def test_ends_while_a_timer_runs() -> None:
    member = Member(Ready())
    async with running(member):
        member.set_timer(2000.0, "too late")
        await turns()
    assert member.events == [("stop", 1000.0)]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_cleans_up_after_any_end(cancelled: bool) -> None:
    handler = Ready()
    member = Member(handler)
    run = asyncio.create_task(member.run())
    await turns()
    if cancelled:
        run.cancel()
    else:
        member.request_stop()
    await asyncio.wait([run])
    assert run.cancelled() is cancelled
    assert (member.ends, handler.stops, member.flows.ended) == (1, 1, cancelled)


async def test_another_commit_interval_holds_at_once() -> None:
    member = Member(Ready(), commit_interval=10.0)
    async with running(member):
        await turns()
        await member.time.advance(25.0)
        member.change(CommitSection(interval=2.0), HandlerSection())
        await turns()
        await member.time.advance(10.0)
        member.change(CommitSection(interval=60.0), HandlerSection())
        await turns()
        await member.time.advance(65.0)
    assert member.settings.commit.interval == 60.0
    # The last commit was 5 s ago when 2 s became the interval, so the next one follows at once.
    assert member.flows.commits == [1010.0, 1020.0, 1025.0, 1027.0, 1029.0, 1031.0, 1033.0, 1035.0, 1095.0]


async def test_topics_of_a_member_without_subscription_cannot_be_changed() -> None:
    """As those of fixed partitions: anything else in the queue would be taken for the stop."""
    member = Member(Ready())
    with pytest.raises(NotImplementedError):
        member.change_subscription(StaticSubscription({"u": 1}))
    assert member.waiting_events == 0


async def test_checks_committed_offsets_at_the_interval_of_reconciliation() -> None:
    member = Member(Ready())
    interval = member.settings.membership.reconcile_interval
    async with running(member):
        await turns()
        await member.time.advance(2.5 * interval)
    assert member.flows.checks == [1000.0 + interval, 1000.0 + 2 * interval]


async def test_neither_commits_nor_checks_without_auto_commit() -> None:
    member = Member(Ready(), auto_commit=False)
    async with running(member):
        await turns()
        await member.time.advance(3600.0)
    assert (member.flows.commits, member.flows.checks) == ([], [])


async def test_stops_in_order_when_background_work_fails() -> None:
    member = Member(Ready())
    member.flows.failure = BrokerError("the coordinator refuses")
    run = asyncio.create_task(member.run())
    await turns()
    await member.time.advance(3600.0)
    with pytest.raises(BrokerError, match="the coordinator refuses"):
        await run
    assert [event for event, _ in member.events] == ["stop"]


async def test_remembers_when_it_began_to_leave() -> None:
    member = Member(Ready())
    async with running(member):
        assert member.stopping_since is None
        member.request_stop()
        member.time.jump(5.0)
        member.request_stop()
    assert member.stopping_since == 1000.0


@pytest.mark.parametrize(
    ("failure", "level"), [(BrokerError("gone for good"), "error"), (ConsumerTimeoutError(5.0), "info")]
)
async def test_logs_once_why_it_stops(failure: ConsumerdError, level: str) -> None:
    member = Member(Ready())
    with capture_logs() as logs:
        member.request_stop(failure)
        member.request_stop(HandlerFailedError("later"))
        member.request_stop()
    told = [(entry["log_level"], entry["reason"]) for entry in logs if entry["event"] == "member_stopping"]
    assert told == [(level, str(failure))]
    assert member.failure is failure


async def test_does_not_wait_for_a_handler_that_starts_after_the_stop() -> None:
    handler = Slow()
    member = Member(handler)
    member.request_stop()
    run = asyncio.create_task(member.run())
    await turns()
    assert run.done()
    await run
    assert (handler.stops, member.events) == (1, [])


async def test_timeout_of_a_starting_handler_is_raised() -> None:
    class TimesOut(Slow):
        async def start(self, context: HandlerContext) -> None:
            raise TimeoutError("the database does not answer")

    handler = TimesOut()
    with pytest.raises(TimeoutError, match="the database does not answer"):
        await Member(handler).run()
    assert handler.stops == 1


async def test_error_of_a_handler_whose_start_is_cancelled_is_raised() -> None:
    class Fails(Slow):
        async def start(self, context: HandlerContext) -> None:
            try:
                await super().start(context)
            except asyncio.CancelledError:
                raise HandlerFailedError("the lock was not released") from None

    member = Member(Fails())
    run = asyncio.create_task(member.run())
    await turns()
    member.request_stop()
    with pytest.raises(HandlerFailedError, match="the lock was not released"):
        await run


async def test_exchanges_no_handler_once_it_leaves() -> None:
    member, other = Member(Ready()), Ready()
    async with running(member):
        member.request_stop()
        assert await member.exchange_handler(other, HandlerSection(), Ready) is None
    assert (other.starts, other.stops) == (0, 0)


async def test_exchange_waits_until_the_first_handler_has_started() -> None:
    former, other = Slow(), Ready()
    member = Member(former)
    exchange = asyncio.create_task(member.exchange_handler(other, HandlerSection(), Ready))
    await turns()
    assert other.starts == 0
    former.go.set()
    async with running(member):
        assert await exchange is None
    assert (former.stops, other.starts, other.stops, member.flows.resumed) == (1, 1, 1, 1)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_exchange_ends_with_its_member(cancelled: bool) -> None:
    member, other = Member(Ready()), Slow()
    run = asyncio.create_task(member.run())
    exchange = asyncio.create_task(member.exchange_handler(other, HandlerSection(), Ready))
    await turns()
    assert other.starts == 1
    if cancelled:
        run.cancel()
    else:
        member.request_stop()
    await asyncio.wait([run])
    assert await exchange is None
    assert (other.stops, member.flows.resumed) == (1, 0)


@pytest.mark.parametrize("fails", [False, True])
async def test_logs_how_long_an_exchange_took(fails: bool) -> None:
    class Timed(Ready):
        async def start(self, context: HandlerContext) -> None:
            member.time.jump(0.0004)
            if fails and self is other:
                raise HandlerFailedError("no database")

    other = Timed()
    member = Member(Ready())
    with capture_logs() as logs:
        async with running(member):
            await member.exchange_handler(other, HandlerSection(), Timed)
    (entry,) = [entry for entry in logs if entry["event"] == "handler_exchanged"]
    assert (entry["seconds"], entry["former"]) == (1.001 if fails else 1.0, fails)


async def test_stops_when_the_former_handler_does_not_stop() -> None:
    class Unstoppable(Ready):
        async def stop(self) -> None:
            raise HandlerFailedError("the database is unavailable")

    member, other = Member(Unstoppable()), Ready()
    run = asyncio.create_task(member.run())
    assert await member.exchange_handler(other, HandlerSection(), Ready) is None
    await turns()
    assert [event for event, _ in member.events] == ["stop"]
    with pytest.raises(HandlerFailedError, match="the database is unavailable"):
        await run
    assert (other.starts, other.stops) == (0, 0)


async def test_handler_commits_and_pauses_through_its_context(group: Any) -> None:
    contexts: list[HandlerContext] = []

    async def start(context: HandlerContext) -> None:
        contexts.append(context)

    group.topic("t", 1)
    end = group.broker.append("t", 0, b"one")
    handler = group.recorder()
    handler.start = start
    member = await group.member(handler=handler)
    await group.until(lambda: member.consumer.owned.get(T0) == end)
    (context,) = contexts
    assert context.partitions == (T0,)
    assert await context.commit() == {T0: end} == {T0: group.offset(T0)}
    paused = []
    for change in (context.pause, context.resume):
        change(T0)
        paused.append(member.consumer.views()[0].paused)
    assert paused == [True, False]
    await member.stop()

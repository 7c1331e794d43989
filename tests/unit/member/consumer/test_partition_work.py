"""The delivery of one partition: order, the fence, drains and handled positions."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from consumerd.base.budget import ByteBudget
from consumerd.base.clock import SystemClock
from consumerd.base.errors import HandlerFailedError
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.base.settings.processing import HandlerSection
from consumerd.handlers import Batch, Handler, Message, message_handler
from consumerd.handlers.rate import RateLimiter
from consumerd.member.consumer.fence import Fence
from consumerd.member.consumer.partition_work import BatchInHand, PartitionWork
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.consumer.sinks import Sink
from consumerd.member.consumer.stats import ConsumerStats
from consumerd.member.fetch.lane import Lane
from consumerd.testing.clock import FakeClock
from consumerd.wire.registry.subscription import StaticSubscription
from consumerd.wire.v07 import BatchEnd, MessageBatch, decode_batch, encode_message_set
from consumerd.wire.v07.batch import MessageRun
from consumerd.wire.v08.records import RecordSet, decode_records, encode_record_batch
from consumerd.wire.v08.records import encode_message_set as encode_keyed_set
from tests.support.waiting import cancel

TP = TopicPartition("t", 0, 1)
SESSION = 7


@dataclass
class Lease:
    """As much of a session as the fence looks at."""

    session_id: int = SESSION
    left: float = 10.0
    session_timeout: float = 6.0

    def lease_left(self) -> float:
        return self.left


class Recorder(Handler):
    """Remembers payloads; `during` is awaited within each batch, before the batch counts."""

    def __init__(self, during: Callable[[Batch], "asyncio.Future[None] | None"] = lambda _: None) -> None:
        self.seen: list[bytes] = []
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self._during = during

    async def handle(self, batch: Batch) -> None:
        self.started.set()
        try:
            if waiting := self._during(batch):
                await waiting
            self.seen += batch.payloads
        finally:
            self.ended.set()


class NotingSink(Sink):
    """Passes batches through to the handler, and notes the other calls."""

    def __init__(self, handler: Handler) -> None:
        self.handle = handler.handle  # type: ignore[method-assign]
        self.calls: list[str] = []

    def settle(self) -> None:
        self.calls.append("settle")

    def wind_down(self) -> None:
        self.calls.append("wind down")

    def discard(self) -> None:
        self.calls.append("discard")

    def hold(self, held: bool) -> None:
        self.calls.append("hold" if held else "let go")


def batch(start: int, *payloads: bytes) -> MessageBatch:
    return decode_batch(encode_message_set(payloads), start)


@dataclass
class Setup:
    handler: Handler
    lease: Lease = field(default_factory=Lease)
    start: int = 0
    section: HandlerSection = field(default_factory=HandlerSection)
    clock: "Clock" = field(default_factory=SystemClock)
    rate: RateLimiter = field(default_factory=lambda: RateLimiter(None, SystemClock()))

    def __post_init__(self) -> None:
        self.budget = ByteBudget(1 << 20)
        self.lane = Lane(TP, self.budget, max_bytes=1 << 20)
        self.settings = ConsumerSettings("g", "g_a", StaticSubscription({"t": 1}), handler=self.section)
        self.stats = ConsumerStats()
        self.fence = Fence(self.lease, SystemClock(), 0.5)  # only what it looks at
        self.sink = NotingSink(self.handler)
        self.work = PartitionWork(TP, SESSION, self.start, self.lane, self.sink, self)
        self.progress = asyncio.Event()
        self.task = asyncio.create_task(self.work.run())

    def check_end(self) -> None:
        self.progress.set()

    def put(self, messages: MessageBatch | RecordSet) -> int:
        self.lane.put(messages, self.budget.charge(messages.memory_bytes))
        return messages.next_offset

    async def position(self, offset: int) -> None:
        async with asyncio.timeout(60):
            while self.work.position != offset:
                self.progress.clear()
                await self.progress.wait()


@pytest_asyncio.fixture
async def setups() -> AsyncIterator[list[Setup]]:
    made: list[Setup] = []
    yield made
    for each in made:
        await cancel(each.task)


async def test_delivers_batches_in_order(setups: list[Setup]) -> None:
    handler = Sizes()
    setups.append(s := Setup(handler))
    middle = s.put(batch(0, b"a", b"b"))
    end = s.put(batch(middle, b"c"))
    await s.position(end)
    assert handler.batches == [[b"a", b"b"], [b"c"]]  # as they were fetched
    assert s.budget.used == 0
    assert (s.stats.messages, s.stats.bytes) == (3, end)


class WatchedBatch(MessageBatch):
    """A decoded batch that can be referred to weakly."""

    __slots__ = ("__weakref__",)


async def test_nothing_refers_to_a_handled_batch_while_the_next_one_is_awaited(setups: list[Setup]) -> None:
    setups.append(s := Setup(Recorder()))
    messages = WatchedBatch([b"a"], [MessageRun(0, 0, 10)], 0, 11, 1, end=BatchEnd.COMPLETE)
    handled = weakref.ref(messages)
    end = s.put(messages)
    del messages
    await s.position(end)
    assert s.budget.used == 0
    assert handled() is None


async def test_delivers_nothing_on_short_lease(setups: list[Setup]) -> None:
    handler = Recorder()
    setups.append(s := Setup(handler, Lease(left=0.4)))
    end = s.put(batch(0, b"a"))
    await asyncio.sleep(0.15)
    assert handler.seen == []
    s.lease.left = 5.0
    await s.position(end)
    assert handler.seen == [b"a"]


async def test_delivers_nothing_for_other_session(setups: list[Setup]) -> None:
    handler = Recorder()
    setups.append(s := Setup(handler, Lease(session_id=SESSION + 1)))
    s.put(batch(0, b"a"))
    await asyncio.sleep(0.15)
    assert handler.seen == []
    assert not s.fence.allows(SESSION)


async def test_drain_finishes_current_batch_and_drops_rest(setups: list[Setup]) -> None:
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    handler = Recorder(lambda _: gate)
    setups.append(s := Setup(handler))
    first = s.put(batch(0, b"a"))
    s.put(batch(first, b"b"))
    await handler.started.wait()
    with capture_logs() as logs:
        drain = asyncio.create_task(s.work.drain(s.task, SystemClock().monotonic() + 5))
        await asyncio.sleep(0)
        assert s.sink.calls == ["wind down"]
        gate.set_result(None)
        await drain
    assert logs == []
    assert handler.seen == [b"a"]
    assert s.work.position == first
    assert s.budget.used == 0


async def test_drain_returns_at_deadline(setups: list[Setup]) -> None:
    handler = Recorder(lambda _: asyncio.get_running_loop().create_future())
    setups.append(s := Setup(handler))
    s.put(batch(0, b"a"))
    await handler.started.wait()
    with capture_logs() as logs:
        await s.work.drain(s.task, SystemClock().monotonic() + 0.05)
    assert [entry["event"] for entry in logs] == ["drain_deadline_passed"]
    assert not s.task.done()
    await cancel(s.task)
    assert handler.ended.is_set()
    assert (handler.seen, s.work.position) == ([], 0)


async def test_drain_does_not_wait_after_its_deadline(setups: list[Setup]) -> None:
    handler = Recorder(lambda _: asyncio.get_running_loop().create_future())
    setups.append(s := Setup(handler))
    s.put(batch(0, b"a"))
    await handler.started.wait()
    drain = asyncio.create_task(s.work.drain(s.task, SystemClock().monotonic() - 5))
    for _ in range(10):
        await asyncio.sleep(0)
    assert drain.done()
    await drain


async def test_shows_the_batch_that_the_handler_has(setups: list[Setup]) -> None:
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    handler = Recorder(lambda _: gate)
    clock = FakeClock()
    setups.append(s := Setup(handler, start=100, clock=clock))
    shown = [s.work.in_hand]
    end = s.put(batch(100, b"a", b"b"))
    await handler.started.wait()
    clock.jump(3.0)
    s.sink.calls.clear()
    shown.append(s.work.in_hand)
    assert s.sink.calls == ["settle"]
    gate.set_result(None)
    await s.position(end)
    shown.append(s.work.in_hand)
    assert shown == [None, BatchInHand(1000.0, 100, 0, 2), None]
    assert s.stats.of(TP).topic.durations.total == 3.0


async def test_counts_marks_of_cancelled_handler_up_to_outer_message(setups: list[Setup]) -> None:
    class Marks(Handler):
        async def handle(self, batch: Batch) -> None:
            batch.mark(2)
            started.set()
            await asyncio.Event().wait()

    started = asyncio.Event()
    setups.append(s := Setup(Marks()))
    s.put(batch(0, b"a", b"b", b"c"))
    await started.wait()
    await s.work.drain(s.task, SystemClock().monotonic())
    await cancel(s.task)
    assert s.work.position == 2 * len(encode_message_set([b"a"]))


async def test_position_follows_single_messages_and_stays_at_the_one_that_is_cancelled(setups: list[Setup]) -> None:
    at_twentieth = asyncio.Event()

    @message_handler
    def each(message: Message) -> Awaitable[bool] | None:
        if message.payload != b"20":
            return None
        at_twentieth.set()
        return asyncio.Event().wait()

    setups.append(s := Setup(each))
    s.put(batch(0, *[b"%02d" % number for number in range(40)]))
    await at_twentieth.wait()
    boundary = 20 * len(encode_message_set([b"00"]))
    assert s.work.position == boundary
    assert s.work.in_hand is not None
    assert s.work.in_hand[1:] == (0, 20, 40)
    assert s.fence._held == 1
    await s.work.drain(s.task, SystemClock().monotonic())
    await cancel(s.task)
    assert s.fence._held == 0
    assert s.work.position == boundary
    assert s.stats.messages == 20


async def test_counts_marks_in_current_batch_at_once(setups: list[Setup]) -> None:
    class Marks(Handler):
        async def handle(self, batch: Batch) -> None:
            for count in range(len(batch)):
                batch.mark(count)
                await steps.get()

    steps: asyncio.Queue[None] = asyncio.Queue()
    setups.append(s := Setup(Marks()))
    end = s.put(batch(0, b"a", b"b", b"c"))
    for count in range(3):
        async with asyncio.timeout(60):
            while s.work.position != count * 11:
                await asyncio.sleep(0)
        assert s.stats.messages == 0
        steps.put_nowait(None)
    await s.position(end)
    assert s.stats.messages == 3


async def test_seek_discards_started_batch(setups: list[Setup]) -> None:
    go_on: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    handler = Recorder(lambda _: None if go_on.done() else go_on)
    setups.append(s := Setup(handler))
    s.put(batch(0, b"a"))
    await handler.started.wait()
    s.work.seek(500)
    s.lane.clear()
    assert s.work.position == 500
    go_on.set_result(None)
    await handler.ended.wait()
    end = s.put(batch(500, b"b"))
    await s.position(end)
    assert handler.seen == [b"a", b"b"]
    assert s.stats.messages == 1
    assert s.sink.calls.count("discard") == 1


async def test_marks_of_a_batch_from_before_a_seek_have_no_effect(setups: list[Setup]) -> None:
    class Marks(Handler):
        async def handle(self, batch: Batch) -> None:
            batch.mark(1)
            started.set()
            await asyncio.Event().wait()

    started = asyncio.Event()
    setups.append(s := Setup(Marks(), start=1000))
    s.put(batch(1000, b"a", b"b"))
    await started.wait()
    s.work.seek(0)
    assert s.work.position == 0


async def test_seek_drops_batch_waiting_at_fence(setups: list[Setup]) -> None:
    handler = Recorder()
    setups.append(s := Setup(handler, Lease(left=0.0)))
    s.put(batch(0, b"a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(s.lane) == 0
    s.work.seek(500)
    s.lease.left = 5.0
    end = s.put(batch(500, b"b"))
    await s.position(end)
    assert handler.seen == [b"b"]


async def test_raises_final_error_of_handler(setups: list[Setup]) -> None:
    class Fails(Handler):
        async def handle(self, batch: Batch) -> None:
            raise HandlerFailedError("no")

    setups.append(s := Setup(Fails(), start=100))
    s.put(batch(100, b"a"))
    with pytest.raises(HandlerFailedError):
        await s.task
    assert s.work.position == 100
    assert s.stats.of(TP).handled_at is None


async def test_backward_reset_moves_position(setups: list[Setup]) -> None:
    handler = Recorder()
    setups.append(s := Setup(handler, start=5000))
    end = s.put(batch(0, b"again"))
    await s.position(end)
    assert handler.seen == [b"again"]


@pytest.mark.parametrize("max_batch", [None, 2])
async def test_range_without_messages_moves_the_position_only(setups: list[Setup], max_batch: int | None) -> None:
    handler = Sizes()
    setups.append(s := Setup(handler, Lease(left=0.0), section=HandlerSection(max_batch=max_batch)))
    await s.position(s.put(MessageBatch([], [], 0, 50, 0, end=BatchEnd.COMPLETE)))
    assert handler.batches == []
    assert s.stats.of(TP).handled_at is None


async def waiting_for_rate(clock: FakeClock) -> None:
    async with asyncio.timeout(60):
        while not clock.sleepers:
            await asyncio.sleep(0)


async def test_the_rate_holds_over_all_partitions_and_its_wait_is_not_the_handlers(setups: list[Setup]) -> None:
    clock, handlers = FakeClock(), [Sizes() for _ in range(8)]
    rate = RateLimiter(500.0, clock)
    setups += [Setup(handler, clock=clock, rate=rate) for handler in handlers]
    end = {s.put(batch(0, *[b"x"] * 2000)) for s in setups}.pop()
    counts = []
    for _ in range(31):
        await waiting_for_rate(clock)
        counts.append(sum(s.stats.messages for s in setups))
        assert all(s.work.in_hand is None for s in setups)
        await clock.advance(1.0)
    assert counts == [500 * (second + 1) for second in range(31)]
    for s in setups:
        await s.position(end)
        assert s.stats.of(TP).topic.durations.total == 0.0
    assert [sum(map(len, handler.batches)) for handler in handlers] == [2000] * 8


@pytest.mark.parametrize("how", ["drain", "seek", "change"])
async def test_a_batch_that_waits_for_its_rate_ends_its_wait_at_once(setups: list[Setup], how: str) -> None:
    handler, clock = Recorder(), FakeClock()
    setups.append(s := Setup(handler, clock=clock, rate=RateLimiter(0.001, clock)))
    middle = s.put(batch(0, b"a", b"b")) // 2
    await waiting_for_rate(clock)
    assert s.work.position == middle
    if how == "drain":
        await s.work.drain(s.task, clock.now + 5)
        assert s.task.done()
    elif how == "seek":
        s.work.seek(500)
        end = s.put(batch(500, b"c"))
        await waiting_for_rate(clock)
        s.rate.change(None)
        await s.position(end)
    else:
        s.rate.change(1000.0)
        await s.position(2 * middle)
    assert handler.seen == {"drain": [b"a"], "seek": [b"a", b"c"], "change": [b"a", b"b"]}[how]
    assert (clock.now, s.budget.used) == (1000.0, 0)


@pytest.mark.parametrize("why", ["paused", "short lease"])
async def test_nothing_is_delivered_after_a_wait_that_may_not_be_any_more(setups: list[Setup], why: str) -> None:
    handler, clock = Recorder(), FakeClock()
    setups.append(s := Setup(handler, clock=clock, rate=RateLimiter(1.0, clock)))
    end = s.put(batch(0, b"a", b"b"))
    await waiting_for_rate(clock)
    if why == "paused":
        s.work.hold(True)
    else:
        s.lease.left = 0.0
    await clock.advance(5.0)
    assert handler.seen == [b"a"]
    s.work.hold(False)
    s.lease.left = 5.0
    await s.position(end)
    assert handler.seen == [b"a", b"b"]
    assert clock.now == 1005.0  # its token was not lost


class Sizes(Recorder):
    """Remembers batches as well."""

    def __init__(self, during: Callable[[Batch], "asyncio.Future[None] | None"] = lambda _: None) -> None:
        super().__init__(during)
        self.batches: list[list[bytes]] = []

    async def handle(self, batch: Batch) -> None:
        self.batches.append(list(batch))
        await super().handle(batch)


async def test_what_comes_within_the_linger_is_one_batch_up_to_its_size(setups: list[Setup]) -> None:
    handler = Sizes()
    setups.append(s := Setup(handler, section=HandlerSection(max_batch=3, linger=60.0)))
    end = 0
    for payload in (b"a", b"b", b"c", b"d", b"e", b"f"):
        end = s.put(batch(end, payload))
        await asyncio.sleep(0)
    await s.position(end)
    assert handler.batches == [[b"a", b"b", b"c"], [b"d", b"e", b"f"]]
    assert s.budget.used == 0


async def test_delivers_a_batch_that_is_not_full_after_the_linger(setups: list[Setup]) -> None:
    handler = Sizes()
    setups.append(s := Setup(handler, section=HandlerSection(max_batch=3, linger=0.01)))
    await s.position(s.put(batch(0, b"a", b"b")))
    assert handler.batches == [[b"a", b"b"]]


async def test_a_large_batch_is_cut_and_each_part_moves_the_position(setups: list[Setup]) -> None:
    gates = [asyncio.get_running_loop().create_future() for _ in range(3)]
    left = iter(gates)
    handler = Sizes(lambda _: next(left))
    setups.append(s := Setup(handler, section=HandlerSection(max_batch=2)))
    fetched = batch(0, b"a", b"b", b"c", b"d", b"e")
    s.put(fetched)
    gates[0].set_result(None)
    await s.position(fetched.prefix(2))
    assert s.budget.used > 0  # all of what was fetched is held
    gates[1].set_result(None)
    await s.position(fetched.prefix(4))
    gates[2].set_result(None)
    await s.position(fetched.next_offset)
    assert handler.batches == [[b"a", b"b"], [b"c", b"d"], [b"e"]]
    assert s.budget.used == 0


@pytest.mark.parametrize("by", ["drain", "seek"])
async def test_parts_that_were_not_begun_are_dropped(setups: list[Setup], by: str) -> None:
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    handler = Sizes(lambda batch: gate if batch[0] == b"a" else None)
    setups.append(s := Setup(handler, section=HandlerSection(max_batch=1)))
    fetched = batch(0, b"a", b"b", b"c")
    s.put(fetched)
    await handler.started.wait()
    if by == "drain":
        s.lane.close()
        gate.set_result(None)
        await s.task
        assert s.work.position == fetched.prefix(1)
    else:
        s.lane.clear()
        s.work.seek(1000)
        gate.set_result(None)
        await s.position(s.put(batch(1000, b"z")))
    assert handler.batches == [[b"a"]] + ([] if by == "drain" else [[b"z"]])
    assert s.budget.used == 0


async def test_what_waits_for_more_is_dropped_by_a_seek_and_by_a_drain(setups: list[Setup]) -> None:
    handler = Sizes()
    setups.append(s := Setup(handler, section=HandlerSection(max_batch=2, linger=60.0)))
    s.put(batch(0, b"a"))
    while len(s.lane):
        await asyncio.sleep(0)
    s.lane.clear()
    s.work.seek(1000)
    end = s.put(batch(s.put(batch(1000, b"y")), b"z"))
    await s.position(end)
    assert handler.batches == [[b"y", b"z"]]
    assert s.budget.used == 0
    s.put(batch(end, b"q"))
    while len(s.lane):
        await asyncio.sleep(0)
    s.lane.close()
    await s.task
    assert handler.batches == [[b"y", b"z"]]
    assert s.work.position == end
    assert s.budget.used == 0


async def test_cancellation_releases_what_waits_for_more(setups: list[Setup]) -> None:
    setups.append(s := Setup(Sizes(), section=HandlerSection(max_batch=2, linger=60.0)))
    s.put(batch(0, b"a"))
    while len(s.lane):
        await asyncio.sleep(0)
    await cancel(s.task)
    assert s.budget.used == 0


@pytest.mark.parametrize("by", ["nothing", "seek", "drain"])
async def test_batch_that_cannot_be_joined_is_the_next_one(setups: list[Setup], by: str) -> None:
    """The log begins again at a lower offset; a seek or drain drops that batch."""
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    handler = Sizes(lambda batch: gate if batch[0] == b"a" else None)
    setups.append(s := Setup(handler, start=5000, section=HandlerSection(max_batch=2, linger=60.0)))
    first = batch(5000, b"a")
    s.put(first)
    end = s.put(batch(0, b"b", b"c"))
    await handler.started.wait()
    if by == "seek":
        s.work.seek(9000)
        assert s.budget.used == first.memory_bytes
        end = s.put(batch(9000, b"y", b"z"))
    drain = asyncio.create_task(s.work.drain(s.task, SystemClock().monotonic() + 60)) if by == "drain" else None
    await asyncio.sleep(0)
    gate.set_result(None)
    if drain is None:
        await s.position(end)
    else:
        await drain
        assert s.work.position == first.next_offset
    following = {"nothing": [[b"b", b"c"]], "seek": [[b"y", b"z"]], "drain": []}
    assert handler.batches == [[b"a"], *following[by]]


async def test_delivers_nothing_while_it_is_held(setups: list[Setup]) -> None:
    handler = Recorder()
    setups.append(s := Setup(handler))
    s.work.hold(True)
    end = s.put(batch(0, b"a"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not handler.started.is_set()
    assert s.work.position == 0
    s.work.hold(False)
    assert s.sink.calls == ["hold", "let go"]
    await s.position(end)
    assert handler.seen == [b"a"]


async def test_drain_does_not_wait_for_what_is_held(setups: list[Setup]) -> None:
    handler = Recorder()
    setups.append(s := Setup(handler))
    s.work.hold(True)
    s.put(batch(0, b"a"))
    for _ in range(10):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await s.work.drain(s.task, SystemClock().monotonic() + 600)
    assert s.task.done()
    assert handler.seen == []
    assert s.work.position == 0
    assert s.budget.used == 0


async def test_seek_drops_what_is_held(setups: list[Setup]) -> None:
    handler = Recorder()
    setups.append(s := Setup(handler))
    s.work.hold(True)
    first = s.put(batch(0, b"a"))
    for _ in range(10):
        await asyncio.sleep(0)
    s.work.seek(first)
    end = s.put(batch(first, b"b"))
    s.work.hold(False)
    await s.position(end)
    assert handler.seen == [b"b"]


async def test_knows_the_timestamp_of_the_next_message(setups: list[Setup]) -> None:
    marked, go = asyncio.Event(), asyncio.Event()

    class Marking(Handler):
        async def handle(self, batch: Batch) -> None:
            batch.mark(1)
            marked.set()
            await go.wait()

    setups.append(s := Setup(Marking(), start=5))

    def stamp() -> int | None:
        return s.work.next_timestamp

    assert stamp() is None
    s.work.hold(True)
    end = s.put(decode_records(encode_record_batch([b"a", b"b"], timestamps=[1000, 2000], base_offset=5), 5))
    while len(s.lane):
        await asyncio.sleep(0)
    assert stamp() == 1000  # of the batch that is taken, and not delivered yet
    s.work.hold(False)
    await marked.wait()
    assert stamp() == 2000
    marked.clear()
    end = s.put(decode_records(encode_keyed_set([b"d"], timestamps=4000, base_offset=end), end))
    go.set()
    await s.position(end)
    assert stamp() is None
    go.clear()
    marked.clear()
    s.put(batch(end, b"of 0.7"))
    await marked.wait()
    assert stamp() is None
    s.work.seek(0)
    assert stamp() is None


async def test_counts_how_old_messages_are_when_they_are_handled(setups: list[Setup]) -> None:
    clock = FakeClock()
    now = round(clock.wall() * 1000)
    setups.append(s := Setup(Recorder(), clock=clock, section=HandlerSection(max_batch=4)))

    async def counted(*ages: int | None) -> dict[float, int]:
        """The messages of one fetch, each by the age in milliseconds; all so far by upper bounds."""
        stamps = [-1 if age is None else now - age for age in ages]
        data = encode_record_batch([b"m"] * len(ages), timestamps=stamps, base_offset=s.work.position)
        await s.position(s.put(decode_records(data, s.work.position)))
        histogram = s.stats.topics["t"].ages
        return {bound: here for bound, here in zip(histogram.bounds, histogram.counts, strict=False) if here}

    end = s.put(batch(0, b"of 0.7"))
    await s.position(end)
    assert await counted(None, None) == {}
    assert await counted(None, 2000) == {}
    assert await counted(2000) == {2.5: 1}
    assert await counted(-7_200_000) == {0.001: 1, 2.5: 1}  # its clock is ahead
    # Those of a batch are spaced evenly: 4, 3, 2, 1 s; then 0.1 s.
    assert await counted(4000, 9000, 9000, 1000, 100) == {0.001: 1, 0.1: 1, 1.0: 1, 2.5: 2, 5.0: 2}
    assert s.stats.topics["t"].ages.total == pytest.approx(12.1)


async def test_counts_the_age_of_those_that_were_handled_before_a_failure(setups: list[Setup]) -> None:
    class Failing(Handler):
        async def handle(self, batch: Batch) -> None:
            batch.mark(2)
            raise HandlerFailedError("no")

    clock = FakeClock()
    now = round(clock.wall() * 1000)
    setups.append(s := Setup(Failing(), clock=clock))
    s.put(decode_records(encode_record_batch([b"m"] * 3, timestamps=[now - 8000, now - 6000, now - 1]), 0))
    with pytest.raises(HandlerFailedError):
        await s.task
    histogram = s.stats.topics["t"].ages
    assert histogram.count == 2
    assert histogram.total == pytest.approx(14.0)

"""The start offset of a flow: its sources, their order, and a sink that is asked only while we own the partition."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import BrokerError
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.handlers import Batch, Handler, SinkPosition
from consumerd.member.consumer.fence import Fence
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.consumer.sinks import PlainHandler
from consumerd.member.consumer.start_offsets import REFUSED_PAUSE, RETRY_PAUSE, Start, StartFinder
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.listener import FetchCounters
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.offsets.errors import OffsetsUnavailableError
from consumerd.member.offsets.store import NO_NOTES, CommitResult, Trace
from consumerd.net.client.errors import error_of, topic_error
from consumerd.net.zk.errors import NoAuth
from consumerd.testing.clock import FakeClock
from consumerd.testing.group import changed
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.subscription import StaticSubscription
from consumerd.wire.v07 import EARLIEST, LATEST
from consumerd.wire.v08.errors import UnsupportedApiError
from tests.support.waiting import cancel, turns

if TYPE_CHECKING:
    from consumerd.member.offsets.store import Notes

TP = TopicPartition("t", 0, 1)
SESSION = 7


class Lease:
    """Ends at a time of the clock's."""

    session_timeout = 6.0

    def __init__(self, clock: FakeClock) -> None:
        self.session_id = SESSION
        self.until = clock.now + self.session_timeout
        self._clock = clock

    def lease_left(self) -> float:
        return self.until - self._clock.now


class Store:
    """Holds one offset, or answers nothing for the first `failures` times."""

    keeps_for: float | None = None

    def __init__(self) -> None:
        self.offset: int | None = None
        self.known: Trace | None = None
        self.failures = 0
        self.refusal: BrokerError | None = None
        self.asked: list[list[TopicPartition]] = []
        #: The log of the offset.
        self.of = UNKNOWN_LOG
        #: A topic whose offsets we may not read.
        self.denied = ""
        #: The errors of single offsets.
        self.broken: dict[TopicPartition, NoAuth | RegistryError] = {}

    async def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        self.asked.append(list(partitions))
        if any(each.topic == self.denied for each in self.asked[-1]):
            error = topic_error(29, "cannot read offsets", self.denied)
            assert error is not None
            raise error
        if (broken := next((self.broken[each] for each in self.asked[-1] if each in self.broken), None)) is not None:
            raise broken
        if self.refusal is not None:
            raise self.refusal
        if self.failures:
            self.failures -= 1
            raise OffsetsUnavailableError("the coordinator is away")
        return {} if self.offset is None else dict.fromkeys(self.asked[-1], self.offset)

    async def is_new(self, partition: TopicPartition) -> bool:
        return False

    def log(self, partition: TopicPartition) -> LogId:
        return self.of

    async def peek(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self.load(partitions)

    def trace(self, partition: TopicPartition) -> Trace | None:
        return self.known

    async def changed(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        raise NotImplementedError

    async def commit(
        self, positions: Mapping[TopicPartition, int], *, session_id: int, notes: Notes = NO_NOTES
    ) -> CommitResult:
        raise NotImplementedError


class Pool:
    """A log from offset 100 to 200."""

    partitions: frozenset[TopicPartition] = frozenset()

    def __init__(self) -> None:
        self.counters = FetchCounters()
        #: Log ends that are returned before that one.
        self.ends: list[int] = []
        #: The times that were asked for.
        self.times: list[int] = []

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        raise NotImplementedError

    async def list_offsets(self, partition: TopicPartition, time: int, max_number: int = 1) -> tuple[int, ...]:
        if time == LATEST and self.ends:
            return (self.ends.pop(0),)
        return ({EARLIEST: 100, LATEST: 200}[time],)

    async def offset_at(self, partition: TopicPartition, time_ms: int) -> int:
        self.times.append(time_ms)
        return 150

    def known_end(self, partition: TopicPartition) -> None:
        return None

    async def log_end(self, partition: TopicPartition) -> int:
        raise NotImplementedError

    def add(self, partition: TopicPartition, offset: int, lane: Lane, log: LogId) -> None:
        raise NotImplementedError

    async def remove(self, partition: TopicPartition) -> None:
        raise NotImplementedError

    def pause(self, partition: TopicPartition) -> None:
        raise NotImplementedError

    def resume(self, partition: TopicPartition) -> None:
        raise NotImplementedError

    def seek(self, partition: TopicPartition, offset: int) -> None:
        raise NotImplementedError


class Sink(Handler):
    """Notes when it is asked for its position."""

    def __init__(self, clock: FakeClock) -> None:
        self.asked: list[float] = []
        self.own: int | None = None
        self._clock = clock

    async def position(self, partition: TopicPartition) -> int | None:
        self.asked.append(self._clock.now)
        return self.own

    async def handle(self, batch: Batch) -> None:
        raise NotImplementedError


class Setup:
    def __init__(self, **settings: object) -> None:
        self.clock = FakeClock()
        self.lease = Lease(self.clock)
        self.store = Store()
        self.sink = Sink(self.clock)
        self.pool = Pool()
        self.finder = StartFinder(
            changed(ConsumerSettings("g", "g_a", StaticSubscription({"t": 1})), **settings),
            cast("FetchPool", self.pool),
            self.store,
            PlainHandler(self.sink),
            Fence(self.lease, self.clock, 0.5),
            self.clock,
        )

    async def find(self) -> Start:
        return await self.finder.find(TP, SESSION)


async def test_prefers_sink_then_store_then_policy() -> None:
    setup = Setup(stop_at_end=True)
    assert await setup.find() == Start(100, None, 200)
    setup.store.offset = 120
    assert await setup.find() == Start(120, 120, 200)
    setup.sink.own = 130
    assert await setup.find() == Start(130, 120, 200)
    assert await Setup(initial="latest").find() == Start(200, passing=True, at_end=True)


@pytest.mark.parametrize(
    ("settings", "time"),
    [
        ({"initial": "7d"}, 1_700_000_000_000 - 7 * 86_400_000),
        ({"initial": "2023-11-14T00:00"}, 1_699_920_000_000),
        ({"initial": "latest", "initial_by_topic": {"t": "1h"}}, 1_700_000_000_000 - 3_600_000),
    ],
)
async def test_begins_at_a_time_or_so_long_before_now(settings: dict[str, object], time: int) -> None:
    setup = Setup(**settings)
    assert await setup.find() == Start(150, passing=True, at_end=True)
    assert setup.pool.times == [time]


async def test_each_topic_has_its_own_start_where_it_is_given() -> None:
    setup = Setup(initial="latest", initial_by_topic={"other": "earliest", "t": "earliest"})
    assert await setup.find() == Start(100)
    assert (await Setup(initial="latest", initial_by_topic={"other": "earliest"}).find()).offset == 200


async def test_new_partition_begins_at_its_beginning_whatever_time_is_configured() -> None:
    setup = Setup(initial="7d")
    setup.finder.exist([TopicPartition.numbered("t", 9)])
    setup.finder.exist([TopicPartition.numbered("t", 9), TP])
    assert await setup.find() == Start(100, passing=True)
    assert setup.pool.times == []


async def test_a_sink_may_look_at_the_committed_offset_and_waits_for_the_store() -> None:
    setup = Setup()
    setup.store.refusal = error_of(5, "no leader")
    looking = asyncio.create_task(setup.finder.committed(TP))
    await turns()
    assert not looking.done()
    setup.store.refusal, setup.store.offset = None, 120
    await setup.clock.advance(RETRY_PAUSE)
    assert await looking == 120


FORMER, OTHER = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"


@pytest.mark.parametrize(
    ("own", "committed", "of", "expected"),
    [
        # The sink's word counts, whatever others committed of another log.
        (SinkPosition(130, FORMER, 3), 130, LogId.from_text(OTHER, 7), LogId.from_text(FORMER, 3)),
        (SinkPosition(130, FORMER), None, UNKNOWN_LOG, LogId.from_text(FORMER, None)),
        # A sink that knows nothing: the committed offset is of its log; an epoch belongs to one offset.
        (130, 130, LogId.from_text(OTHER, 7), LogId.from_text(OTHER, 7)),
        (130, 120, LogId.from_text(OTHER, 7), LogId.from_text(OTHER, None)),
        (130, 120, LogId(zxid=9), LogId(zxid=9)),
        (130, None, UNKNOWN_LOG, UNKNOWN_LOG),
        # It knows the epoch alone, as of brokers before 2.8.
        (SinkPosition(130, None, 3), 130, LogId(None, 7, 9), LogId(None, 3, 9)),
        (SinkPosition(130, None, 3), 120, LogId(None, 7, 9), LogId(None, 3, 9)),
    ],
)
async def test_a_sink_position_is_of_a_log(own: int, committed: int | None, of: LogId, expected: LogId) -> None:
    setup = Setup()
    setup.sink.own, setup.store.offset, setup.store.of = own, committed, of
    found = await setup.find()
    assert (found.offset, found.log) == (130, expected)
    assert type(found.offset) is int


@pytest.mark.parametrize(
    ("own", "committed", "expected"),
    [
        (130, None, Start(100, None, None)),
        (SinkPosition(130, None, 3), None, Start(100, None, None)),
        # What tells by itself, or was committed since, is as good as ever.
        (SinkPosition(130, FORMER, 3), None, Start(130, None, None, log=LogId.from_text(FORMER, 3))),
        (130, 120, Start(130, 120, None)),
    ],
)
async def test_a_sink_gets_all_of_a_topic_that_came_back(own: int, committed: int | None, expected: Start) -> None:
    setup = Setup()
    setup.sink.own, setup.store.offset = own, committed
    setup.finder.exist([TP])
    assert (await setup.find()).offset == 130
    setup.finder.exist([])
    setup.finder.exist([TP])
    assert await setup.find() == expected


class WordlessError(BrokerError):
    """Has no words of its own."""


async def failures_logged(reasons: Sequence[Exception], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What is logged while the committed position cannot be read, for these reasons in turn."""
    setup, left = Setup(), list(reasons)

    async def load(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        setup.lease.until = setup.clock.now + 60
        if left:
            raise left.pop(0)
        return {}

    setup.store.load = load  # type: ignore[method-assign]
    finding = asyncio.create_task(setup.find())
    while not finding.done():
        await setup.clock.advance(RETRY_PAUSE)
    assert (await finding).offset == 100
    return [line for line in capsys.readouterr().out.splitlines() if "position_lookup_failed" in line]


async def test_logs_each_reason_for_missing_position_once(capsys: pytest.CaptureFixture[str]) -> None:
    away, unknown = BrokerError("the broker is away"), BrokerError("the broker names no offset")
    logged = await failures_logged([away, away, unknown, away, WordlessError(), unknown], capsys)
    assert len(logged) == 3
    for line, words in zip(logged, ("is away", "names no offset", "WordlessError"), strict=True):
        assert words in line


async def test_logs_one_line_for_many_partitions_whose_positions_cannot_be_looked_up() -> None:
    setup = Setup()
    setup.store.failures = 1
    partitions = [TopicPartition.numbered("t", number) for number in range(1000)]
    with capture_logs() as logs:
        finding = [asyncio.create_task(setup.finder.find(each, SESSION)) for each in partitions]
        while not all(each.done() for each in finding):
            setup.lease.until = setup.clock.now + 60
            await setup.clock.advance(RETRY_PAUSE)
    (line,) = logs
    assert (line["event"], line["partition"], line["more"]) == ("position_lookup_failed", "t/0", 999)
    assert line["reason"] == "the coordinator is away"


async def test_logs_a_limited_number_of_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    reasons = [BrokerError(f"attempt {number} failed") for number in range(50)]
    assert len(await failures_logged(reasons, capsys)) == 20


async def test_rereads_end_while_position_lies_beyond_it() -> None:
    """A leader that has just become one may tell less than its group has committed."""
    setup = Setup(stop_at_end=True)
    setup.store.offset = 210
    ends = [190, 200, 230]
    setup.pool.ends = ends
    finding = asyncio.create_task(setup.find())
    await turns()
    assert ends == [200, 230]  # one look, then a pause
    for _ in range(3):
        await setup.clock.advance(RETRY_PAUSE)
    assert finding.done()
    assert await finding == Start(210, 210, 230)
    assert not ends
    finding = asyncio.create_task(setup.find())  # the log is really shorter
    await turns()
    await setup.clock.advance(6 * RETRY_PAUSE)
    assert finding.done()
    assert await finding == Start(210, 210, 200)
    setup.store.offset = 200
    finding = asyncio.create_task(setup.find())
    await turns()
    assert finding.done()  # without another look
    assert await finding == Start(200, 200, 200)


async def test_remembers_handled_position_on_same_session() -> None:
    setup = Setup()
    setup.store.offset = 120
    setup.finder.remember(TP, SESSION, 120, 150)
    assert await setup.find() == Start(150, 120, None)
    setup.store.offset = 160
    assert (await setup.find()).offset == 160
    setup.finder.remember(TP, SESSION - 1, 160, 170)
    assert (await setup.find()).offset == 160


async def test_remembers_handled_position_on_any_session_while_nobody_else_wrote() -> None:
    setup = Setup()
    setup.store.offset, setup.store.known = 120, Trace(3, 110, frozenset({120, 130}))
    setup.finder.remember(TP, SESSION - 1, 110, 150)
    setup.store.known = Trace(4, 120)  # a commit whose reply was lost
    assert await setup.find() == Start(150, 120, None)
    setup.store.known = Trace(5, 120)
    assert (await setup.find()).offset == 120
    assert (await setup.find()).offset == 120


async def test_forgets_handled_position_if_another_wrote_the_same_offset_on_the_same_session() -> None:
    setup = Setup()
    setup.store.offset, setup.store.known = 120, Trace(3, 120)
    setup.finder.remember(TP, SESSION, 120, 150)
    setup.store.known = Trace(5, 120)
    assert (await setup.find()).offset == 120


@pytest.mark.parametrize("refusal", [error_of(30, "no"), error_of(35, "no"), UnsupportedApiError("no such version")])
async def test_fails_if_store_never_answers(refusal: BrokerError) -> None:
    """A version that no broker has (any more) would leave all partitions unread, and the member as good as ready."""
    setup = Setup()
    setup.store.refusal = refusal
    finding = asyncio.create_task(setup.find())
    await turns()
    assert finding.done()
    with pytest.raises(BrokerError, match="no"):
        await finding


async def test_remembers_nothing_after_frozen_process() -> None:
    """The lease is over when it wakes, and the partition another's: its sink must not learn of a claim."""
    setup = Setup()
    finding = asyncio.create_task(setup.find())
    setup.clock.jump(60.0)  # before the task's first step
    await setup.clock.advance(5.0)
    assert setup.sink.asked == []
    setup.lease.session_id = 0
    await setup.clock.advance(5.0)
    await cancel(finding)
    assert setup.sink.asked == []


async def test_remembers_nothing_after_lease_ended() -> None:
    setup = Setup()
    setup.store.failures = 1000
    finding = asyncio.create_task(setup.find())
    await turns()  # the first attempt
    await setup.clock.advance(60.0)
    last = setup.sink.asked[-1]
    assert setup.lease.until - RETRY_PAUSE - 0.6 < last <= setup.lease.until - 0.5
    setup.store.failures = 0
    await setup.clock.advance(1.0)
    assert not finding.done()
    setup.lease.until = setup.clock.now + 6.0  # it was ours all the time: only the answers were late
    await setup.clock.advance(1.0)
    await turns()
    assert finding.done()
    assert (await finding).offset == 100
    assert len(setup.sink.asked) == len({*setup.sink.asked})


async def test_loads_simultaneous_starts_together() -> None:
    setup = Setup()
    setup.store.offset = 120
    places = [TopicPartition("t", 0, number) for number in range(50)]
    found = await asyncio.gather(*(setup.finder.find(place, SESSION) for place in places))
    assert {start.offset for start in found} == {120}
    assert [len(wanted) for wanted in setup.store.asked] == [50]


@pytest.mark.parametrize(
    ("changes", "passing"),
    [({"initial": "latest"}, True), ({"initial": "earliest"}, False), ({"initial": "7d"}, True)],
    ids=["latest", "earliest", "time"],
)
async def test_writes_down_only_unrepeatable_starts(changes: dict[str, object], passing: bool) -> None:
    setup = Setup(**changes)
    assert (await setup.find()).passing is passing
    setup.store.offset = 120
    assert not (await setup.find()).passing
    setup.store.offset, setup.sink.own = None, 130
    assert not (await setup.find()).passing


@pytest.mark.parametrize("error", [NoAuth("denied: /offsets/t/0-70"), RegistryError("not a number: /offsets/t/0-70")])
async def test_offset_that_cannot_be_read_holds_back_its_partition_alone_until_it_is_mended(
    error: NoAuth | RegistryError,
) -> None:
    setup = Setup()
    setup.store.offset = 120
    places = [TopicPartition("t", 0, number) for number in range(1000)]
    broken = places[70]
    setup.store.broken[broken] = error
    with capture_logs() as logs:
        tasks = [asyncio.create_task(setup.finder.find(each, SESSION)) for each in places]
        await turns()
        assert [each for each, task in zip(places, tasks, strict=True) if not task.done()] == [broken]
        assert setup.finder.waiting == {broken: str(error)}
        assert len(setup.store.asked) < 25
        setup.lease.until = setup.clock.now + 1000
        await setup.clock.advance(60.0)
        assert len(setup.store.asked) < 40  # and not each half a second
        setup.store.broken.clear()
        await setup.clock.advance(REFUSED_PAUSE)
    assert {(await task).offset for task in tasks} == {120}
    assert setup.finder.waiting == {}
    assert [(entry["event"], entry["partition"], entry["reason"]) for entry in logs] == [
        ("position_lookup_failed", str(broken), str(error))
    ]


async def test_member_that_stops_at_the_end_does_not_wait_for_an_offset_to_be_mended() -> None:
    setup = Setup(stop_at_end=True)
    setup.store.broken[TP] = RegistryError("not a number")
    with pytest.raises(RegistryError):
        await setup.find()


async def test_topic_whose_offsets_may_not_be_read_does_not_hold_back_others() -> None:
    setup = Setup()
    setup.store.offset, setup.store.denied = 120, "u"
    places = [TP, TopicPartition("u", 0, 0), TopicPartition("u", 0, 1), TopicPartition("v", 0, 0)]
    with capture_logs() as logs:
        tasks = [asyncio.create_task(setup.finder.find(each, SESSION)) for each in places]
        await turns()
        assert [task.done() for task in tasks] == [True, False, False, True]
        setup.lease.until = setup.clock.now + 1000
        await setup.clock.advance(60.0)
        assert len(setup.store.asked) < 30  # and not each half a second
        setup.store.denied = ""
        await setup.clock.advance(REFUSED_PAUSE)
    assert {(await task).offset for task in tasks} == {120}
    assert [(entry["partition"], entry["more"]) for entry in logs] == [("u/0-0", 1)]
    assert all(
        "(error 29): the client lacks the permission Describe on the topic 'u'" in each["reason"] for each in logs
    )

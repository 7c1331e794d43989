"""Requests to one broker: how they are combined, the size of one answer, and reports of errors."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError
from consumerd.base.ports import Clock
from consumerd.member.fetch.listener import FetchCounters
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v08.broker_source import BUSY_BYTES, BUSY_SENDERS, BrokerSource
from consumerd.member.fetch.v08.exchange import Exchange, PartitionRequest
from consumerd.net.client.fetching import FetchedPartition
from consumerd.net.client.metadata import ClusterMetadata, Node
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connection import ConnectionSettings
from consumerd.net.errors import BadFrameError, ConnectionClosedError
from consumerd.testing.clock import FakeClock
from consumerd.wire.v08.fetch_session import PartitionFetch

MIB = 1 << 20


class MemoryBroker:
    """Client and channel in one: keeps requests back until `release`."""

    def __init__(self) -> None:
        self.settings = ClientSettings(connection=ConnectionSettings(socket_timeout=0.2))
        #: The version of FETCH that it serves.
        self.version = 12
        self.versions = SimpleNamespace(pick=lambda *_, **__: self.version)
        self.metadata = ClusterMetadata()
        self.address = "h:9"
        self.closed = False
        self.bodies: list[dict[str, Any]] = []
        self.patience: list[float] = []
        self.released = asyncio.Event()
        self.forgets = False
        self.trouble: BrokerError | None = None
        #: Milliseconds of silence that the next answer demands, which then has no partitions.
        self.over_quota = 0
        #: The error and the session id of the next answers, and what they have of each partition.
        self.error, self.session_id, self.data = 0, 0, b"x"
        self.opened, self.ended = 0, 0
        self.stale = False
        #: What the next requests wait for, in place of `released`.
        self.gates: list[asyncio.Event] = []

    def is_fresh(self, topic: str) -> bool:
        assert topic == "t"
        return not self.stale

    async def private_channel(self, node_id: int) -> MemoryBroker:
        if self.trouble is not None:
            raise self.trouble
        self.closed = False
        self.opened += 1
        return self

    async def close(self) -> None:
        self.ended += 1

    def abort(self) -> None:
        self.closed = True

    def post(self, *_: Any, **__: Any) -> bool:
        return False  # all go through `call`

    async def call(
        self, api: Any, body: dict[str, Any], *, version: int, timeout: float, views: bool, **_: Any
    ) -> dict[str, Any]:
        assert views  # a response is not copied
        self.bodies.append(body)
        self.patience.append(timeout)
        gate = self.gates[len(self.bodies) - 1] if len(self.bodies) <= len(self.gates) else self.released
        await gate.wait()
        if self.trouble is not None:
            self.closed = True
            raise self.trouble
        if self.over_quota:
            silence, self.over_quota = self.over_quota, 0
            return {"throttle_time_ms": silence, "responses": []}
        parts = [
            {"partition_index": part["partition"], "error_code": 0, "high_watermark": 9, "records": self.data}
            for topic in body["topics"]
            for part in topic["partitions"][self.forgets :]
        ]
        responses = [{"topic": "t", "partitions": parts}] * (not self.error)
        return {"responses": responses, "error_code": self.error, "session_id": self.session_id}

    @property
    def asked(self) -> list[list[int]]:
        """The numbers of the partitions of each request."""
        return [[part["partition"] for topic in body["topics"] for part in topic["partitions"]] for body in self.bodies]


@pytest_asyncio.fixture
async def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest_asyncio.fixture
async def source(broker: MemoryBroker) -> AsyncIterator[BrokerSource]:
    async with running(broker, FetchSettings(max_answer_bytes=8 * MIB)) as source:
        yield source


@asynccontextmanager
async def running(
    broker: MemoryBroker, settings: FetchSettings, counters: FetchCounters | None = None, clock: Clock | None = None
) -> AsyncIterator[BrokerSource]:
    client: Any = broker
    source = BrokerSource(Exchange(1, client, settings, counters or FetchCounters(), clock or SystemClock()))
    task = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        task.cancel()
        await asyncio.wait([task])


async def data_of(answer: Awaitable[FetchedPartition | None]) -> bytes | memoryview | None:
    found = await answer
    return None if found is None else found.data


def request(number: int, max_bytes: int) -> PartitionRequest:
    return PartitionRequest(PartitionFetch("t", number, 0, max_bytes), asyncio.get_running_loop().create_future())


class Waiter:
    """The poller of a request; it takes no answer before its fetcher's turn unless `take` does."""

    def __init__(
        self,
        stays: Callable[[], bool] = lambda: True,
        take: Callable[[FetchedPartition], bool] = lambda part: False,
        go_on: Callable[[PartitionRequest], bool] = lambda request: False,
    ) -> None:
        self.stays, self.take, self.go_on = stays, take, go_on


def next_offset(asked: PartitionRequest) -> bool:
    asked.fetch = asked.fetch._replace(offset=asked.fetch.offset + 1)
    return True


def patient(number: int, stays: Callable[[], bool] = lambda: True) -> PartitionRequest:
    made = request(number, MIB)
    made.poller, made.patient = Waiter(stays), True
    return made


async def asking(source: BrokerSource, queue: str, sizes: list[int]) -> list[asyncio.Task[FetchedPartition | None]]:
    tasks = [asyncio.create_task(getattr(source, queue)(request(*each))) for each in enumerate(sizes)]
    for _ in range(10):
        await asyncio.sleep(0)
    return tasks


async def test_fetches_busy_partitions_in_responses_of_a_few_mib(source: BrokerSource, broker: MemoryBroker) -> None:
    tasks = await asking(source, "fetch", [MIB] * 5)
    assert broker.asked == [[0, 1], [2, 3]]
    assert len(broker.asked) == BUSY_SENDERS
    assert {body["max_bytes"] for body in broker.bodies} == {BUSY_BYTES}
    assert {body["max_wait_ms"] for body in broker.bodies} == {0}
    assert set(broker.patience) == {0.2}
    broker.released.set()
    assert [answer and answer.data for answer in await asyncio.gather(*tasks)] == [b"x"] * 5
    assert broker.asked[2:] == [[4]]


async def test_fetches_large_request_alone(source: BrokerSource, broker: MemoryBroker) -> None:
    tasks = await asking(source, "fetch", [MIB, 64 * MIB, MIB])
    broker.released.set()
    await asyncio.gather(*tasks)
    assert broker.asked == [[0], [1], [2]]


async def test_polls_all_idle_partitions_together(source: BrokerSource, broker: MemoryBroker) -> None:
    tasks = await asking(source, "poll", [MIB] * 10)
    assert broker.asked == [list(range(10))]
    assert broker.bodies[0]["max_bytes"] == 8 * MIB  # as the response limit says
    assert broker.bodies[0]["max_wait_ms"] == 500
    assert broker.patience == [0.2 + 0.5]  # a broker that delays an answer by max_wait does not hang
    broker.released.set()
    await asyncio.gather(*tasks)


async def test_sends_configured_max_wait_and_min_bytes(broker: MemoryBroker) -> None:
    settings = FetchSettings(max_wait=2.001, min_bytes=100_000)
    async with running(broker, settings) as source:
        tasks = [*await asking(source, "fetch", [MIB]), *await asking(source, "poll", [MIB])]
        asked = [(body["max_wait_ms"], body["min_bytes"]) for body in broker.bodies]
        assert asked == [(0, 0), (2001, 100_000)]
        assert broker.patience == [0.2, 0.2 + 2.001]
        broker.released.set()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize(
    "wrong",
    [{"max_wait": 0.0}, {"max_wait": 0.001}, {"max_wait": 61.0}, {"min_bytes": 0}, {"min_bytes": MIB + 1}],
)
async def test_rejects_invalid_waits(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FetchSettings(**wrong)


async def test_skips_cancelled_requests(source: BrokerSource, broker: MemoryBroker) -> None:
    tasks = await asking(source, "fetch", [MIB] * 7)
    tasks[4].cancel()
    tasks[5].cancel()
    await asyncio.wait(tasks[4:6])
    broker.released.set()
    await asyncio.gather(tasks[0], tasks[3], tasks[6])
    assert broker.asked == [[0, 1], [2, 3], [6]]


@pytest.mark.parametrize("queue", ["fetch", "poll"])
async def test_fails_only_requests_of_broken_fetch(source: BrokerSource, broker: MemoryBroker, queue: str) -> None:
    tasks = await asking(source, queue, [MIB] * 2)
    broker.trouble = ConnectionClosedError("gone")
    broker.released.set()
    tasks.pop().cancel()
    for told in await asyncio.gather(*tasks, return_exceptions=True):
        assert told is broker.trouble
    broker.trouble = None
    assert await data_of(getattr(source, queue)(request(0, MIB))) == b"x"


@pytest.mark.parametrize("queue", ["fetch", "poll"])
async def test_closes_connection_when_partition_is_missing(
    source: BrokerSource, broker: MemoryBroker, queue: str
) -> None:
    broker.forgets = True
    broker.released.set()
    with pytest.raises(BadFrameError, match="broker 1 left t/0 out of its FETCH response") as caught:
        await getattr(source, queue)(request(0, MIB))
    assert caught.value.blamed
    assert broker.closed


async def test_ends_what_waits_and_closes_all_connections_when_it_stops(broker: MemoryBroker) -> None:
    async with running(broker, FetchSettings()) as source:
        tasks = await asking(source, "fetch", [MIB])
        tasks += await asking(source, "poll", [MIB])
        tasks.append(asyncio.create_task(source.poll(request(1, MIB))))
        for _ in range(5):
            await asyncio.sleep(0)
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert (broker.opened, broker.ended) == (3, 3)


@pytest.mark.parametrize("queue", ["fetch", "poll"])
async def test_error_of_the_whole_response_is_that_of_each_partition(
    source: BrokerSource, broker: MemoryBroker, queue: str
) -> None:
    broker.error = 15
    tasks = await asking(source, queue, [MIB] * 2)
    broker.released.set()
    for found in await asyncio.gather(*tasks):
        assert found == FetchedPartition(15, b"", -1, ())
    assert not broker.closed


@pytest.mark.parametrize("error", [70, 71, 106])
async def test_error_that_begins_a_session_is_reported(source: BrokerSource, broker: MemoryBroker, error: int) -> None:
    """Where it ends one, it is not."""
    broker.error = error
    broker.released.set()
    found = await source.poll(request(0, MIB))
    assert found is not None
    assert found.error == error


async def test_brokers_that_bound_no_response_are_asked_for_a_share_of_each(broker: MemoryBroker) -> None:
    broker.version = 2
    async with running(broker, FetchSettings(max_answer_bytes=8 * MIB)) as source:
        tasks = await asking(source, "poll", [MIB] * 16)
        tasks.append(asyncio.create_task(source.poll(request(16, 100))))
        for _ in range(5):
            await asyncio.sleep(0)
        sizes = [[part["partition_max_bytes"] for part in body["topics"][0]["partitions"]] for body in broker.bodies]
        assert sizes == [[MIB // 2] * 16, [100]]
        broker.released.set()
        await asyncio.gather(*tasks)


async def test_request_replaces_that_of_a_former_fetcher(source: BrokerSource, broker: MemoryBroker) -> None:
    (former,) = await asking(source, "poll", [MIB])
    (present,) = await asking(source, "poll", [MIB])
    assert former.cancelled()
    broker.released.set()
    assert await data_of(present) == b"x"
    assert len(broker.bodies) == 2


async def test_share_of_a_partition_is_a_byte_at_least(broker: MemoryBroker) -> None:
    broker.version = 2
    async with running(broker, FetchSettings(max_answer_bytes=3)) as source:
        tasks = await asking(source, "poll", [MIB] * 16)
        assert {part["partition_max_bytes"] for part in broker.bodies[0]["topics"][0]["partitions"]} == {1}
        broker.released.set()
        await asyncio.gather(*tasks)


async def test_sizes_of_partitions_stay_where_brokers_bound_the_response(broker: MemoryBroker) -> None:
    broker.version = 3
    async with running(broker, FetchSettings(max_answer_bytes=8 * MIB)) as source:
        tasks = await asking(source, "poll", [MIB] * 16)
        assert {part["partition_max_bytes"] for part in broker.bodies[0]["topics"][0]["partitions"]} == {MIB}
        broker.released.set()
        await asyncio.gather(*tasks)


async def test_poll_of_newcomers_is_short_and_small(broker: MemoryBroker) -> None:
    async with running(broker, FetchSettings(max_wait=1.0)) as source:
        tasks = await asking(source, "poll", [MIB])
        tasks += [asyncio.create_task(source.poll(request(number, MIB))) for number in range(1, 5)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert broker.asked == [[0], [1, 2, 3, 4]]
        assert [body["max_wait_ms"] for body in broker.bodies] == [1000, 20]
        assert [body["max_bytes"] for body in broker.bodies] == [MIB, 2 * MIB]
        assert [body["session_epoch"] for body in broker.bodies] == [0, -1]
        broker.released.set()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize(
    ("max_wait", "min_bytes", "wait"), [(0.5, 1, 10), (0.02, 1, 10), (10.0, 1, 200), (0.5, 2, 500), (0.01, 1, 10)]
)
async def test_wait_of_newcomers(broker: MemoryBroker, max_wait: float, min_bytes: int, wait: int) -> None:
    async with running(broker, FetchSettings(max_wait=max_wait, min_bytes=min_bytes)) as source:
        tasks = await asking(source, "poll", [MIB])
        newcomer = asyncio.create_task(source.poll(request(1, MIB)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert broker.bodies[1]["max_wait_ms"] == wait
        broker.released.set()
        await asyncio.gather(*tasks, newcomer)


async def test_failure_of_the_poll_does_not_affect_newcomers(broker: MemoryBroker) -> None:
    async with running(broker, FetchSettings()) as source:
        (first,) = await asking(source, "poll", [MIB])
        newcomer = asyncio.create_task(source.poll(request(1, MIB)))
        for _ in range(5):
            await asyncio.sleep(0)
        broker.trouble = ConnectionClosedError("gone")
        broker.released.set()
        with pytest.raises(ConnectionClosedError):
            await first
        with pytest.raises(ConnectionClosedError):  # of their own poll
            await newcomer
        assert len(broker.bodies) == 2


async def test_first_of_two_responses_in_one_turn_answers_a_request(broker: MemoryBroker) -> None:
    gates = broker.gates = [asyncio.Event() for _ in range(3)]
    async with running(broker, FetchSettings()) as source:
        tasks = await asking(source, "poll", [MIB])
        tasks.append(asyncio.create_task(source.poll(request(1, MIB))))
        for _ in range(5):
            await asyncio.sleep(0)
        gates[0].set()
        await tasks[0]
        for _ in range(5):
            await asyncio.sleep(0)
        assert broker.asked == [[0], [1], [1]]  # the poll has taken the newcomer over
        for gate in (*gates, broker.released):
            gate.set()
        assert await data_of(tasks[1]) == b"x"
        assert await data_of(source.poll(request(2, MIB))) == b"x"
        assert broker.asked[3:] == [[2]]


async def test_empty_answers_leave_requests_where_they_are(broker: MemoryBroker) -> None:
    clock, counters = FakeClock(), FetchCounters()
    broker.data = b""
    broker.released.set()
    async with running(broker, FetchSettings(), counters, clock) as source:
        asked = patient(0)
        task = asyncio.create_task(source.poll(asked))
        for _ in range(10):
            await asyncio.sleep(0)
        # The broker answers at once, although there is nothing: it is asked again after a pause.
        assert len(broker.bodies) == 1
        await clock.advance(0.009)
        assert len(broker.bodies) == 1
        await clock.advance(0.001)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(broker.bodies) == 2
        assert not task.done()
        broker.data = b"y"
        await clock.advance(0.01)
        assert await data_of(task) == b"y"


async def test_request_that_does_not_stay_gets_an_empty_answer(source: BrokerSource, broker: MemoryBroker) -> None:
    broker.data = b""
    broker.released.set()
    assert await source.poll(request(0, MIB)) == FetchedPartition(0, b"", 9, ())


async def test_request_is_released_when_the_metadata_say_so(broker: MemoryBroker) -> None:
    clock, looks, stays = FakeClock(), [0], [True]

    def look() -> bool:
        looks[0] += 1
        return stays[0]

    async def next_poll() -> None:
        before = len(broker.bodies)
        broker.released.set()
        while not task.done() and len(broker.bodies) == before:
            await clock.advance(0.01)
            await asyncio.sleep(0)
        broker.released.clear()

    broker.data = b""
    async with running(broker, FetchSettings(), FetchCounters(), clock) as source:
        asked = patient(0, look)
        task = asyncio.create_task(source.poll(asked))
        for _ in range(5):
            await asyncio.sleep(0)
        await next_poll()
        assert looks[0] == 1  # these metadata were not looked at before
        await next_poll()
        assert looks[0] == 1
        await clock.advance(5.0)
        await next_poll()
        assert looks[0] == 1
        broker.stale = True
        await next_poll()
        assert looks[0] == 1  # it is not looked at again for 5 s
        await clock.advance(5.0)
        await next_poll()
        assert looks[0] == 2
        broker.metadata = ClusterMetadata()  # says the same
        await next_poll()
        assert looks[0] == 2
        broker.metadata = ClusterMetadata({1: Node(1, "h", 9)})
        stays[0] = False
        await next_poll()
        assert looks[0] == 3
        assert await task is None


@pytest.mark.parametrize("queue", ["fetch", "poll"])
async def test_waits_out_a_quota_without_an_error(broker: MemoryBroker, queue: str) -> None:
    clock, counters = FakeClock(), FetchCounters()
    broker.over_quota = 1500
    broker.released.set()
    async with running(broker, FetchSettings(), counters, clock) as source:
        assert await getattr(source, queue)(request(0, MIB)) is None
        assert not broker.closed
        waiting = asyncio.create_task(source.wait_out_quota())
        await clock.advance(1.4)
        assert not waiting.done()
        await clock.advance(0.1)
        await waiting
        assert await data_of(getattr(source, queue)(request(0, MIB))) == b"x"
    assert (counters.throttled, counters.disconnects, counters.connects) == (1.5, 0, 1)


async def test_lost_connection_counts_once_for_all_its_requests(broker: MemoryBroker) -> None:
    counters = FetchCounters()
    async with running(broker, FetchSettings(), counters) as source:
        tasks = await asking(source, "fetch", [MIB] * 4)
        assert len(broker.asked) == BUSY_SENDERS
        broker.trouble = ConnectionClosedError("gone")
        broker.released.set()
        assert await asyncio.gather(*tasks, return_exceptions=True) == [broker.trouble] * 4
        assert (counters.connects, counters.disconnects) == (1, 1)
        with pytest.raises(ConnectionClosedError):  # it cannot be made
            await source.fetch(request(0, MIB))
        assert (counters.connects, counters.disconnects) == (1, 2)
        broker.trouble = None
        await source.fetch(request(0, MIB))
        broker.closed = True  # while no request was on its way
        await source.fetch(request(0, MIB))
        assert (counters.connects, counters.disconnects) == (3, 3)


async def test_nothing_refers_to_an_answer_while_the_next_request_is_awaited(
    source: BrokerSource, broker: MemoryBroker
) -> None:
    broker.released.set()
    asked = request(0, MIB)
    answer = weakref.ref(asked.answer)
    assert await data_of(source.fetch(asked)) == b"x"
    del asked
    await asyncio.sleep(0)  # the sender goes on
    assert answer() is None


@pytest.mark.parametrize(("seconds", "pauses"), [(0.0, True), (0.24, True), (0.25, False), (0.5, False)])
async def test_pauses_after_an_empty_answer_that_came_early(broker: MemoryBroker, seconds: float, pauses: bool) -> None:
    clock = FakeClock()
    broker.data = b""
    gates = broker.gates = [asyncio.Event() for _ in range(2)]
    async with running(broker, FetchSettings(), FetchCounters(), clock) as source:
        asked = patient(0)
        task = asyncio.create_task(source.poll(asked))
        for _ in range(5):
            await asyncio.sleep(0)
        await clock.advance(seconds)
        gates[0].set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(broker.bodies) == (1 if pauses else 2)
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize("how", ["soon", "throttled", "full", "late"])
async def test_response_confirms_for_some_time_that_there_is_nothing_else(how: str) -> None:
    class OnlyOne(MemoryBroker):
        async def call(self, *arguments: Any, **options: Any) -> dict[str, Any]:
            answer = await super().call(*arguments, **options)
            for topic in answer["responses"]:
                topic["partitions"][0]["records"] = b""
            return answer

    clock, counters, broker = FakeClock(), FetchCounters(), OnlyOne()
    broker.over_quota = 1000 * (how == "throttled")
    broker.data = b"x" * (513 if how == "full" else 512)
    gates = broker.gates = [asyncio.Event() for _ in range(2)]
    async with running(broker, FetchSettings(max_answer_bytes=1024), counters, clock) as source:
        stays, taken = patient(0), patient(1)
        tasks = [asyncio.create_task(source.poll(each)) for each in (stays, taken)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not source.confirms(stays)  # nothing is answered
        gates[0].set()
        for _ in range(5):
            await asyncio.sleep(0)
        clock.now += 10.5 + (how == "late")
        assert source.confirms(stays) is (how == "soon")
        assert not source.confirms(taken)
        for task in tasks:
            task.cancel()


async def test_answers_to_a_poll_are_taken_in_the_turn_of_the_loop_in_which_they_come() -> None:
    class AtOnce(MemoryBroker):
        settle: Any = None

        def post(self, api: Any, body: Any, settle: Any, **_: Any) -> bool:
            self.settle = settle
            return True

    broker = AtOnce()
    async with running(broker, FetchSettings()) as source:
        taken: list[tuple[int, bytes | memoryview]] = []
        asked = [request(number, MIB) for number in range(4)]

        def take_from(number: int, part: FetchedPartition) -> bool:
            assert not any(each.answer.done() for each in asked[2:])  # all handlers before all fetchers
            taken.append((number, part.data))
            if number == 3:
                raise BadFrameError("no", blamed=True)
            return True

        for number, each in enumerate(asked[1:], 1):
            each.poller = Waiter(take=functools.partial(take_from, number))
        tasks = [asyncio.create_task(source.poll(each)) for each in asked]
        for _ in range(5):
            await asyncio.sleep(0)
        tasks[1].cancel()  # its fetcher is being replaced: it takes nothing any more
        parts = [{"partition_index": n, "error_code": 0, "high_watermark": 9, "records": b"x"} for n in range(4)]
        broker.settle({"responses": [{"topic": "t", "partitions": parts}]})
        assert taken == [(2, b"x"), (3, b"x")]
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [False, True, False, False]
        assert [tasks[number].exception() for number in (0, 2)] == [None, None]
        assert isinstance(tasks[3].exception(), BadFrameError)


@pytest.mark.parametrize(
    ("taken", "goes_on", "turns_until_the_next"), [(True, True, 1), (True, False, 2), (False, False, 3)]
)
async def test_next_poll_is_sent_behind_the_handlers_and_the_fetchers_that_have_to_decide(
    taken: bool, goes_on: bool, turns_until_the_next: int
) -> None:
    sent: list[Any] = []
    fetched_again: list[PartitionRequest] = []

    class AtOnce(MemoryBroker):
        def post(self, api: Any, body: Any, settle: Any, **_: Any) -> bool:
            sent.append((settle, body.encode(0, "")))
            return True

    async def fetcher(source: BrokerSource) -> None:
        while True:
            asked = request(0, MIB)
            asked.poller = Waiter(take=lambda part: taken, go_on=next_offset if goes_on else lambda asked: False)
            fetched_again.append(asked)
            await source.poll(asked)

    async with running(AtOnce(), FetchSettings()) as source:
        running_fetcher = asyncio.create_task(fetcher(source))
        for _ in range(10):
            await asyncio.sleep(0)
        parts = [{"partition_index": 0, "error_code": 0, "high_watermark": 9, "records": b"x"}]
        ((settle, first),) = sent
        settle({"responses": [{"topic": "t", "partitions": parts}]})
        turns = 0
        while len(sent) == 1:
            await asyncio.sleep(0)
            turns += 1
        assert turns == turns_until_the_next
        assert len(fetched_again) == 2 - goes_on
        assert fetched_again[-1].fetch.offset == int(goes_on)
        assert (sent[1][1] == first) is not goes_on
        running_fetcher.cancel()


async def test_late_answer_to_a_short_poll_is_dropped_once_the_poll_had_the_messages() -> None:
    """The poll took the partition over while the short one was under way: it was at the broker twice."""
    sent: list[Any] = []
    taken: list[int] = []

    class AtOnce(MemoryBroker):
        def post(self, api: Any, body: Any, settle: Any, **_: Any) -> bool:
            sent.append(settle)
            return True

    def answer(number: int, *numbers: int) -> None:
        parts = [{"partition_index": n, "error_code": 0, "high_watermark": 9, "records": b"x"} for n in numbers]
        sent[number]({"responses": [{"topic": "t", "partitions": parts}], "session_id": 0})

    def take(number: int, part: FetchedPartition) -> bool:
        taken.append(number)
        return True

    def polled(number: int) -> PartitionRequest:
        asked = request(number, MIB)
        asked.poller = Waiter(take=functools.partial(take, number), go_on=next_offset)
        return asked

    async def turns() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async with running(AtOnce(), FetchSettings()) as source:
        first, newcomer = polled(0), polled(1)
        tasks = [asyncio.create_task(source.poll(first))]
        await turns()
        tasks.append(asyncio.create_task(source.poll(newcomer)))
        await turns()
        assert len(sent) == 2  # the poll, and the short one
        answer(0, 0)
        await turns()
        assert len(sent) == 3  # the next poll, of both
        answer(2, 0, 1)
        answer(1, 1)
        assert taken == [0, 0, 1]
        await turns()
        assert (taken, newcomer.fetch.offset) == ([0, 0, 1], 1)
        for task in tasks:
            assert not task.done()
            task.cancel()
        await asyncio.wait(tasks)


async def test_silence_that_a_quota_demands_is_known_before_anybody_asks_again(broker: MemoryBroker) -> None:
    broker.over_quota = 1000
    broker.released.set()
    async with running(broker, FetchSettings(), clock=FakeClock()) as source:
        assert await source.poll(request(0, 1)) is None
        waiting = asyncio.create_task(source.wait_out_quota())
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()


async def test_hurried_request_of_a_former_fetcher_does_not_affect_the_present_one(broker: MemoryBroker) -> None:
    broker.data = b""
    async with running(broker, FetchSettings(max_wait=0.01)) as source:
        former, present = patient(0), patient(0)
        tasks = []
        for each in (former, present):
            tasks.append(asyncio.create_task(source.poll(each)))
            await asyncio.sleep(0)
        source.hurry(former)
        broker.released.set()
        await asyncio.sleep(0.05)
        assert not present.answer.done()
        source.hurry(present)
        assert await tasks[1] == FetchedPartition(0, b"", 9, ())


async def test_polls_that_fail_are_counted_and_sent_again_at_once(broker: MemoryBroker) -> None:
    clock, counters = FakeClock(), FetchCounters()  # which stands still
    async with running(broker, FetchSettings(), counters, clock) as source:
        for failures in (1, 2):
            tasks = await asking(source, "poll", [MIB])
            broker.trouble = ConnectionClosedError("gone")
            broker.released.set()
            assert await asyncio.gather(*tasks, return_exceptions=True) == [broker.trouble]
            broker.trouble = None
            broker.released.clear()
            assert counters.disconnects == failures
            assert len(broker.bodies) == failures

"""One partition at its leader: what responses mean for it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from consumerd.base.budget import ByteBudget
from consumerd.base.errors import BrokerError
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.handlers import Batch, Message, message_handler
from consumerd.member.fetch.fetcher import Fetcher, PartitionResponse
from consumerd.member.fetch.lane import DEFAULT_BATCHES, Lane
from consumerd.member.fetch.policies import FetchingOverError
from consumerd.member.fetch.response import FetchOutcome
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v08.brokers import V08Brokers, V08Source, _Leadership
from consumerd.member.fetch.v08.exchange import PartitionRequest
from consumerd.member.fetch.v08.read_replica import ReadReplica
from consumerd.net.client.epochs import EpochEnd
from consumerd.net.client.fetching import FetchedPartition
from consumerd.net.client.metadata import Node
from consumerd.testing.clock import FakeClock
from consumerd.wire.v08.apis import OFFSET_FOR_LEADER_EPOCH
from consumerd.wire.v08.fetch_session import PartitionFetch
from consumerd.wire.v08.records import decode_records, encode_record_batch
from tests.support.waiting import turns

GONE = BrokerError("gone")
T0, U0 = (TopicPartition.numbered(topic, 0) for topic in "tu")


@pytest.fixture
def brokers() -> V08Brokers:
    nobody: Any = SimpleNamespace(stale=lambda topics: None)
    return V08Brokers(nobody, FetchSettings(), FakeClock(), random.Random(1), nobody)


def source(brokers: V08Brokers, partition: TopicPartition) -> V08Source:
    return brokers.source(partition, cast("Lane", None))


def empty() -> PartitionResponse:
    return PartitionResponse(1, 0, b"", 10, cast("Any", None), 0)


def test_names_the_permission_that_a_fetch_lacks(brokers: V08Brokers) -> None:
    assert source(brokers, T0).refusal(29) == (
        "a fetch was refused: TOPIC_AUTHORIZATION_FAILED (error 29): the client lacks the permission Read on the topic "
        "'t'"
    )


def test_counts_partitions_that_may_not_be_read(brokers: V08Brokers) -> None:
    denied = brokers.services.counters.denied
    both = [source(brokers, partition) for partition in (T0, U0)]
    for each in both:
        each.refusal(6)
        assert denied == set()
    for _ in range(2):
        for each in both:
            each.refusal(29)
    assert denied == {T0, U0}
    both[0].classified(FetchOutcome.EMPTY, empty(), 0)
    assert denied == {U0}
    brokers.release(U0)
    assert denied == set()


def test_offset_out_of_range_has_no_reason(brokers: V08Brokers) -> None:
    assert source(brokers, T0).refusal(1) is None


class OneBroker:
    """A client of one broker, which leads all partitions, and its channel: `answer` is what it says of each."""

    def __init__(self, **answer: Any) -> None:
        self.versions = SimpleNamespace(pick=lambda *_, **__: 4)
        self.address = "h:9"
        self.answer = {"error_code": 0} | answer
        self.bodies: list[dict[str, Any]] = []
        self.stales: list[str] = []
        self.errors: dict[int, int] = {}
        self.left_out: set[int] = set()
        self.released = asyncio.Event()
        self.released.set()
        self.reached = asyncio.Event()
        self.reached.set()
        self.trouble: BrokerError | None = None

    def stale(self, topics: list[str]) -> None:
        self.stales += topics

    async def leader(self, topic: str, partition: int) -> Node:
        return Node(1, "h", 9)

    async def node_channel(self, node_id: int) -> OneBroker:
        await self.reached.wait()
        return self

    def post(self, *_: Any, **__: Any) -> bool:
        return False  # all go through `call`

    async def call(self, api: Any, body: dict[str, Any], *, version: int, **_: Any) -> dict[str, Any]:
        self.bodies.append(body)
        await self.released.wait()
        if self.trouble is not None:
            raise self.trouble
        name, index = ("topic", "partition") if api is OFFSET_FOR_LEADER_EPOCH else ("name", "partition_index")
        topics = [
            {
                name: topic[name],
                "partitions": [
                    self.answer | {index: number, "error_code": self.errors.get(number, 0)}
                    for part in topic["partitions"]
                    if (number := part[index]) not in self.left_out
                ],
            }
            for topic in body["topics"]
        ]
        return {"topics": topics}


class Nodes:
    """The topics' nodes in ZooKeeper."""

    def __init__(self) -> None:
        self.changed: Callable[[str], None]
        self.refreshed: list[str] = []

    def subscribe(self, changed: Callable[[str], None]) -> None:
        self.changed = changed

    def refresh(self, topic: str) -> None:
        self.refreshed.append(topic)

    async def zxid(self, topic: str) -> int:
        return 1


@contextlib.asynccontextmanager
async def started(client: OneBroker, nodes: Nodes | None = None, **settings: Any) -> AsyncIterator[V08Brokers]:
    nobody: Any = None
    made = V08Brokers(cast("Any", client), FetchSettings(**settings), FakeClock(), random.Random(1), nobody, nodes)
    async with asyncio.TaskGroup() as tasks:
        made.start(tasks)
        yield made


class Connecting:
    """A client of two brokers, which lead the partitions in turns; one of them cannot be reached."""

    settings = SimpleNamespace(rack="")

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.silent = asyncio.Event()

    async def topics(self, names: list[str]) -> Any:
        if names == ["u"]:
            raise GONE
        return SimpleNamespace(leader=lambda topic, number: Node(1 + number % 2, "h", 9) if number < 4 else None)

    async def private_channel(self, node_id: int) -> Any:
        self.opened.append(node_id)
        if node_id == 2:
            raise GONE
        return SimpleNamespace(closed=False, close=self.silent.wait)


async def test_connects_to_leaders_while_positions_are_looked_for() -> None:
    client = Connecting()
    brokers = V08Brokers(cast("Any", client), FetchSettings(), FakeClock(), random.Random(1), cast("Any", None))
    brokers.expect([T0])  # before it runs nothing can be opened
    async with asyncio.TaskGroup() as tasks:
        brokers.start(tasks)
        brokers.expect([TopicPartition.numbered("t", number) for number in range(5)])
        await turns()
        assert sorted(client.opened) == [1, 2]
        brokers.expect([])
        brokers.expect([T0, U0])
        brokers.expect([U0])
        await turns()
        assert sorted(client.opened) == [1, 2]  # there is a connection to the one, and the other leads neither
        client.silent.set()
        for source_task in [task for task in asyncio.all_tasks() if task.get_name().startswith("source ")]:
            source_task.cancel()


async def test_offsets_that_are_asked_for_together_are_one_request() -> None:
    client = OneBroker(offset=7)
    async with started(client) as brokers:
        several = [TopicPartition.numbered(topic, number) for topic in "tu" for number in range(3)]
        assert await asyncio.gather(*map(brokers.log_end, several)) == [7] * 6
        (body,) = client.bodies
        asked = {topic["name"]: [part["partition_index"] for part in topic["partitions"]] for topic in body["topics"]}
        assert asked == {"t": [0, 1, 2], "u": [0, 1, 2]}
        await asyncio.gather(brokers.list_offsets(T0, -1), brokers.list_offsets(T0, -2), brokers.list_offsets(U0, -2))
        times = [
            [part["timestamp"] for topic in each["topics"] for part in topic["partitions"]] for each in client.bodies
        ]
        assert times[1:] == [[-1], [-2, -2]]


async def test_ends_of_epochs_that_are_asked_for_while_others_are_looked_up_are_one_request() -> None:
    client = OneBroker(leader_epoch=2, end_offset=7)
    client.reached.clear()
    async with started(client) as brokers:
        tasks = []
        for number, epoch in enumerate((2, 5, 2, 3)):
            partition = TopicPartition.numbered("t", number)
            tasks.append(asyncio.create_task(brokers.epoch_end(partition, 6, epoch)))
            for _ in range(3):
                await asyncio.sleep(0)
        client.reached.set()
        assert await asyncio.gather(*tasks) == [EpochEnd(0, 2, 7)] * 4
        asked = [
            [(part["partition"], part["leader_epoch"]) for part in body["topics"][0]["partitions"]]
            for body in client.bodies
        ]
        assert asked == [[(0, 2)], [(1, 5), (2, 2), (3, 3)]]


async def test_end_of_the_epoch_that_the_later_of_two_fetchers_asks_for_counts() -> None:
    client = OneBroker(leader_epoch=2, end_offset=7)
    async with started(client) as brokers:
        await asyncio.gather(*(brokers.epoch_end(T0, 6, epoch) for epoch in (2, 5)))
        (body,) = client.bodies
        (part,) = body["topics"][0]["partitions"]
        assert part["leader_epoch"] == 5


async def test_end_of_the_log_includes_open_transactions() -> None:
    client = OneBroker(offset=7)
    async with started(client, read_committed=True) as brokers:
        end, listed = await asyncio.gather(brokers.log_end(T0), brokers.list_offsets(T0, -1))
        assert (end, listed) == (7, (7,))
        assert [body["isolation_level"] for body in client.bodies] == [0, 1]


@pytest.mark.parametrize(
    ("version", "answers", "offset"),
    [
        (4, [{"offset": 7}], 7),
        (4, [{"offset": -1}, {"offset": 9}], 9),  # all messages are older
        (0, [{"old_style_offsets": [5]}], 5),
        (0, [{"old_style_offsets": []}, {"old_style_offsets": [2]}], 2),  # all segments are younger
    ],
)
async def test_finds_the_offset_of_a_time(version: int, answers: list[dict[str, Any]], offset: int) -> None:
    client = OneBroker()
    client.versions = SimpleNamespace(pick=lambda *_, **__: version)
    given = iter(answers)
    respond = client.call

    async def call(api: Any, body: dict[str, Any], **options: Any) -> dict[str, Any]:
        client.answer = {"error_code": 0} | next(given)
        return await respond(api, body, **options)

    client.call = call  # type: ignore[method-assign]
    async with started(client) as brokers:
        assert await brokers.offset_at(T0, 1234) == offset
    times = [body["topics"][0]["partitions"][0]["timestamp"] for body in client.bodies]
    assert times == [1234] + [-1 if version else -2] * (len(answers) - 1)


async def test_error_of_one_partition_is_its_own() -> None:
    client, nodes = OneBroker(offset=7), Nodes()
    client.errors = {1: 6, 2: 29}
    client.left_out = {3}
    async with started(client, nodes) as brokers:
        several = [TopicPartition.numbered("t", number) for number in range(5)]
        ends = await asyncio.gather(*map(brokers.log_end, several), return_exceptions=True)
        assert [ends[0], ends[4]] == [7, 7]
        told = [str(ends[number]) for number in (1, 2, 3)]
        assert told[0].startswith("broker 1 returned no offset of t/1: NOT_LEADER_FOR_PARTITION (error 6)")
        assert told[1].startswith("broker 1 returned no offset of t/2: TOPIC_AUTHORIZATION_FAILED (error 29)")
        assert told[2] == "broker 1 returned no offset of t/3: the partition is missing from its answer"
        assert (client.stales, nodes.refreshed) == (["t"], ["t"])  # of the one that is not the leader


async def test_log_without_an_end_is_an_error() -> None:
    async with started(OneBroker(offset=-1)) as brokers:
        assert await brokers.list_offsets(T0, -1) == ()
        with pytest.raises(BrokerError, match="the leader of t/0 returned no end of it"):
            await brokers.log_end(T0)


async def test_cancelled_look_up_does_not_affect_those_beside_it() -> None:
    client = OneBroker(offset=7)
    client.released.clear()
    async with started(client) as brokers:
        first, second = (asyncio.create_task(brokers.log_end(each)) for each in (T0, U0))
        for _ in range(3):
            await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        client.released.set()
        assert await first == 7
        client.trouble = BrokerError("gone")
        for found in await asyncio.gather(brokers.log_end(T0), brokers.log_end(U0), return_exceptions=True):
            assert found is client.trouble
        assert len(client.bodies) == 2


@pytest.mark.parametrize("turns", [0, 1, 3], ids=["before it begins", "before it is sent", "once it is sent"])
async def test_look_up_is_sent_again_for_others_if_the_first_is_cancelled(turns: int) -> None:
    client = OneBroker(offset=7)
    client.released.clear()
    made = V08Brokers(cast("Any", client), FetchSettings(), FakeClock(), random.Random(1), cast("Any", None))
    tasks = [asyncio.create_task(made.log_end(each)) for each in (T0, U0)]  # the pool need not run
    for _ in range(turns):
        await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    client.released.set()
    assert await asyncio.wait_for(tasks[1], 5) == 7
    assert tasks[0].cancelled()
    assert len(client.bodies) == (2 if turns == 3 else 1)
    assert await made.log_end(T0) == 7


@pytest.mark.parametrize("error", [29, 31])
async def test_broker_that_does_not_say_where_epochs_end(error: int) -> None:
    client = OneBroker(leader_epoch=-1, end_offset=-1)
    client.errors = {0: error}
    async with started(client) as brokers:
        assert await brokers.epoch_end(T0, 3, 2) is None
        client.errors = {0: 6}
        with pytest.raises(BrokerError, match="broker 1 returned no end of epoch 2 of t/0: NOT_LEADER"):
            await brokers.epoch_end(T0, 3, 2)
        assert client.stales == ["t"]
        client.left_out = {0}
        with pytest.raises(BrokerError, match="the partition is missing from its answer"):
            await brokers.epoch_end(T0, 3, 2)


def test_failed_response_is_backed_off_from_and_leader_and_topic_are_looked_up() -> None:
    stale: list[str] = []
    nobody: Any = SimpleNamespace(stale=stale.extend)
    nodes = Nodes()
    brokers = V08Brokers(nobody, FetchSettings(), FakeClock(), random.Random(1), nobody, nodes)
    failing = source(brokers, T0)
    failing._compared = cast("Any", object())
    assert not failing.is_doubtful()
    assert failing.failed(BrokerError("gone"))
    assert failing.is_doubtful()
    assert (stale, nodes.refreshed) == (["t"], ["t"])


def test_change_of_a_topics_node_makes_its_positions_doubtful() -> None:
    nobody: Any = None
    nodes = Nodes()
    brokers = V08Brokers(nobody, FetchSettings(), FakeClock(), random.Random(1), nobody, nodes)
    both = [source(brokers, partition) for partition in (T0, U0)]
    for each in both:
        each._compared = cast("Any", object())
    nodes.changed("t")
    assert [each.is_doubtful() for each in both] == [True, False]


@pytest.mark.parametrize(
    ("outcome", "offset", "idle"),
    [
        (FetchOutcome.PROGRESS, 9, False),
        (FetchOutcome.PROGRESS, 10, True),
        (FetchOutcome.PROGRESS, 11, True),
        (FetchOutcome.EMPTY, 9, False),
        (FetchOutcome.EMPTY, 10, True),
        (FetchOutcome.CUT, 10, False),
        (FetchOutcome.CORRUPT, 10, True),
    ],
)
def test_partition_is_idle_at_the_readable_end(
    brokers: V08Brokers, outcome: FetchOutcome, offset: int, idle: bool
) -> None:
    made = source(brokers, T0)
    made.idle = outcome in (FetchOutcome.CUT, FetchOutcome.CORRUPT)
    made.classified(outcome, empty()._replace(readable_end=10), offset)
    assert made.idle is idle


def test_partition_whose_end_is_unknown_is_busy_after_messages(brokers: V08Brokers) -> None:
    made = source(brokers, T0)
    made.classified(FetchOutcome.PROGRESS, empty()._replace(readable_end=-1), 5)
    assert not made.idle


def test_second_empty_response_in_a_row_is_believed(brokers: V08Brokers) -> None:
    made = source(brokers, T0)
    seen = []
    for outcome in (FetchOutcome.EMPTY, FetchOutcome.EMPTY, FetchOutcome.PROGRESS, FetchOutcome.EMPTY):
        made.classified(outcome, empty()._replace(readable_end=10), 5)
        seen.append(made.idle)
    assert seen == [False, True, False, False]


def failing(response: PartitionResponse, fetched: object) -> NoReturn:
    raise FetchingOverError


def nothing_put(response: PartitionResponse, fetched: object) -> NoReturn:
    """What a fetcher gives where no answer comes before its turn."""
    raise AssertionError(fetched)


class Polled:
    """A broker source that keeps what it is asked for, and gives the answers that it has."""

    node_id = 1
    silent_until = 0.0

    def __init__(self) -> None:
        self.requests: list[PartitionRequest] = []
        self.hurried: list[PartitionRequest] = []
        self.answers: list[Any] = []

    async def wait_out_quota(self) -> None: ...

    async def fetch(self, request: PartitionRequest) -> Any:
        self.requests.append(request)
        answer = self.answers.pop(0) if self.answers else await request.answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    poll = fetch

    def hurry(self, request: PartitionRequest) -> None:
        self.hurried.append(request)


@pytest.fixture
def asking(brokers: V08Brokers, monkeypatch: pytest.MonkeyPatch) -> tuple[V08Source, Polled, Lane]:
    """A compared source of T0, the broker that it asks, and its lane."""
    polled = Polled()
    leadership = _Leadership(cast("Any", polled), 4, None)

    async def led(partition: TopicPartition) -> _Leadership:
        return leadership

    monkeypatch.setattr(brokers, "leadership", led)
    monkeypatch.setattr(brokers, "known_leadership", lambda partition: leadership)
    lane = Lane(T0, ByteBudget(1 << 30), max_bytes=1 << 20)
    made = brokers.source(T0, lane)
    made._compared = leadership
    return made, polled, lane


async def test_memory_of_a_busy_request_is_reserved_and_released(asking: tuple[V08Source, Polled, Lane]) -> None:
    made, polled, lane = asking
    polled.answers = [None, BrokerError("gone"), FetchedPartition(0, b"x", 9, ())]
    assert await made.ask(0, 1000, UNKNOWN_LOG, nothing_put) is None  # a quota
    assert lane.budget.used == 0
    with pytest.raises(BrokerError):
        await made.ask(0, 1000, UNKNOWN_LOG, nothing_put)
    assert lane.budget.used == 0
    response = await made.ask(5, 1000, UNKNOWN_LOG, nothing_put)
    assert response is not None
    assert (lane.budget.used, response.asked, response.broker) == (1000, 1000, 1)
    assert polled.requests[-1].fetch == PartitionFetch("t", 0, 5, 1000, 4)


async def test_memory_of_a_polled_response_is_counted(asking: tuple[V08Source, Polled, Lane]) -> None:
    made, polled, lane = asking
    made.idle = True
    polled.answers = [None, FetchedPartition(0, b"xyz", 9, ())]
    assert await made.ask(0, 1000, UNKNOWN_LOG, nothing_put) is None
    response = await made.ask(5, 1000, UNKNOWN_LOG, nothing_put)
    assert response is not None
    assert (lane.budget.used, response.asked) == (3, 64 << 10)


#: Calls of Python functions from the answer to a poll until the next one may ask, by codec.
LONE_CALLS = {"native": 32, "pure": 99}


async def test_lone_messages_need_the_same_calls_each_and_leave_nothing_to_the_garbage_collector(
    asking: tuple[V08Source, Polled, Lane], monkeypatch: pytest.MonkeyPatch, either_codec: str
) -> None:
    """From the answer to a poll until the next one may ask, with the handler and the lane between."""
    monkeypatch.setattr("consumerd.handlers.api.time", SimpleNamespace(monotonic=lambda: 0.0))  # no turn is too long
    made, polled, lane = asking
    made.idle = True
    fetcher = Fetcher(T0, 0, lane, made, made._brokers.services)
    calls, asked, handled = [0], [0], []

    def count(_: object, event: str, called: object) -> None:
        calls[-1] += event == "call"
        asked[0] += event == "c_call" and called is asyncio.get_running_loop

    @message_handler
    async def handle(message: Message) -> None:
        handled.append(message.offset)

    async def deliver(offset: int) -> None:
        request = polled.requests.pop()
        part = FetchedPartition(0, encode_record_batch([b"x"], base_offset=offset), offset + 1, ())
        request.deliver(part)
        fetched = await lane.get()
        await handle.handle(Batch(T0, fetched))
        lane.finished(fetched)
        assert request.poller is not None
        assert request.poller.go_on(request)
        polled.requests.append(request)

    running = asyncio.create_task(fetcher.run())
    while not polled.requests:
        await asyncio.sleep(0)
    for offset in range(10):
        await deliver(offset)
    gc.collect()
    gc.disable()
    sys.setprofile(count)
    try:
        for offset in range(10, 510):
            calls.append(0)
            await deliver(offset)
    finally:
        sys.setprofile(None)
        gc.enable()
    left = gc.collect()
    running.cancel()
    await asyncio.wait([running])
    _, *each = calls
    assert (handled, left) == (list(range(510)), 0)
    # The code of each is cold when a message comes alone.
    assert min(each) == max(each) <= LONE_CALLS[either_codec]
    assert asked == [0]  # a system call in Python 3.11


@pytest.mark.parametrize("case", ["usual", "empty", "error", "diverged", "doubtful", "closed", "overdrawn", "failing"])
async def test_usual_answer_is_in_the_lane_before_the_fetcher_has_its_turn(
    asking: tuple[V08Source, Polled, Lane], case: str
) -> None:
    made, polled, lane = asking
    made.idle = True
    services = made._brokers.services
    fetcher = Fetcher(T0, 5, lane, made, services)
    asked = asyncio.create_task(made.ask(5, 1000, UNKNOWN_LOG, failing if case == "failing" else fetcher._put))
    await asyncio.sleep(0)
    records = b"" if case == "empty" else encode_record_batch([b"a", b"b"], base_offset=5)
    part = FetchedPartition(6 * (case == "error"), records, 7, (), case == "diverged")
    if case == "doubtful":
        made._compared = None
    elif case == "closed":
        lane.close()
    elif case == "overdrawn":
        lane.budget.charge(lane.budget.limit + 1)
    held = lane.budget.used
    polled.requests[0].deliver(part)
    assert len(lane) == (case == "usual")
    assert fetcher.offset == (7 if case == "usual" else 5)
    if case == "failing":
        with pytest.raises(FetchingOverError):
            await asked
    else:
        polled.requests[0].settle(part)
        response = await asked
        assert response is not None
        assert (response.fetched is not None, response.error) == (case == "usual", part.error)
        if case == "usual":
            assert lane.head is response.fetched
            await fetcher._process(response)  # does the rest, and puts nothing again
            assert (len(lane), services.counters.messages, made.idle) == (1, 2, True)
            lane.clear()
        else:
            response.reservation.release()
    assert lane.budget.used == (0 if case == "usual" else held)


@pytest.mark.parametrize(
    "case",
    [
        "usual",
        "more to read",
        "paused",
        "paused before",
        "full",
        "closed",
        "in doubt",
        "failed before",
        "follower named",
    ],
)
async def test_poll_goes_on_without_the_fetcher_only_if_all_is_as_usual(
    asking: tuple[V08Source, Polled, Lane], case: str
) -> None:
    made, polled, lane = asking
    made.idle = True
    services = made._brokers.services
    fetcher = Fetcher(T0, 5, lane, made, services, LogId(b"i" * 16, 4))
    if case == "failed before":
        fetcher._failures.next()
    running = asyncio.create_task(fetcher.run())
    await asyncio.sleep(0)
    (request,) = polled.requests
    if case == "paused before":
        fetcher.pause()
    records = encode_record_batch([b"a", b"b"], base_offset=5, leader_epoch=6)
    request.deliver(FetchedPartition(0, records, 9 if case == "more to read" else 7, ()))
    assert (len(lane), fetcher.offset) == (1, 7)
    assert not request.deliver(FetchedPartition(0, records, 7, ()))  # the same, from a short poll
    assert len(lane) == 1
    if case == "paused":
        fetcher.pause()
        fetcher.resume()
    elif case == "full":
        for _ in range(DEFAULT_BATCHES - 1):
            lane.put(decode_records(b"", 7), lane.budget.charge(0))
    elif case == "closed":
        lane.close()
    elif case == "in doubt":
        made.doubt()
    elif case == "follower named":
        made._replica = ReadReplica(random.Random(1))
    assert request.poller is made
    if made.go_on(request):
        assert case == "usual"
        assert request.fetch == PartitionFetch("t", 0, 7, request.fetch.max_bytes, 4, b"i" * 16, 6)
        assert (made.idle, made._taken, services.counters.answered) == (True, None, {T0})
        assert not fetcher._proven  # what comes after a wait may be another log's
        assert fetcher._end == 7
    else:
        assert case != "usual"
        request.settle(None)
        while made._taken is not None:
            await asyncio.sleep(0)
        assert made.idle is (case != "more to read")
        assert services.counters.answered == {T0}  # by the fetcher, which has a turn
    running.cancel()
    await asyncio.wait([running])


async def test_request_stays_over_empty_answers_once_one_was_sound(asking: tuple[V08Source, Polled, Lane]) -> None:
    made, polled, _ = asking
    made.idle = True
    stays = []
    for happen in (lambda: None, lambda: None, lambda: made.refusal(6), lambda: None, lambda: made.failed(GONE)):
        happen()
        made._compared = await made._brokers.leadership(T0)
        polled.answers = [FetchedPartition(0, b"", 9, ())]
        await made.ask(9, 1000, UNKNOWN_LOG, nothing_put)
        stays.append(polled.requests[-1].patient)
        made.classified(FetchOutcome.EMPTY, empty()._replace(readable_end=9), 9)
    assert stays == [False, True, False, True, False]


async def test_doubt_and_pause_end_the_wait_of_a_request(asking: tuple[V08Source, Polled, Lane]) -> None:
    made, polled, _ = asking
    made.pause()  # nothing is polled
    made.doubt()
    made._compared = await made._brokers.leadership(T0)
    made.idle = True
    task = asyncio.create_task(made.ask(9, 1000, UNKNOWN_LOG, nothing_put))
    await asyncio.sleep(0)
    made.pause()
    assert polled.hurried == polled.requests
    assert not task.done()
    made.doubt()
    assert await task is None
    made.pause()
    assert len(polled.hurried) == 1


def test_only_errors_of_leaders_make_a_position_doubtful() -> None:
    stale: list[str] = []
    nobody: Any = SimpleNamespace(stale=stale.extend)
    brokers = V08Brokers(nobody, FetchSettings(), FakeClock(), random.Random(1), nobody)
    made = source(brokers, T0)
    made._compared = cast("Any", object())
    made.refusal(29)
    made.refusal(2)
    assert (stale, made.is_doubtful()) == ([], False)
    made.refusal(6)
    assert (stale, made.is_doubtful()) == (["t"], True)


async def test_failure_of_a_look_up_that_nobody_waits_for_does_not_reach_the_loop() -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    client = OneBroker(offset=7)
    client.released.clear()
    async with started(client) as brokers:
        asked = asyncio.create_task(brokers.log_end(T0))
        for _ in range(3):
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        client.trouble = BrokerError("gone")
        client.released.set()
    del asked
    gc.collect()
    assert failures == []


async def test_holds_less_than_2500_bytes_for_each_partition_that_waits_at_its_leader(
    asking: tuple[V08Source, Polled, Lane], brokers: V08Brokers
) -> None:
    """Without the lane: the fetcher, its task, the request, and the coroutines that wait for the answer."""
    compared, polled, _ = asking
    count = 100
    lanes = [Lane(TopicPartition.numbered("t", n), ByteBudget(1 << 30), max_bytes=1 << 20) for n in range(count)]
    tracemalloc.start()
    try:
        tasks = []
        for lane in lanes:
            made = brokers.source(lane.partition, lane)
            made._compared, made.idle = compared._compared, True
            fetcher = Fetcher(lane.partition, 0, lane, made, brokers.services)
            tasks.append(asyncio.create_task(fetcher.run(), name="fetch"))
        while len(polled.requests) < count:
            await asyncio.sleep(0)
        gc.collect()
        held = tracemalloc.take_snapshot().statistics("lineno")
    finally:
        tracemalloc.stop()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    largest = [(str(each.traceback), each.size // count) for each in held[:12]]
    assert sum(each.size for each in held) / count < 2500, largest

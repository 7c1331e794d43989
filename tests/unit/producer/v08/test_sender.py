"""When batches leave: on several brokers in memory that answer when the test says so. No time passes unless stated."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError
from consumerd.net.client.channel import Channel
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connection import BrokerConnection, ConnectionSettings
from consumerd.net.errors import ConnectionClosedError
from consumerd.producer.cluster import ClusterProducer
from consumerd.producer.errors import ProducerClosedError
from consumerd.producer.v08.batches import OVERHEAD
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.testing.clock import FakeClock
from consumerd.wire.v08 import ResponseHeader, ResponseMessage, encode_response
from consumerd.wire.v08.apis import APIS, INIT_PRODUCER_ID, PRODUCE
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.records import decode_records
from consumerd.wire.v08.schema import NO_UUID, Api
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions
from tests.support.prepared_requests import Posting, client_settings, request_body
from tests.support.waiting import cancel, turns


@dataclass
class Request:
    """A PRODUCE request that waits for its answer."""

    node_id: int
    values: dict[int, list[bytes | None]]
    #: By partition: producer id and first sequence number.
    numbers: dict[int, tuple[int, int]]
    answered: asyncio.Future[int | BaseException] = field(default_factory=asyncio.Future)

    def answer(self, outcome: int | BaseException = 0) -> None:
        """With an error code for all partitions, or by the end of the connection."""
        self.answered.set_result(outcome)


class Brokers:
    """A client of brokers 0, 1, ...; partition n of each topic is led by broker n modulo their number."""

    leaderless = ClusterClient.leaderless

    def __init__(
        self, brokers: int = 1, partitions: int = 4, topics: Iterable[str] = ("t",), *, idempotent: bool = False
    ) -> None:
        self.settings = client_settings()
        self.versions = SimpleNamespace(pick=lambda *_, **__: 9, has=lambda _: idempotent)
        #: Producer ids that were requested.
        self.ids = 0
        self.requests: list[Request] = []
        self.arrived = asyncio.Event()
        #: Topics whose metadata have to be requested, what that waits for, and what it raises.
        self.old: set[str] = set()
        self.lookup = asyncio.Event()
        self.lookup.set()
        self.lookup_error: BrokerError | None = None
        self.lookups: list[str] = []
        self.looked_at = 0
        self.lead({topic: {n: n % brokers for n in range(partitions)} for topic in topics}, brokers)

    def lead(self, leaders: Mapping[str, Mapping[int, int | None]], brokers: int) -> None:
        """Have the metadata say who leads what."""
        topics = {}
        for topic, parts in leaders.items():
            made = {n: PartitionMetadata(node, 0, (0,), (0,), 5 * (node is None)) for n, node in parts.items()}
            topics[topic] = TopicMetadata(0, made)
        brokers_here = self

        class Counted(ClusterMetadata):
            def leader(self, topic: str, partition: int) -> Node | None:
                brokers_here.looked_at += 1
                return super().leader(topic, partition)

        self.metadata = Counted({n: Node(n, "memory", n) for n in range(brokers)}, topics)

    def known_leader(self, topic: str, partition: int) -> Node | None:
        return None if topic in self.old else self.metadata.leader(topic, partition)

    def known_topic_id(self, topic: str) -> bytes:
        return NO_UUID

    async def topics(self, names: list[str]) -> ClusterMetadata:
        if self.old.intersection(names):
            self.lookups += names
            await self.lookup.wait()
            if self.lookup_error is not None:
                raise self.lookup_error
            self.old.difference_update(names)
        return self.metadata

    def stale(self, topics: Iterable[str] = ()) -> None:
        self.old.update(topics or self.metadata.topics)

    async def node_channel(self, node_id: int) -> Link:
        return Link(self, node_id)

    def open_node_channel(self, node_id: int) -> Link | None:
        return Link(self, node_id)

    async def answer(self, number: int, outcome: int | BaseException = 0) -> None:
        """Answer a request, and let everything run."""
        self.requests[number].answer(outcome)
        await turns(10)

    def sent(self) -> list[tuple[int, dict[int, list[bytes | None]]]]:
        """Of each request the broker, and the values by partition."""
        return [(request.node_id, request.values) for request in self.requests]


class Link(Posting):
    """A channel to one of them."""

    def __init__(self, brokers: Brokers, node_id: int) -> None:
        self._brokers = brokers
        self._node_id = node_id
        self.versions = brokers.versions
        self.address = f"memory:{node_id}"

    async def call(self, api: Api[Any, Any], body: Any, **_: Any) -> dict[str, Any]:
        brokers = self._brokers
        if api is INIT_PRODUCER_ID:
            brokers.ids += 1
            return {"error_code": 0, "producer_id": brokers.ids, "producer_epoch": 0}
        fields = request_body(api, body)["topic_data"]
        parts = {part["index"]: part["records"] for topic in fields for part in topic["partition_data"]}
        values = {number: list(decode_records(data, 0).payloads) for number, data in parts.items()}
        numbers = {number: struct.unpack_from(">qxxi", data, 43) for number, data in parts.items()}
        request = Request(self._node_id, values, numbers)
        brokers.requests.append(request)
        brokers.arrived.set()
        if isinstance(outcome := await request.answered, BaseException):
            raise outcome
        return {
            "responses": [
                {
                    "name": topic["name"],
                    "partition_responses": [
                        {"index": part["index"], "error_code": outcome, "base_offset": 7}
                        for part in topic["partition_data"]
                    ],
                }
                for topic in fields
            ]
        }


def producer(brokers: Any, clock: Any = None, **settings: Any) -> V08Producer:
    return V08Producer(brokers, V08ProducerSettings(**settings), clock=clock or SystemClock(), rng=random.Random(1))


class Time:
    """A clock, and the timers of the loop, which both stand still until a test lets time pass."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._timers: list[tuple[float, asyncio.Handle]] = []
        #: Timers that were set.
        self.made = 0

    def call_later(self, delay: float, callback: Any, *arguments: Any) -> asyncio.Handle:
        self.made += 1
        handle = asyncio.Handle(callback, arguments, asyncio.get_running_loop())
        self._timers.append((self.clock.monotonic() + delay, handle))
        return handle

    def pending(self) -> list[asyncio.Handle]:
        """The timers that are neither due nor cancelled."""
        return [handle for _, handle in self._timers if not handle.cancelled()]

    async def advance(self, seconds: float) -> None:
        """Let time pass, and everything run."""
        await turns(10)
        self.clock.jump(seconds)
        due = [handle for at, handle in self._timers if at <= self.clock.monotonic()]
        self._timers = [timer for timer in self._timers if timer[1] not in due]
        for handle in due:
            if not handle.cancelled():
                handle._run()
        await turns(10)


@pytest_asyncio.fixture
async def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    passing = Time()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", passing.call_later)
    return passing


async def test_lone_message_leaves_at_once_and_needs_one_round_trip() -> None:
    brokers = Brokers()
    async with producer(brokers) as ours:
        for number in range(3):
            delivery = await ours.send("t", b"%d" % number, partition=0)
            await turns(3)
            assert brokers.sent()[number:] == [(0, {0: [b"%d" % number]})]
            brokers.requests[-1].answer()
            assert (await delivery).offset == 7


class Posted(Link):
    """A channel whose requests a test answers by itself."""

    settles: list[Callable[[Any], object]]

    def post(self, api: Api[Any, Any], body: Any, settle: Callable[[Any], object], **_: Any) -> bool:
        self.settles.append(settle)
        return True


class PostedBrokers(Brokers):
    def __init__(self) -> None:
        super().__init__()
        self.posted: list[Callable[[Any], object]] = []

    def open_node_channel(self, node_id: int) -> Link | None:
        link = Posted(self, node_id)
        link.settles = self.posted
        return link


STORED = {"responses": [{"name": "t", "partition_responses": [{"index": 0, "error_code": 0, "base_offset": 7}]}]}


async def test_lone_message_is_written_in_the_next_turn_and_settled_by_the_reader_of_its_answer() -> None:
    brokers = PostedBrokers()
    async with producer(brokers) as ours:
        await turns(10)
        for number in range(3):
            delivery = await ours.send("t", b"x", partition=0)
            assert len(brokers.posted) == number
            await asyncio.sleep(0)
            assert len(brokers.posted) == number + 1
            brokers.posted[-1](STORED)
            assert delivery.done
            assert (await delivery).offset == 7


class Wire(asyncio.Transport):
    """The transport of a connection to a broker that stores each batch, and answers when the test says so."""

    def __init__(self, connection: BrokerConnection) -> None:
        super().__init__()
        self._connection = connection
        self._frames: list[bytes] = []
        part = {"index": 0, "error_code": 0, "base_offset": 7, "log_append_time_ms": -1, "log_start_offset": 0}
        fields = {"responses": [{"name": "t", "partition_responses": [part]}], "throttle_time_ms": 0}
        self._stored = encode_response(PRODUCE, 9, ResponseMessage(ResponseHeader(0), fields))
        connection.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._frames.append(bytes(data))

    def abort(self) -> None:
        self._connection.connection_lost(None)

    def answer(self) -> None:
        """The one request."""
        (frame,) = self._frames
        self._frames.clear()
        response = self._stored[:4] + frame[8:12] + self._stored[8:]
        self._connection.get_buffer(-1)[: len(response)] = response
        self._connection.buffer_updated(len(response))


#: Calls of our functions for a message that is sent alone, from `send` to its end, with those of the connection.
LONE_CALLS = {"native": 99, "pure": 107}


async def test_lone_messages_need_the_same_few_calls_each_and_leave_nothing_to_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch, either_codec: str
) -> None:
    """Its passes, and anything done now and then, would be what some messages wait for longer than others."""
    brokers, calls = Brokers(idempotent=True), [0]
    connection = BrokerConnection("h", 9, ConnectionSettings())
    wire = Wire(connection)
    versions = BrokerVersions("h:9", BrokerRelease.V0_10_OR_NEWER, dict.fromkeys(APIS, (0, 9)))
    channel = Channel(connection, "h:9", versions, ClientSettings(), FakeClock())
    monkeypatch.setattr(brokers, "open_node_channel", lambda _: channel)

    def count(frame: FrameType, event: str, _: object) -> None:
        calls[-1] += event == "call" and frame.f_globals["__name__"].startswith("consumerd.")

    async def send(ours: ClusterProducer) -> None:
        sending = asyncio.create_task(ours.send("t", [b"x"]))
        await turns(2)
        wire.answer()
        await sending

    brokers.lead({"t": {0: 0}}, 1)
    async with ClusterProducer(producer(brokers, FakeClock())) as ours:
        first = asyncio.create_task(ours.send("t", [b"x"]))  # it has to wait for a producer id
        await brokers.arrived.wait()
        brokers.requests[0].answer()
        await first
        await send(ours)
        gc.collect()
        gc.disable()
        sys.setprofile(count)
        try:
            for _ in range(500):
                calls.append(0)
                await send(ours)
        finally:
            sys.setprofile(None)
            gc.enable()
        assert gc.collect() == 0
    _, *each = calls
    # The code of each is cold when a message comes alone.
    assert min(each) == max(each) <= LONE_CALLS[either_codec]


async def test_answer_that_comes_after_the_end_has_no_effect() -> None:
    brokers = PostedBrokers()
    ours = producer(brokers)
    await ours.start()
    delivery = await ours.send("t", b"x", partition=0)
    await turns(10)
    await ours.abort()
    with pytest.raises(ProducerClosedError, match="was closed before"):
        await delivery
    brokers.posted[0](STORED)
    brokers.posted[0](ConnectionClosedError("the end"))
    assert ours.buffered_bytes == 0


async def test_defect_at_an_answer_ends_the_producer() -> None:
    brokers = PostedBrokers()
    ours = producer(brokers)
    await ours.start()
    deliveries = [await ours.send("t", b"x", partition=number) for number in (0, 0, 1)]
    await turns(10)
    brokers.posted[0](ZeroDivisionError("a defect"))
    await turns(10)
    for delivery in deliveries:
        with pytest.raises(ProducerClosedError, match="ZeroDivisionError"):
            await delivery
    with pytest.raises(ExceptionGroup):
        await ours.close()


async def test_callers_that_are_ready_in_the_same_turn_share_a_batch() -> None:
    brokers = Brokers()
    async with producer(brokers) as ours:
        callers = [asyncio.create_task(ours.send("t", b"%d" % number, partition=0)) for number in range(5)]
        await asyncio.gather(*callers)
        await turns(10)
        assert brokers.sent() == [(0, {0: [b"0", b"1", b"2", b"3", b"4"]})]
        brokers.requests[0].answer()


@pytest.mark.parametrize("second", [0, 1])
async def test_messages_gather_while_a_request_to_their_broker_is_in_flight(second: int) -> None:
    """In one batch of their partition, whether it is that of the request or another one."""
    brokers = Brokers()
    async with producer(brokers) as ours:
        await ours.send("t", b"first", partition=0)
        await turns(10)
        for number in range(50):
            await ours.send("t", b"%d" % number, partition=second)
            await turns(10)
        assert len(brokers.requests) == 1
        await brokers.answer(0)
        assert brokers.sent()[1:] == [(0, {second: [b"%d" % number for number in range(50)]})]
        brokers.requests[1].answer()


async def test_one_request_has_all_that_gathered() -> None:
    brokers = Brokers(partitions=3)
    async with producer(brokers) as ours:
        for number in (0, 0, 1, 2, 1):
            await ours.send("t", b"%d" % number, partition=number)
            await turns(10)
        await brokers.answer(0)
        assert brokers.sent() == [(0, {0: [b"0"]}), (0, {1: [b"1", b"1"], 2: [b"2"], 0: [b"0"]})]
        brokers.requests[1].answer()


async def test_full_batches_leave_while_requests_are_in_flight_and_open_ones_do_not() -> None:
    brokers = Brokers()
    async with producer(brokers, batch_bytes=1000, in_flight=3) as ours:
        await ours.send("t", b"first", partition=0)
        await turns(10)
        await ours.send("t", b"open", partition=1)
        await ours.send("t", bytes(1000), partition=2)
        await turns(10)
        assert brokers.sent()[1:] == [(0, {2: [bytes(1000)]})]
        # The open one goes after any answer, however many requests are still in flight.
        await brokers.answer(1)
        assert brokers.sent()[2:] == [(0, {1: [b"open"]})]
        for request in (brokers.requests[0], brokers.requests[2]):
            request.answer()


async def test_batch_that_fills_up_while_it_gathers_leaves_once() -> None:
    brokers = Brokers()
    async with producer(brokers, batch_bytes=1000) as ours:
        await ours.send("t", b"first", partition=0)
        await turns(10)
        await ours.send("t", bytes(400), partition=1)
        await turns(10)
        await ours.send("t", bytes(600), partition=1)
        await ours.send("t", b"next", partition=1)
        await turns(10)
        assert brokers.sent()[1:] == [(0, {1: [bytes(400)]})]
        await brokers.answer(0)
        assert len(brokers.requests) == 2
        await brokers.answer(1)
        assert brokers.sent()[2:] == [(0, {1: [bytes(600), b"next"]})]
        brokers.requests[2].answer()


async def test_flush_waits_for_no_answer() -> None:
    brokers = Brokers()
    async with producer(brokers) as ours, asyncio.TaskGroup() as tasks:
        await ours.send("t", b"0", partition=0)
        await turns(10)
        await ours.send("t", b"1", partition=1)
        await turns(10)
        tasks.create_task(ours.flush())
        await turns(10)
        assert brokers.sent()[1:] == [(0, {1: [b"1"]})]
        await ours.send("t", b"2", partition=2)  # and so do those that are sent meanwhile
        await turns(10)
        assert brokers.sent()[2:] == [(0, {2: [b"2"]})]
        for request in brokers.requests:
            request.answer()
        await turns(10)
        for number in (0, 1):
            await ours.send("t", b"later", partition=number)
            await turns(10)
        assert len(brokers.requests) == 4  # the flush has ended
        await brokers.answer(3)
        brokers.requests[4].answer()


async def test_brokers_do_not_wait_for_each_other() -> None:
    brokers = Brokers(2)
    async with producer(brokers, in_flight=1) as ours:
        for number in range(4):
            await ours.send("t", b"%d" % number, partition=number)
            await turns(10)
        assert brokers.sent() == [(0, {0: [b"0"]}), (1, {1: [b"1"]})]
        await brokers.answer(1)
        assert brokers.sent()[2:] == [(1, {3: [b"3"]})]
        await brokers.answer(0)
        for request in brokers.requests[2:]:
            request.answer()


async def test_topic_whose_leaders_are_looked_up_holds_no_other_back() -> None:
    brokers = Brokers(topics=("old", "t"))
    async with producer(brokers) as ours:
        brokers.old.add("old")
        brokers.lookup.clear()
        for topic, number in (("old", 0), ("old", 1), ("t", 0)):
            await ours.send(topic, topic.encode(), partition=number)
            await turns(10)
        assert brokers.sent() == [(0, {0: [b"t"]})]
        assert brokers.lookups == ["old"]  # once for both partitions
        brokers.requests[0].answer()
        brokers.lookup.set()
        await turns(10)
        assert brokers.sent()[1:] == [(0, {0: [b"old"], 1: [b"old"]})]
        brokers.requests[1].answer()


async def test_messages_that_gather_at_a_broker_follow_their_leader() -> None:
    """They do not wait for the answer of the old one, which may never come."""
    brokers = Brokers(2)
    async with producer(brokers) as ours:
        for number in (0, 2, 2):
            await ours.send("t", b"%d" % number, partition=number)
            await turns(10)
        assert len(brokers.requests) == 1
        brokers.lead({"t": {0: 0, 1: 1, 2: 1, 3: 1}}, 2)
        await ours.send("t", b"3", partition=3)
        await turns(10)
        assert brokers.sent()[1:] == [(1, {3: [b"3"], 2: [b"2", b"2"]})]
        for request in brokers.requests:
            request.answer()
            await turns(10)


async def test_partitions_without_a_leader_wait_and_cost_one_look_up() -> None:
    brokers = Brokers(partitions=6)
    leaders: dict[int, int | None] = dict.fromkeys(range(6), 0)
    brokers.lead({"t": leaders | dict.fromkeys(range(1, 6))}, 1)
    async with producer(brokers) as ours:
        with capture_logs() as logs:
            deliveries = [await ours.send("t", b"%d" % number, partition=number) for number in range(6)]
            await turns(10)
            assert brokers.sent() == [(0, {0: [b"0"]})]
            assert {each["partition"] for each in logs} == {f"t/{number}" for number in range(1, 6)}
            assert "LEADER_NOT_AVAILABLE" in logs[0]["reason"]
            brokers.lead({"t": leaders}, 1)
            brokers.requests[0].answer()
            brokers.arrived.clear()
            async with asyncio.timeout(10):
                while sum(len(request.values) for request in brokers.requests) < 6:
                    await brokers.arrived.wait()
                    brokers.arrived.clear()
                    brokers.requests[-1].answer()
                await asyncio.gather(*deliveries)
        assert len(logs) == 5
        assert len(brokers.lookups) <= 5


async def test_failed_look_up_is_repeated_after_a_pause() -> None:
    brokers = Brokers()
    async with producer(brokers) as ours, asyncio.timeout(10):
        brokers.old.add("t")
        brokers.lookup_error = BrokerError("no broker answers")
        with capture_logs() as logs:
            delivery = await ours.send("t", b"x", partition=0)
            await turns(10)
        assert [(each["event"], each["reason"]) for each in logs] == [("produce_retried", "no broker answers")]
        assert brokers.requests == []
        brokers.lookup_error = None
        await brokers.arrived.wait()
        brokers.requests[0].answer()
        assert (await delivery).offset == 7


async def test_cost_of_a_lone_message_does_not_grow_with_the_partitions() -> None:
    brokers = Brokers(partitions=1000)
    async with producer(brokers) as ours:
        await ours.send("t", b"0", partition=0)
        brokers.looked_at = 0  # the route has looked for partitions with a leader
        for number in range(1, 1000):
            await ours.send("t", b"%d" % number, partition=number)
        for request in (0, 1):
            await turns(10)
            await brokers.answer(request)
        assert [len(request.values) for request in brokers.requests] == [1, 999]
        assert brokers.looked_at == 1000
        for number in range(20):
            delivery = await ours.send("t", b"x", partition=number)
            await turns(10)
            brokers.requests[-1].answer()
            await delivery
        assert brokers.looked_at == 1020


async def test_partitions_share_a_producer_id_and_one_that_failed_takes_another() -> None:
    """So that the first messages to many partitions do not cost a round trip each."""
    brokers = Brokers(partitions=50, idempotent=True)
    async with producer(brokers) as ours, asyncio.timeout(10):
        assert await _numbers(brokers, ours, range(50)) == dict.fromkeys(range(50), (1, 0))
        await _numbers(brokers, ours, (3, 4), ErrorCode.MESSAGE_TOO_LARGE)
        assert await _numbers(brokers, ours, range(2, 6)) == {2: (1, 1), 3: (2, 0), 4: (2, 0), 5: (1, 1)}
        await _numbers(brokers, ours, (3,), ErrorCode.MESSAGE_TOO_LARGE)
        assert await _numbers(brokers, ours, range(2, 5)) == {2: (1, 2), 3: (3, 0), 4: (2, 1)}
    assert brokers.ids == 3


async def test_halves_of_a_batch_continue_its_numbers_and_come_before_what_gathered() -> None:
    brokers = Brokers(idempotent=True)
    async with producer(brokers, linger=3600) as ours, asyncio.timeout(10):
        await ours.send_many("t", [b"0", b"1", b"2"], partition=0)
        flushing = asyncio.create_task(ours.flush())
        await turns(10)
        later = await ours.send("t", b"3", partition=0)
        with capture_logs():
            await brokers.answer(0, ErrorCode.MESSAGE_TOO_LARGE)
        for number in (1, 2):
            await brokers.answer(number)
        await flushing
        ours._sender.hurry(1)
        await turns(10)
        await brokers.answer(3)
        await later
    assert [request.values[0] for request in brokers.requests[1:]] == [[b"0"], [b"1", b"2"], [b"3"]]
    assert [request.numbers[0] for request in brokers.requests] == [(1, 0), (1, 0), (1, 1), (1, 3)]


async def test_halves_of_a_batch_that_may_be_stored_keep_its_producer_id() -> None:
    """The limit was lowered between two attempts, the first of which was accepted: nothing may be there twice."""
    brokers = Brokers(idempotent=True)
    async with producer(brokers) as ours, asyncio.timeout(10):
        sent = await ours.send_many("t", [b"0", b"1"], partition=0)
        flushing = asyncio.create_task(ours.flush())
        await turns(10)
        with capture_logs():
            await brokers.answer(0, ConnectionClosedError("lost"))
            for number, code in (
                (1, ErrorCode.MESSAGE_TOO_LARGE),
                (2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
                (3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
            ):
                while len(brokers.requests) <= number:
                    await asyncio.sleep(0.001)
                await brokers.answer(number, code)
        await flushing
        with pytest.raises(BrokerError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
            await sent
    assert [request.values[0] for request in brokers.requests[2:]] == [[b"0"], [b"1"]]
    assert brokers.requests[2].numbers[0] == (1, 0)


async def _numbers(
    brokers: Brokers, ours: V08Producer, partitions: Sequence[int], outcome: int = 0
) -> dict[int, tuple[int, int]]:
    """Send a message to each partition, and answer; the numbers of their batches. All but the first one gather."""
    before = len(brokers.requests)
    for number in partitions:
        await ours.send("t", b"%d" % number, partition=number)
        await turns(10)
    with capture_logs():
        for number in range(before, before + min(2, len(partitions))):
            await brokers.answer(number, outcome)
    return {place: numbers for request in brokers.requests[before:] for place, numbers in request.numbers.items()}


async def test_lingers_for_company_if_configured(time: Time) -> None:
    brokers = Brokers()
    async with producer(brokers, time.clock, linger=0.5) as ours:
        for number in (0, 1):
            await ours.send("t", b"%d" % number, partition=0)
            await time.advance(0.2)
        await time.advance(0.09)
        assert brokers.requests == []
        assert len(time.pending()) == 1  # one timer for a queue, whatever happens
        await time.advance(0.02)
        assert brokers.sent() == [(0, {0: [b"0", b"1"]})]
        await brokers.answer(0)
        assert time.pending() == []


async def test_pauses_between_attempts_grow_up_to_a_limit_and_start_again_after_a_success(time: Time) -> None:
    """From half of the bound to all of it, by chance: here three quarters."""
    brokers = Brokers()
    rng: Any = SimpleNamespace(random=lambda: 0.5)
    settings = V08ProducerSettings(delivery_timeout=math.inf, batch_bytes=50)
    made = 0
    async with V08Producer(brokers, settings, clock=time.clock, rng=rng) as ours:  # type: ignore[arg-type]
        for failures in (10, 2):
            await ours.send("t", b"x", partition=0)
            await turns(10)
            with capture_logs() as logs:
                for number in range(failures):
                    attempts = len(brokers.requests)
                    brokers.requests[-1].answer(ErrorCode.REQUEST_TIMED_OUT)
                    pause = min(2.0, 0.01 * 2**number) * 0.75
                    await ours.send("t", b"later", partition=0)  # which changes nothing about the pause
                    await time.advance(pause - 0.001)
                    assert len(brokers.requests) == attempts
                    assert len(time.pending()) == 1
                    await time.advance(0.002)
                    made += 1
                    assert time.made == made  # the messages that came set none
                    assert len(brokers.requests) == attempts + 1
            assert [each["event"] for each in logs] == ["produce_retried"]
            for request in range(len(brokers.requests) - 1, len(brokers.requests) + failures):
                brokers.requests[request].answer()  # that one, and what came later
                await turns(10)
            assert ours.buffered_bytes == 0


async def test_logs_once_that_a_request_for_many_partitions_is_tried_again() -> None:
    brokers = Brokers()
    async with asyncio.timeout(10), producer(brokers) as ours:
        brokers.old.add("t")
        brokers.lookup_error = BrokerError("no broker answers")
        with capture_logs() as logs:
            deliveries = [await ours.send("t", b"x", partition=partition) for partition in range(4)]
            await turns(10)
        assert [(each["event"], each["partition"]) for each in logs] == [("produce_retried", "t/0")]
        brokers.lookup_error = None
        answered = 0
        while not all(each.done for each in deliveries):
            await brokers.arrived.wait()
            brokers.arrived.clear()
            for request in brokers.requests[answered:]:
                request.answer()
            answered = len(brokers.requests)
            await turns(10)


async def test_batch_fails_when_the_delivery_timeout_has_passed_since_its_first_attempt(time: Time) -> None:
    brokers = Brokers()
    async with producer(brokers, time.clock, delivery_timeout=10.0) as ours:
        with capture_logs() as logs:
            for late in (0.0, 0.001):
                delivery = await ours.send("t", b"x", partition=0)
                await turns(10)
                time.clock.jump(10.0 + late)
                await brokers.answer(-1, ErrorCode.REQUEST_TIMED_OUT)
                if not late:
                    assert not delivery.done
                    await time.advance(1.0)
                    await brokers.answer(-1, ErrorCode.REQUEST_TIMED_OUT)
                with pytest.raises(BrokerError, match="REQUEST_TIMED_OUT"):
                    await delivery
                assert ours.buffered_bytes == 0
            # The next batch begins again, with the first pause.
            await ours.send("t", b"x", partition=0)
            await turns(10)
            brokers.requests[-1].answer(ErrorCode.REQUEST_TIMED_OUT)
            await time.advance(0.01)
        assert [each["event"] for each in logs] == ["produce_retried", *["produce_failed"] * 2, "produce_retried"]
        brokers.requests[4].answer()


async def test_lone_send_does_not_give_up_its_turn() -> None:
    brokers = Brokers()
    async with producer(brokers) as ours:
        for count in (1, 2):
            with pytest.raises(StopIteration):
                ours.send("t", b"x", partition=0).send(None)
            await turns(10)
            await brokers.answer(-1)
            assert len(brokers.requests) == count


@pytest.mark.parametrize("in_flight", [1, 2])
async def test_never_has_more_requests_in_flight_than_configured(in_flight: int) -> None:
    """However much is ready at once; and after many answers."""
    brokers = Brokers(partitions=8)
    brokers.settings.max_request_bytes = 3000
    async with producer(brokers, in_flight=in_flight, batch_bytes=1000) as ours, asyncio.timeout(10):
        tasks = [asyncio.create_task(ours.send("t", bytes(1400), partition=number)) for number in range(8)]
        await asyncio.gather(*tasks)
        for _ in range(8):
            await turns(10)
            waiting = [request for request in brokers.requests if not request.answered.done()]
            assert len(waiting) == min(in_flight, 8 - len(brokers.requests) + len(waiting))
            waiting[0].answer()
    assert [len(request.values) for request in brokers.requests] == [1] * 8


async def test_request_has_batches_up_to_half_of_the_limit() -> None:
    """The rest goes before what gathers later."""
    brokers = Brokers(partitions=6)
    size = OVERHEAD + 100
    brokers.settings.max_request_bytes = 4 * size
    async with producer(brokers, in_flight=1) as ours:
        for number in (0, 1, 2, 3):
            await ours.send("t", bytes(100), partition=number)
            await turns(10)
        await brokers.answer(0)
        await ours.send("t", b"later", partition=4)
        await turns(10)
        await brokers.answer(1)
        assert [list(request.values) for request in brokers.requests] == [[0], [1, 2], [3, 4]]
        await brokers.answer(2)
        for number in (0, 1):
            await ours.send("t", bytes(100), partition=number)
            await turns(10)
        await ours.send("t", bytes(101), partition=2)
        await turns(10)
        await brokers.answer(3)
        assert [list(request.values) for request in brokers.requests[3:]] == [[0], [1]]
        await brokers.answer(4)
        brokers.requests[5].answer()


async def test_queue_whose_next_batch_fills_keeps_its_place() -> None:
    brokers = Brokers()
    async with producer(brokers, in_flight=1, batch_bytes=100) as ours:
        for number in (0, 1, 2, 1):
            await ours.send("t", bytes(100), partition=number)
            await turns(10)
        await brokers.answer(0)
        assert list(brokers.requests[1].values) == [1, 2]
        await brokers.answer(1)
        brokers.requests[2].answer()


async def test_batch_that_a_flush_made_ready_is_in_one_request() -> None:
    """Also if the flush ends before there is room for a request."""
    brokers = Brokers()
    async with producer(brokers, in_flight=1) as ours:
        for number in (0, 1):
            await ours.send("t", b"%d" % number, partition=number)
            await turns(10)
        flush = asyncio.create_task(ours.flush())
        await turns(10)
        await cancel(flush)
        await ours.send("t", b"1", partition=1)
        await turns(10)
        await brokers.answer(0)
        assert brokers.sent()[1:] == [(0, {1: [b"1", b"1"]})]
        await brokers.answer(1)
        assert len(brokers.requests) == 2


async def test_open_batch_gathers_behind_a_full_one_of_its_partition() -> None:
    brokers = Brokers()
    async with producer(brokers, batch_bytes=1000) as ours:
        for size in (1000, 10):
            await ours.send("t", bytes(size), partition=0)
            await turns(10)
        brokers.requests[0].answer(ErrorCode.REQUEST_TIMED_OUT)
        async with asyncio.timeout(10):
            while len(brokers.requests) < 2:
                await asyncio.sleep(0.001)
        await ours.send("t", bytes(20), partition=0)
        await brokers.answer(1)
        assert brokers.sent()[1:] == [(0, {0: [bytes(1000)]}), (0, {0: [bytes(10), bytes(20)]})]
        brokers.requests[2].answer()


@pytest.mark.parametrize("waits", ["ready", "gathering"])
async def test_batch_leaves_the_line_of_a_broker_that_does_not_lead_any_more(waits: str) -> None:
    brokers = Brokers(2)
    size = 100 if waits == "ready" else 1
    async with producer(brokers, in_flight=1, batch_bytes=100) as ours:
        for number in (0, 2):
            await ours.send("t", bytes(size), partition=number)
            await turns(10)
        with capture_logs():
            brokers.lead({"t": {0: 0, 1: 1, 2: None, 3: 1}}, 2)
            await ours.send("t", b"3", partition=3)
            await turns(10)
        brokers.lead({"t": {0: 0, 1: 1, 2: 1, 3: 1}}, 2)
        await brokers.answer(0)
        assert [request.node_id for request in brokers.requests] == [0, 1]  # nothing more of broker 0
        brokers.requests[1].answer()
        async with asyncio.timeout(10):
            while len(brokers.requests) < 3:
                await asyncio.sleep(0.001)
        assert brokers.sent()[2:] == [(1, {2: [bytes(size)]})]
        await brokers.answer(2)


async def test_batch_whose_leader_is_looked_up_is_not_sent_to_the_former_one() -> None:
    brokers = Brokers(2)
    async with producer(brokers, batch_bytes=1000) as ours:
        for number in (0, 2):
            await ours.send("t", bytes(10), partition=number)
            await turns(10)
        brokers.old.add("t")
        brokers.lookup.clear()
        await ours.send("t", bytes(990 - 2 * OVERHEAD), partition=2)  # which fills the batch
        await turns(10)
        await brokers.answer(0)
        assert len(brokers.requests) == 1
        brokers.lead({"t": dict.fromkeys(range(4), 1)}, 2)
        brokers.lookup.set()
        await turns(10)
        assert [(request.node_id, list(request.values)) for request in brokers.requests[1:]] == [(1, [2])]
        brokers.requests[1].answer()


@pytest.mark.parametrize("error", [None, BrokerError("no broker answers")])
async def test_batch_is_sent_once_if_others_find_its_leader_first(error: BrokerError | None) -> None:
    brokers = Brokers()
    async with producer(brokers) as ours:
        brokers.old.add("t")
        brokers.lookup.clear()
        deliveries = [await ours.send("t", b"0", partition=0)]
        await turns(10)
        brokers.old.clear()
        deliveries.append(await ours.send("t", b"1", partition=1))
        deliveries.append(await ours.send("t", b"0", partition=0))
        flush = asyncio.create_task(ours.flush())
        await turns(10)
        brokers.lookup_error = error
        brokers.lookup.set()
        with capture_logs() as logs:
            await turns(10)
        assert logs == []
        for request in brokers.requests:
            request.answer()
        await flush
        sent = [value for request in brokers.requests for values in request.values.values() for value in values]
        assert sorted(filter(None, sent)) == [b"0", b"0", b"1"]
        assert all(delivery.done for delivery in deliveries)


async def test_closed_producer_leaves_no_timer(time: Time) -> None:
    brokers = Brokers()
    ours = producer(brokers, time.clock, linger=3600)
    await ours.start()
    await ours.send("t", b"x", partition=0)
    await turns(10)
    assert len(time.pending()) == 1
    await ours.abort()
    assert time.pending() == []


async def test_cancelled_callers_do_not_disturb_the_others() -> None:
    brokers = Brokers()
    async with producer(brokers) as ours:
        waiting = [asyncio.ensure_future(_settled(ours)) for _ in range(3)]
        await turns(10)
        waiting[0].cancel()
        await turns(10)
        brokers.requests[0].answer()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert outcomes[1:] == [8, 9]


async def _settled(ours: V08Producer) -> int | None:
    return (await (await ours.send("t", b"x", partition=0))).offset


async def test_abort_fails_what_is_in_flight_gathers_and_lingers() -> None:
    brokers = Brokers()
    brokers.old.add("t")
    brokers.lookup.clear()
    ours = producer(brokers)
    await ours.start()
    deliveries = [await ours.send("t", b"x", partition=number) for number in range(3)]
    await turns(10)
    await ours.abort()
    for delivery in deliveries:
        with pytest.raises(ProducerClosedError):
            await delivery
    assert ours.buffered_bytes == 0

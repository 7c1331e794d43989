"""A broker's responses to numbered batches, and their handling: with a broker in memory that counts, or forgets."""

from __future__ import annotations

import asyncio
import random
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from structlog.testing import capture_logs

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.net.client.errors import BrokerRefusedError, RequestTooLargeError, error_of
from consumerd.net.errors import ConnectionClosedError
from consumerd.producer.errors import MessageSizeTooLargeError
from consumerd.producer.v08.batches import PartitionQueue, ProducerBatch
from consumerd.producer.v08.delivery import BatchOutcome, DeliveryError, ProduceRequests, is_too_large
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.wire.errors import EncodeError
from consumerd.wire.v08.apis import INIT_PRODUCER_ID, PRODUCE
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.messages import decode_request, encode_request
from consumerd.wire.v08.produce_template import ProduceTemplate
from consumerd.wire.v08.records import RecordCodec, decode_records
from consumerd.wire.v08.schema import Api
from tests.support.prepared_requests import OneBroker, Posting, request_body

#: The position of producer id, epoch and first sequence number in a record batch.
NUMBERS = struct.Struct(">qhi"), 43


class CountingBroker(OneBroker):
    """Client and channel in one: a broker that takes a producer's messages in the order of their numbers."""

    def __init__(self) -> None:
        super().__init__(1, idempotent=True)
        self.settings.retry_backoff_min = 0.001
        self.log: list[bytes | None] = []
        #: Producer id -> the next number.
        self.expected: dict[int, int] = {}
        self.ids = 0
        #: The timeouts of the last request: ours in seconds, the broker's in milliseconds.
        self.patience: dict[Api[Any, Any], tuple[float, int]] = {}
        #: Hooks that run before and after a request is carried out.
        self.before: Callable[[Api[Any, Any]], int | None] = lambda _: None
        self.after: Callable[[Api[Any, Any]], None] = lambda _: None

    async def call(self, api: Api[Any, Any], body: dict[str, Any], *, timeout: float = 0, **_: Any) -> dict[str, Any]:
        body = request_body(api, body)
        self.patience[api] = (timeout, body.get("timeout_ms", 0))
        error = self.before(api)
        answer = self._producer_id(error) if api is INIT_PRODUCER_ID else self._produce(error, body)
        self.after(api)
        return answer

    def stale(self, topics: Iterable[str]) -> None:
        """The leaders stay."""

    def _producer_id(self, error: int | None) -> dict[str, Any]:
        self.ids += not error
        return {"error_code": error or 0, "producer_id": -1 if error else self.ids, "producer_epoch": 0}

    def _produce(self, error: int | None, body: dict[str, Any]) -> dict[str, Any]:
        (part,) = body["topic_data"][0]["partition_data"]
        data, base = part["records"], len(self.log)
        payloads = decode_records(data, 0).payloads
        if not error:
            producer, _, sequence = NUMBERS[0].unpack_from(data, NUMBERS[1])
            expected = self.expected.get(producer, 0)
            error = 0
            if producer == -1 or sequence == expected:
                self.log += payloads
                self.expected[producer] = sequence + len(payloads)
            elif sequence + len(payloads) == expected:  # the last one again
                error = 46
            else:
                error = 45 if producer in self.expected else 59
        told = {"index": 0, "error_code": error, "base_offset": -1 if error else base}
        return {"responses": [{"name": "t", "partition_responses": [told]}]}


def producer(broker: CountingBroker, **settings: Any) -> V08Producer:
    ours = V08ProducerSettings(**{"batch_bytes": 1, **settings})
    return V08Producer(broker, ours, clock=SystemClock(), rng=random.Random(1))  # type: ignore[arg-type]


def once(happens: Callable[[], int | None], which: Api[Any, Any], number: int) -> Callable[[Api[Any, Any]], int | None]:
    """Let something happen at the request of this number, of an API."""
    count = 0

    def hook(api: Api[Any, Any]) -> int | None:
        nonlocal count
        count += api is which
        return happens() if api is which and count == number else None

    return hook


@pytest.mark.parametrize("how", ["forgotten", "behind"])
async def test_renumbers_a_refused_batch_that_was_never_stored(how: str) -> None:
    broker = CountingBroker()

    def forget() -> None:
        if how == "forgotten":  # by retention, before 2.4
            broker.expected.clear()
        else:  # by an election of a replica that was behind
            broker.expected[1] -= 1

    broker.before = once(forget, PRODUCE, 3)
    async with producer(broker) as ours:
        for number in range(6):
            await (await ours.send("t", b"%d" % number))
    assert broker.log == [b"%d" % number for number in range(6)]
    assert broker.ids == 2


async def test_renumbers_a_batch_that_waited_for_its_topic_to_be_created_again() -> None:
    """A broker before 2.4 does not know the producer in the new topic."""
    broker = CountingBroker()

    def delete() -> int:
        broker.expected.clear()
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    broker.before = once(delete, PRODUCE, 2)
    async with producer(broker) as ours:
        for number in range(3):
            with capture_logs():
                await (await ours.send("t", b"%d" % number))
    assert broker.log == [b"%d" % number for number in range(3)]
    assert broker.ids == 2


async def test_never_renumbers_a_batch_that_may_be_stored() -> None:
    broker = CountingBroker()

    def lose_the_answer() -> None:
        broker.after = lambda _: None
        broker.expected.clear()
        raise ConnectionClosedError("the answer is lost")

    broker.after = once(lose_the_answer, PRODUCE, 2)  # type: ignore[assignment]
    async with producer(broker) as ours:
        await (await ours.send("t", b"0"))
        with pytest.raises(BrokerError, match="UNKNOWN_PRODUCER_ID"):
            await (await ours.send("t", b"1"))
        await (await ours.send("t", b"2"))
    assert broker.log == [b"0", b"1", b"2"]


async def test_sends_a_batch_again_whose_answer_was_lost_once_and_before_what_gathered() -> None:
    broker = CountingBroker()

    def lose_the_answer() -> None:
        broker.after = lambda _: None
        raise ConnectionClosedError("the answer is lost")

    broker.after = once(lose_the_answer, PRODUCE, 2)  # type: ignore[assignment]
    async with producer(broker, batch_bytes=1 << 10) as ours:
        await (await ours.send("t", b"0"))
        deliveries = [await ours.send("t", b"1")]
        for number in range(2, 6):
            await asyncio.sleep(0)
            deliveries.append(await ours.send("t", b"%d" % number))
        assert [(await delivery).offset for delivery in deliveries] == [None, 2, 3, 4, 5]
    assert broker.log == [b"%d" % number for number in range(6)]


async def test_sends_without_producer_id_if_not_authorized() -> None:
    broker = CountingBroker()
    broker.before = lambda api: 31 if api is INIT_PRODUCER_ID else None
    async with producer(broker) as ours:
        for number in range(3):
            assert (await (await ours.send("t", b"%d" % number))).offset == number
    assert broker.expected.keys() == {-1}
    async with producer(broker, idempotent=True) as ours:
        with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await (await ours.send("t", b"x"))  # at once, and not after `delivery_timeout`
    assert len(broker.log) == 3


async def test_logs_once_that_a_batch_is_tried_again() -> None:
    broker = CountingBroker()
    answers = iter([7, 7, None, 7, None])  # REQUEST_TIMED_OUT, which is temporary
    broker.before = lambda api: next(answers) if api is PRODUCE else None
    with capture_logs() as logs:
        async with producer(broker) as ours:
            for number in range(2):
                await (await ours.send("t", b"%d" % number))
    assert [(each["event"], each["partition"]) for each in logs] == [("produce_retried", "t/0")] * 2
    assert "REQUEST_TIMED_OUT" in logs[0]["reason"]
    assert broker.log == [b"0", b"1"]


async def test_limits_an_attempt_by_the_delivery_timeout() -> None:
    broker = CountingBroker()
    for given, expected in (({"delivery_timeout": 2.0}, (2.0 + 5.0, 2000)), ({}, (30.0 + 5.0, 30_000))):
        async with producer(broker, **given) as ours:
            await (await ours.send("t", b"x"))
        assert broker.patience[PRODUCE] == expected


async def test_batch_that_cannot_be_encoded_fails_alone() -> None:
    broker = CountingBroker()
    async with producer(broker) as ours:
        with pytest.raises(DeliveryError, match="a batch of t/0 cannot be sent"):
            await (await ours.send("t", b"0", timestamp=1 << 63))
        await (await ours.send("t", b"1"))
    assert broker.log == [b"1"]


class Peer(Posting):
    """Client and channel in one: a broker of one version. Its error codes are 0 unless a test says otherwise."""

    def __init__(self, version: int = 9, *, ids: bool = False) -> None:
        self.version = version
        self.settings = SimpleNamespace(connection=SimpleNamespace(socket_timeout=5.0))
        self.versions = SimpleNamespace(
            pick=lambda _, at_most: min(self.version, at_most or self.version),
            has=lambda api: ids and api is INIT_PRODUCER_ID,
        )
        self.address = "memory:1"
        self.closed = False
        self.outdated = 0
        #: PRODUCE requests, as a broker reads them, their versions, and whether a template wrote them.
        self.requests: list[dict[str, Any]] = []
        self.served: list[tuple[int, bool]] = []
        #: By topic and partition: what an answer says, None for nothing. By default the error code 0.
        self.says: dict[tuple[str | bytes, int], dict[str, Any] | None] = {}
        self.failure: Exception | None = None
        #: Requests for a producer id, and the error code of the answer.
        self.asked: list[dict[str, Any]] = []
        self.id_error = 0

    def stale(self) -> None:
        self.outdated += 1

    async def node_channel(self, node_id: int) -> Peer:
        return self

    async def send(self, api: Api[Any, Any], body: Any, *, version: int) -> None:
        if self.failure is not None:
            raise self.failure
        prepared = not isinstance(body, dict)
        frame = body.encode(1, "me") if prepared else encode_request(api, version, body, correlation_id=1, client_id="")
        read = decode_request(api, frame[4:])
        self.requests.append(read.body)
        self.served.append((read.header.api_version, prepared))

    async def call(
        self, api: Api[Any, Any], body: Any, *, version: int = 0, timeout: float = 0, **_: Any
    ) -> dict[str, Any]:
        if api is INIT_PRODUCER_ID:
            self.asked.append(body)
            return {"error_code": self.id_error, "producer_id": 100 + len(self.asked), "producer_epoch": 3}
        await self.send(api, body, version=version)
        answers = []
        named = "topic_id" if version > 12 else "name"
        for topic in self.requests[-1]["topic_data"]:
            parts = []
            for part in topic["partition_data"]:
                says = self.says.get((topic[named], part["index"]), {"error_code": 0, "base_offset": 7})
                if says is not None:
                    parts.append({"index": part["index"], **says})
            answers.append({named: topic[named], "partition_responses": parts})
        return {"responses": answers}


@dataclass(slots=True, eq=False)
class Seen(ProducerBatch):
    """A batch that notes how it is encoded, and in which thread."""

    formats: list[tuple[int, RecordCodec]] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def encode(self, magic: int, codec: RecordCodec, around: Any = None) -> bytes:
        self.formats.append((magic, codec))
        self.threads.append(threading.current_thread())
        return b"" if around is None else ProducerBatch.encode(self, magic, codec, around)


def exchange(peer: Peer, **settings: Any) -> ProduceRequests:
    return ProduceRequests(peer, V08ProducerSettings(**settings))  # type: ignore[arg-type]


def sealed(
    number: int = 0, topic: str = "t", *, timestamp: int = 5, kind: type[ProducerBatch] = ProducerBatch
) -> PartitionQueue:
    """A queue with a batch of one message."""
    queue = PartitionQueue(TopicPartition.numbered(topic, number))
    renew(queue, timestamp=timestamp, kind=kind)
    return queue


def renew(
    queue: PartitionQueue, count: int = 1, *, timestamp: int = 5, kind: type[ProducerBatch] = ProducerBatch
) -> ProducerBatch:
    """Give a queue another batch as its only one."""
    batch = kind(queue.partition, 0.0, asyncio.get_running_loop().create_future())
    for number in range(count):
        batch.add(None, b"%d" % number, timestamp, (), 37)
    queue.sealed.clear()
    queue.sealed.append(batch)
    return batch


async def produce(ours: ProduceRequests, *queues: PartitionQueue) -> list[BatchOutcome]:
    """The outcomes in the order of the queues; there are no others."""
    outcomes = await ours.produce(0, {queue.partition: queue for queue in queues})
    assert outcomes.keys() == {queue.partition for queue in queues}
    return [outcomes[queue.partition] for queue in queues]


async def test_each_partition_of_a_request_has_its_own_outcome() -> None:
    peer = Peer()
    peer.says = {
        ("t", 0): {"error_code": 0, "base_offset": 0},
        ("t", 1): {"error_code": 0, "base_offset": -1, "log_append_time_ms": 99},
        ("t", 2): {"error_code": ErrorCode.NOT_LEADER_FOR_PARTITION, "base_offset": -1},
        ("u", 0): {
            "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "base_offset": -1,
            "error_message": "no thank you",
        },
        ("u", 1): {"error_code": ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "base_offset": 4},
        ("u", 2): None,
    }
    queues = [sealed(number, topic) for topic in ("t", "u") for number in range(3)]
    odd = sealed(9, timestamp=1 << 63)
    stored, appended, moved, refused, known, missing, unsendable = await produce(exchange(peer), *queues, odd)
    assert stored == BatchOutcome(None, base_offset=0, timestamp=-1)
    assert appended == BatchOutcome(None, base_offset=None, timestamp=99)
    assert (str(moved.error).partition(":")[0], moved.retry) == ("the broker refused a batch for t/2", True)
    assert (str(refused.error).endswith("no thank you"), refused.retry) == (True, False)
    assert known == BatchOutcome(None, timestamp=-1)
    assert ("without u/2" in str(missing.error), missing.retry) == (True, True)
    assert (type(unsendable.error), unsendable.retry) == (DeliveryError, False)
    (request,) = peer.requests
    assert [
        (topic["name"], [part["index"] for part in topic["partition_data"]]) for topic in request["topic_data"]
    ] == [
        ("t", [0, 1, 2]),
        ("u", [0, 1, 2]),
    ]
    assert (request["acks"], request["timeout_ms"], request["transactional_id"]) == (-1, 30_000, None)
    assert [queue.sealed[0].sent for queue in queues] == [True] * 6
    assert not odd.sealed[0].sent


async def test_no_request_is_sent_for_batches_of_which_none_can_be_encoded() -> None:
    peer = Peer()
    for queues in ([sealed(0, timestamp=1 << 63)], [sealed(number, timestamp=1 << 63) for number in range(2)]):
        outcomes = await produce(exchange(peer), *queues)
        assert [(type(each.error), each.retry) for each in outcomes] == [(DeliveryError, False)] * len(queues)
    assert peer.requests == []


async def posted(ours: ProduceRequests, queue: PartitionQueue) -> Any:
    """What a posted request of a queue ends with; None if it is not posted."""
    ended = asyncio.get_running_loop().create_future()
    return await ended if ours.post(0, queue, ended.set_result) else None


@pytest.mark.parametrize("ids", [False, True])
async def test_posts_a_batch_that_has_to_wait_for_nothing(*, ids: bool) -> None:
    peer, queue = Peer(ids=ids), sealed()
    ours = exchange(peer)
    if ids:
        assert await posted(ours, queue) is None  # the producer id has to be requested
        assert (peer.requests, queue.sealed[0].sent) == ([], False)
        await produce(ours, queue)
        renew(queue)
    assert await posted(ours, queue) == {queue.partition: BatchOutcome(None, base_offset=7)}
    assert queue.sealed[0].sent
    assert (queue.sealed[0].producer_id, queue.sealed[0].sequence) == ((101, 1) if ids else (-1, -1))
    assert peer.served[-1] == (9, True)


async def test_posted_batch_that_may_be_stored_keeps_its_numbers() -> None:
    peer, queue = Peer(ids=True), sealed()
    ours = exchange(peer)
    await produce(ours, queue)
    batch = renew(queue)
    peer.says["t", 0] = {"error_code": ErrorCode.UNKNOWN_PRODUCER_ID}
    for attempt, (retry, numbers) in enumerate([(True, (-1, False)), (False, (0, True))]):
        if attempt:  # as sent before: of its first attempt nothing is known
            await ours._number(queue, cast("Any", peer))
            batch.sent = True
        (outcome,) = (await posted(ours, queue)).values()
        assert (outcome.retry, (batch.sequence, batch.sent)) == (retry, numbers)


@pytest.mark.parametrize(
    ("version", "settings"),
    [(9, {"acks": 0}), (9, {"codec": RecordCodec.GZIP}), (2, {}), (9, {"idempotent": True})],
    ids=["acks 0", "compression", "old broker", "no producer ids"],
)
async def test_posts_nothing_for_which_produce_has_a_way_of_its_own(version: int, settings: dict[str, Any]) -> None:
    peer, queue = Peer(version), sealed()
    assert await posted(exchange(peer, **settings), queue) is None
    assert (peer.requests, queue.sealed[0].sent) == ([], False)


@pytest.mark.parametrize("error", [None, BrokerError("the client was closed"), EncodeError("an odd name")])
async def test_posts_nothing_without_an_open_channel_or_that_cannot_be_encoded(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, queue = Peer(), sealed()
    monkeypatch.setattr(peer, "open_node_channel", mock.Mock(return_value=None, side_effect=error))
    assert await posted(exchange(peer), queue) is None
    assert not queue.sealed[0].sent


async def test_defect_of_reading_a_posted_answer_is_passed_on() -> None:
    peer, queue = Peer(), sealed()
    peer.says["t", 0] = {}  # without an error code
    assert isinstance(await posted(exchange(peer), queue), KeyError)


@pytest.mark.parametrize("acks", [0, 1])
@pytest.mark.parametrize(
    "error", [RequestTooLargeError("5 bytes over"), UnsupportedApiError("an old broker"), EncodeError("an odd name")]
)
async def test_request_that_cannot_be_sent_fails_all_of_its_batches(error: Exception, acks: int) -> None:
    peer = Peer()
    peer.failure = error
    queues = [sealed(0), sealed(1), sealed(2, timestamp=1 << 63)]
    outcomes = await produce(exchange(peer, acks=acks), *queues)
    assert [(type(each.error), each.retry) for each in outcomes] == [(DeliveryError, False)] * 3
    assert [str(error) in str(each.error) for each in outcomes] == [True, True, False]


async def test_without_acknowledgements_a_closed_connection_is_an_error_of_that_broker_once() -> None:
    peer = Peer()
    ours = exchange(peer, acks=0)
    outcomes = await produce(ours, sealed(0), sealed(1), sealed(2, timestamp=1 << 63))
    assert outcomes[:2] == [BatchOutcome(None)] * 2
    assert outcomes[2].error is not None
    assert (peer.requests[0]["acks"], len(peer.requests[0]["topic_data"][0]["partition_data"])) == (0, 2)
    peer.closed = True
    queue = sealed()
    assert (await ours.produce(5, {queue.partition: queue})).popitem()[1] == BatchOutcome(None)  # another broker
    peer.outdated = 0
    with pytest.raises(ConnectionClosedError, match=r"memory:1 .*acks = 0"):
        await produce(ours, sealed())
    assert (peer.outdated, len(peer.requests)) == (1, 2)
    assert await produce(ours, sealed()) == [BatchOutcome(None)]


@pytest.mark.parametrize("codec", [RecordCodec.NONE, RecordCodec.GZIP])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (3, 2), (9, 2), (12, 2)])
async def test_version_of_the_broker_decides_the_format_of_batches(
    version: int, magic: int, codec: RecordCodec, *, together: bool
) -> None:
    peer = Peer(version)
    queues = [sealed(number, kind=Seen) for number in range(1 + together)]
    outcomes = await produce(exchange(peer, codec=codec), *queues)
    assert [each.error for each in outcomes] == [None] * len(queues)
    for queue in queues:
        batch = queue.sealed[0]
        assert isinstance(batch, Seen)
        assert batch.formats == [(magic, codec)]
    templated = not together and version >= 3 and codec is RecordCodec.NONE
    assert peer.served == [(version, templated)]
    assert peer.requests[0]["timeout_ms"] == 30_000


ONE, TWO = bytes([1] * 16), bytes([2] * 16)


@pytest.mark.parametrize(
    ("ids", "asked"), [({}, 12), ({"t": ONE}, 12), ({"t": ONE, "u": TWO}, 13), ({"t": TWO, "u": ONE}, 13)]
)
async def test_names_topics_by_their_ids_where_all_are_known(ids: dict[str, bytes], asked: int) -> None:
    peer = Peer(13)
    peer.topic_ids = ids
    queues = [sealed(), sealed(3, topic="u")]
    peer.says[ids.get("u", b"") if asked == 13 else "u", 3] = {"error_code": 0, "base_offset": 9}
    assert [each.base_offset for each in await produce(exchange(peer), *queues)] == [7, 9]
    assert peer.served == [(asked, False)]
    (request,) = peer.requests
    named = ["t", "u"] if asked == 12 else [ids["t"], ids["u"]]
    assert [topic["name" if asked == 12 else "topic_id"] for topic in request["topic_data"]] == named


@pytest.mark.parametrize("posts", [False, True])
async def test_batch_for_a_topic_that_was_created_again_is_sent_to_the_new_one(posts: bool) -> None:
    peer = Peer(13)
    peer.topic_ids, peer.says[ONE, 0] = {"t": ONE}, {"error_code": 100, "base_offset": -1}
    ours, queue = exchange(peer), sealed()
    (refused,) = (await posted(ours, queue)).values() if posts else await produce(ours, queue)
    assert isinstance(refused.error, BrokerRefusedError)
    assert (refused.retry, refused.error.info.refresh) == (True, True)  # the sender looks the id up
    peer.topic_ids = {"t": TWO}
    assert await produce(ours, queue) == [BatchOutcome(None, base_offset=7)]
    assert [each["topic_data"][0]["topic_id"] for each in peer.requests] == [ONE, TWO]
    assert peer.served == [(13, True)] * 2


async def test_template_of_a_partition_is_made_once_for_each_version(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []

    def counted(version: int, acks: int, timeout: int, topic: str, partition: int, *more: Any) -> Any:
        made.append((version, partition))
        return ProduceTemplate(version, acks, timeout, topic, partition, *more)

    monkeypatch.setattr("consumerd.producer.v08.delivery.ProduceTemplate", counted)
    peer = Peer()
    ours = exchange(peer)
    for version, number in ((9, 0), (9, 0), (9, 1), (8, 0), (8, 0), (8, 1)):
        peer.version = version
        assert await produce(ours, sealed(number)) == [BatchOutcome(None, base_offset=7)]
    assert [version for version, _ in peer.served] == [9, 9, 9, 8, 8, 8]
    assert made == [(9, 0), (9, 1), (8, 0), (8, 1)]


@pytest.mark.parametrize(("version", "works"), [(3, False), (6, False), (7, True)])
async def test_zstd_needs_a_broker_that_takes_it(version: int, *, works: bool) -> None:
    queue = sealed(kind=Seen)
    (outcome,) = await produce(exchange(Peer(version), codec=RecordCodec.ZSTD), queue)
    if works:
        assert outcome.error is None
    else:
        assert (type(outcome.error), "does not support zstd" in str(outcome.error)) == (DeliveryError, True)


@pytest.mark.parametrize(
    ("codec", "most"),
    [
        (RecordCodec.GZIP, 256 << 10),
        (RecordCodec.SNAPPY, 1 << 20),
        (RecordCodec.LZ4, 1 << 20),
        (RecordCodec.ZSTD, 256 << 10),
        (RecordCodec.NONE, None),
    ],
)
async def test_large_batches_are_compressed_in_a_thread(codec: RecordCodec, most: int | None) -> None:
    queues = [sealed(number, kind=Seen) for number in range(2)]
    for queue, size in zip(queues, (most or 1, (most or 1 << 30) + 1), strict=True):
        queue.sealed[0].size = size
    await produce(exchange(Peer(), codec=codec), *queues)
    small, large = (queue.sealed[0] for queue in queues)
    assert isinstance(small, Seen)
    assert isinstance(large, Seen)
    ours = threading.current_thread()
    assert small.threads == [ours]
    assert [thread is ours for thread in large.threads] == [most is None]


@pytest.mark.parametrize(
    ("idempotent", "acks", "version", "ids", "numbered"),
    [
        (None, -1, 9, True, True),
        (None, -1, 3, True, True),
        (None, -1, 9, False, False),
        (None, -1, 2, True, False),
        (None, 1, 9, True, False),
        (False, -1, 9, True, False),
        (True, -1, 9, True, True),
        (True, -1, 9, False, None),
        (True, -1, 2, True, None),
    ],
)
async def test_batches_are_numbered_where_settings_and_broker_allow_it(
    idempotent: bool | None, acks: int, version: int, ids: bool, numbered: bool | None
) -> None:
    peer, queue = Peer(version, ids=ids), sealed()
    (outcome,) = await produce(exchange(peer, idempotent=idempotent, acks=acks), queue)
    batch = queue.sealed[0]
    if numbered is None:
        assert (type(outcome.error), "support idempotent producers" in str(outcome.error)) == (DeliveryError, True)
        assert peer.requests == []
    elif numbered:
        assert (batch.producer_id, batch.producer_epoch, batch.sequence, queue.sequence) == (101, 3, 0, 1)
        assert peer.asked == [{"transactional_id": None, "transaction_timeout_ms": 2**31 - 1}]
    else:
        assert (outcome.error, batch.producer_id, batch.sequence, peer.asked) == (None, -1, -1, [])


def numbers(queue: PartitionQueue) -> tuple[int, int]:
    batch = queue.sealed[0]
    return batch.producer_id, batch.sequence


async def test_partitions_share_a_producer_id_until_one_of_them_fails() -> None:
    peer = Peer(ids=True)
    ours = exchange(peer)
    first, second, third = sealed(0), sealed(1), sealed(2)
    await produce(ours, first, second)
    await produce(ours, first, second)  # again, with the same numbers
    assert (numbers(first), numbers(second), len(peer.asked)) == ((101, 0), (101, 0), 1)
    ours.forget(first)
    renew(first)
    renew(second, 2)
    await produce(ours, first, second)
    assert (numbers(first), numbers(second), len(peer.asked)) == ((102, 0), (101, 1), 2)
    ours.forget(second)  # whose id was not the newest
    renew(second)
    renew(first)
    await produce(ours, first, second, third)
    assert (numbers(first), numbers(second), numbers(third), len(peer.asked)) == ((102, 1), (102, 0), (102, 0), 2)


async def test_partition_that_has_no_id_yet_and_fails_leaves_the_id_of_the_others() -> None:
    peer = Peer(ids=True)
    ours = exchange(peer)
    await produce(ours, sealed(0))
    ours.forget(sealed(1))
    queue = sealed(2)
    await produce(ours, queue)
    assert (numbers(queue), len(peer.asked)) == ((101, 0), 1)


async def test_partition_takes_another_producer_id_when_its_numbers_are_used_up() -> None:
    peer = Peer(ids=True)
    ours = exchange(peer)
    queue = sealed()
    await produce(ours, queue)
    queue.sequence = 2**31 - 3
    renew(queue, 2)
    await produce(ours, queue)
    assert (numbers(queue), queue.sequence) == ((101, 2**31 - 3), 2**31 - 1)
    renew(queue)
    await produce(ours, queue)
    assert (numbers(queue), queue.sequence) == ((102, 0), 1)


@pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID])
async def test_only_a_batch_that_no_broker_can_have_is_renumbered(code: ErrorCode) -> None:
    peer = Peer(ids=True)
    ours = exchange(peer)
    fresh, old = sealed(0), sealed(1)
    old.sealed[0].sent = True
    peer.says = {("t", number): {"error_code": code, "base_offset": -1} for number in range(2)}
    renumbered, failed = await produce(ours, fresh, old)
    assert isinstance(renumbered.error, BrokerRefusedError)
    assert (renumbered.error.code, renumbered.retry, failed.retry) == (code, True, False)
    assert (numbers(fresh)[1], fresh.sealed[0].sent) == (-1, False)
    assert (numbers(old), old.sealed[0].sent) == ((101, 0), True)
    peer.says.clear()
    assert await produce(ours, fresh) == [BatchOutcome(None, base_offset=7)]
    assert numbers(fresh) == (102, 0)


@pytest.mark.parametrize("idempotent", [None, True])
async def test_temporary_refusal_of_a_producer_id_is_left_to_the_caller(idempotent: bool | None) -> None:
    peer = Peer(ids=True)
    peer.id_error = ErrorCode.GROUP_COORDINATOR_NOT_AVAILABLE
    queue = sealed()
    with pytest.raises(BrokerRefusedError, match="memory:1 gave no producer id"):
        await produce(exchange(peer, idempotent=idempotent), queue)
    assert peer.requests == []


@pytest.mark.parametrize("idempotent", [None, True])
async def test_refusal_of_a_producer_id_for_good_fails_the_batch(idempotent: bool | None) -> None:
    peer = Peer(ids=True)
    peer.id_error = ErrorCode.UNSUPPORTED_VERSION
    (outcome,) = await produce(exchange(peer, idempotent=idempotent), sealed())
    assert (type(outcome.error), outcome.retry, peer.requests) == (DeliveryError, False, [])


async def test_producer_id_is_not_asked_for_again_where_it_is_not_allowed() -> None:
    peer = Peer(ids=True)
    peer.id_error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    ours = exchange(peer)
    with capture_logs() as logs:
        for _ in range(2):
            queue = sealed()
            assert await produce(ours, queue) == [BatchOutcome(None, base_offset=7)]
            assert (numbers(queue), queue.sequence) == ((-1, -1), 0)
    assert len(peer.asked) == 1
    assert [each["event"] for each in logs] == ["idempotence_unavailable"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MessageSizeTooLargeError("too large"), True),
        (error_of(ErrorCode.MESSAGE_TOO_LARGE, "refused"), True),
        (error_of(ErrorCode.RECORD_LIST_TOO_LARGE, "refused"), True),
        (error_of(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "refused"), False),
        (BrokerError("broken"), False),
    ],
)
async def test_knows_errors_that_are_about_size(error: BaseException, *, expected: bool) -> None:
    assert is_too_large(error) is expected

"""A broker's responses to numbered batches, and their handling: with a broker in memory that counts, or forgets."""

from __future__ import annotations

import asyncio
import random
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from consumerd.client import ClusterMetadata
from consumerd.client.metadata import Node, PartitionMetadata, TopicMetadata
from consumerd.clock import SystemClock
from consumerd.errors import BrokerError
from consumerd.net import ConnectionClosedError
from consumerd.producer.v08.delivery import DeliveryError
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.wire.v08.apis import INIT_PRODUCER_ID, PRODUCE
from consumerd.wire.v08.records import decode_records
from tests.support.prepared_requests import request_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.wire.v08.schema import Api

pytestmark = pytest.mark.asyncio
#: The position of producer id, epoch and first sequence number in a record batch.
NUMBERS = struct.Struct(">qhi"), 43


class CountingBroker:
    """Client and channel in one: a broker that takes a producer's messages in the order of their numbers."""

    def __init__(self) -> None:
        self.settings = SimpleNamespace(
            max_request_bytes=1 << 20, retry_backoff_min=0.001, connection=SimpleNamespace(request_timeout=5.0)
        )
        self.versions = SimpleNamespace(pick=lambda *_, **__: 9, has=lambda _: True)
        self.address = "memory:1"
        self.metadata = ClusterMetadata(
            {0: Node(0, "memory", 1)}, {"t": TopicMetadata(0, {0: PartitionMetadata(0, 0, (0,), (0,), 0)})}
        )
        self.log: list[bytes | None] = []
        #: Producer id -> the next number.
        self.expected: dict[int, int] = {}
        self.ids = 0
        #: The timeouts of the last request: ours in seconds, the broker's in milliseconds.
        self.patience: dict[Api, tuple[float, int]] = {}
        #: Hooks that run before and after a request is carried out.
        self.before: Callable[[Api], int | None] = lambda _: None
        self.after: Callable[[Api], None] = lambda _: None

    def known_leader(self, topic: str, partition: int) -> Node:
        return self.metadata.nodes[0]

    async def node_channel(self, node_id: int) -> CountingBroker:
        return self

    async def call(self, api: Api, body: dict[str, Any], *, timeout: float = 0, **_: Any) -> dict[str, Any]:
        body = request_body(api, body)
        self.patience[api] = (timeout, body.get("timeout", 0))
        error = self.before(api)
        answer = self._producer_id(error) if api is INIT_PRODUCER_ID else self._produce(error, body)
        self.after(api)
        return answer

    def _producer_id(self, error: int | None) -> dict[str, Any]:
        self.ids += not error
        return {"error_code": error or 0, "producer_id": -1 if error else self.ids, "producer_epoch": 0}

    def _produce(self, error: int | None, body: dict[str, Any]) -> dict[str, Any]:
        (part,) = body["topic_data"][0]["data"]
        data, base = part["record_set"], len(self.log)
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
        told = {"partition": 0, "error_code": error, "base_offset": -1 if error else base}
        return {"responses": [{"topic": "t", "partition_responses": [told]}]}


def producer(broker: CountingBroker, **settings: Any) -> V08Producer:
    ours = V08ProducerSettings(**{"batch_bytes": 1, **settings})
    return V08Producer(broker, ours, clock=SystemClock(), rng=random.Random(1))  # type: ignore[arg-type]


def once(happens: Callable[[], int | None], which: Api, number: int) -> Callable[[Api], int | None]:
    """Let something happen at the request of this number, of an API."""
    count = 0

    def hook(api: Api) -> int | None:
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

"""Forwarding in transactions with a broker in memory: both versions of the protocol, each fault at each request."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from typing import Any

import pytest

from consumerd.base.errors import HandlerFailedError
from consumerd.base.partition import LogId, TopicPartition
from consumerd.base.ports import Clock
from consumerd.handlers import Batch, HandlerContext, PartitionTakenError
from consumerd.handlers.forward.errors import OtherLogError
from consumerd.handlers.forward.handler import ForwardHandler
from consumerd.handlers.forward.mapping import BrokerMajorNumbering, TopicNaming
from consumerd.handlers.forward.positions import ForwardPosition, forward_name, position_place
from consumerd.handlers.forward.settings import ForwardResume, ForwardSettings
from consumerd.handlers.forward.transform import TransactionalHandler, TransactionBatch
from consumerd.handlers.messages import KeyedMessage
from consumerd.handlers.sparse_content import SparseContent
from consumerd.net.client.cluster import ClusterClient
from consumerd.producer import V08ProducerSettings
from consumerd.wire.v07 import decode_batch, encode_message_set
from consumerd.wire.v08.records import decode_records
from tests.support.transactional_broker import FAULTS, Strike, TransactionalBroker
from tests.support.virtual_time import LoopClock, VirtualLoop, run_in_virtual_time

LEVELS = pytest.mark.parametrize("level", [1, 2])
SOURCE = TopicPartition("t", 1, 4)
MESSAGES = [b"message-%d" % number for number in range(7)]
#: Faults of which the producer's own tests are enough.
PRODUCERS = ("lost before", "cancelled after", "error 51", "error 14")
#: Bytes of each in the source's log, and so the step of its offsets.
STEP = len(encode_message_set(MESSAGES[:1]))
NAME = forward_name("g", None, SOURCE)


Start = Callable[[TransactionalBroker], Awaitable[ForwardHandler | TransactionalHandler]]


def batch(first: int, last: int) -> Batch:
    return Batch(SOURCE, decode_batch(encode_message_set(MESSAGES[first:last]), first * STEP))


def handler_of(broker: TransactionalBroker, **settings: Any) -> ForwardHandler:
    ours = ForwardSettings(**{"exactly_once": True, "delivery_timeout": 20.0, **settings})
    return ForwardHandler(lambda *_: broker.client(), TopicNaming(), BrokerMajorNumbering(), ours, rng=random.Random(1))


async def started(broker: TransactionalBroker, **settings: Any) -> ForwardHandler:
    handler = handler_of(broker, **settings)
    await handler.start(HandlerContext("g", "m", LoopClock()))
    return handler


class Transformer(TransactionalHandler):
    """Sends each message, and a second one to another partition."""

    def __init__(self, broker: TransactionalBroker) -> None:
        super().__init__(["b:1"], settings=V08ProducerSettings(delivery_timeout=20.0))
        self._broker = broker

    def make_client(self, clock: Clock) -> ClusterClient:
        del clock
        return self._broker.client()

    async def transform(self, batch: TransactionBatch) -> None:
        for number, payload in enumerate(batch):
            await batch.produce("t", payload, partition=0)
            await batch.rest(number).produce("t", payload.upper(), partition=1)
            batch.mark(number + 1)


async def transforming(broker: TransactionalBroker) -> Transformer:
    handler = Transformer(broker)
    await handler.start(HandlerContext("g", "m", LoopClock()))
    return handler


async def member(broker: TransactionalBroker, attempts: int, start: Start = started) -> None:
    """Deliver the source in batches of 2, from the sink's position on; the member's own offset is the beginning."""
    handler = await start(broker)
    try:
        position = await handler.position(SOURCE) or 0
        while (first := position // STEP) < len(MESSAGES):
            whole = batch(first, first + 2)
            while True:
                try:
                    await handler.handle(whole.rest(whole.handled))
                    break
                except PartitionTakenError:
                    raise
                except HandlerFailedError:
                    raise
                except Exception:
                    attempts -= 1
                    if not attempts:
                        raise
                    await asyncio.sleep(0.1)
            position = whole.next_offset
    finally:
        await handler.stop()


def run(main: Coroutine[Any, Any, None]) -> None:
    run_in_virtual_time(main)


def forwarded(broker: TransactionalBroker) -> list[bytes | None]:
    return broker.committed("t")


@LEVELS
def test_a_batch_and_its_position_are_one_transaction(level: int) -> None:
    broker = TransactionalBroker(level)
    run(member(broker, 1))
    assert forwarded(broker) == MESSAGES
    assert broker.offsets == {(NAME, position_place("t")): len(MESSAGES) * STEP}
    assert broker.counts["EndTxn"] == 4
    assert broker.hanging == []
    run(member(broker, 1))  # another process has nothing to do
    assert forwarded(broker) == MESSAGES


def test_parts_of_a_batch_produce_in_its_transaction() -> None:
    class Parts(Transformer):
        async def transform(self, batch: TransactionBatch) -> None:
            seen.append((batch.start_offset, batch.next_offset))
            for part in (batch.rest(1), batch.part(0, 1), batch.rest(0)):
                for payload in part:
                    await part.produce("t", payload, b"k")
            await batch.transaction.send_many("t", batch.payloads)
            if len(seen) == 1:
                raise OSError("the database is unavailable")

    async def play() -> None:
        handler = Parts(broker)
        await handler.start(HandlerContext("g", "m", LoopClock()))
        await handler.position(SOURCE)
        whole = batch(0, 4)
        whole.mark(1)
        with pytest.raises(OSError, match="unavailable"):
            await handler.handle(whole)
        assert whole.handled == 1
        await handler.handle(whole)
        await handler.stop()

    seen: list[tuple[int, int]] = []
    broker = TransactionalBroker()
    run(play())
    assert seen == [(STEP, 4 * STEP)] * 2
    assert Counter(forwarded(broker)) == Counter([*MESSAGES[2:4], MESSAGES[1], *MESSAGES[1:4], *MESSAGES[1:4]])


async def lives(broker: TransactionalBroker, strike: Strike, start: Start = started) -> None:
    """One process after the other, until one comes to the end."""
    for _ in range(4):
        broker.dead = False
        strike.running = asyncio.create_task(member(broker, 3, start))
        await asyncio.wait([strike.running])
        if not strike.running.cancelled() and strike.running.exception() is None:
            return
    raise AssertionError(f"not forwarded in the end: {strike.happened}")


@LEVELS
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in PRODUCERS])
def test_each_message_is_there_once_whatever_happens_at_any_request(level: int, fault: str) -> None:
    struck: Counter[str] = Counter()
    for place in count(1):
        broker = TransactionalBroker(level)
        strike = Strike(broker, fault, place)

        run(lives(broker, strike))
        assert forwarded(broker) == MESSAGES, (fault, place)
        assert broker.hanging == []
        if not strike.happened:
            break
        struck[strike.happened] += 1
    assert struck.keys() >= {"InitProducerId", "OffsetFetch", "Produce", "TxnOffsetCommit", "EndTxn"}


@LEVELS
@pytest.mark.parametrize("fault", ["killed after", "lost after", "cancelled before", "error 120"])
def test_what_a_handler_makes_of_a_batch_is_there_once_whatever_happens(level: int, fault: str) -> None:
    for place in count(1):
        broker = TransactionalBroker(level)
        strike = Strike(broker, fault, place)
        run(lives(broker, strike, transforming))
        assert forwarded(broker) == [*MESSAGES, *map(bytes.upper, MESSAGES)], place
        assert broker.hanging == []
        assert broker.offsets == {(NAME, position_place("t")): len(MESSAGES) * STEP}
        if not strike.happened:
            break
    assert place > 12


async def ends_at_turn(broker: TransactionalBroker, turn: int, start: Start) -> bool:
    """A process that is killed at a turn of its loop, and the next one; returns whether there was such a turn."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    first = asyncio.create_task(member(broker, 3, start))
    turns = count(1)

    def kill() -> None:
        if next(turns) == turn and not first.done():
            broker.dead = True
            first.cancel()

    loop.turned = kill
    await asyncio.wait([first])
    killed, broker.dead = broker.dead, False
    if killed:
        await member(broker, 3, start)
    else:
        first.result()
    return killed


@LEVELS
@pytest.mark.parametrize("start", [started, transforming])
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
def test_each_message_is_there_once_wherever_a_process_is_killed(level: int, start: Start, every: int) -> None:
    killed = True
    for turn in count(1, every):
        broker = TransactionalBroker(level)
        killed = run_in_virtual_time(ends_at_turn(broker, turn, start))
        expected = MESSAGES if start is started else [*MESSAGES, *map(bytes.upper, MESSAGES)]
        assert forwarded(broker) == expected, turn
        assert broker.hanging == []
        assert broker.offsets == {(NAME, position_place("t")): len(MESSAGES) * STEP}
        if not killed:
            break
    assert turn > 60


@LEVELS
def test_a_handler_that_fails_leaves_nothing_and_gets_the_batch_again(level: int) -> None:
    broker = TransactionalBroker(level)

    class Failing(Transformer):
        failures = 1

        async def transform(self, batch: TransactionBatch) -> None:
            await super().transform(batch)
            if self.failures:
                self.failures -= 1
                raise KeyError

    async def play() -> None:
        handler = Failing(broker)
        await handler.start(HandlerContext("g", "m", LoopClock()))
        assert await handler.position(SOURCE) is None
        whole = batch(0, 2)
        with pytest.raises(KeyError):
            await handler.handle(whole)
        assert (whole.handled, whole.counted, broker.hanging) == (0, False, [])
        await handler.handle(whole)
        assert whole.handled == 2
        await handler.stop()

    run(play())
    assert forwarded(broker) == [*MESSAGES[:2], *map(bytes.upper, MESSAGES[:2])]


@LEVELS
def test_a_former_owner_writes_nothing_after_the_next_one_began(level: int) -> None:
    broker = TransactionalBroker(level)

    async def play() -> None:
        zombie, owner = await started(broker), await started(broker)
        assert await zombie.position(SOURCE) is None
        await zombie.handle(batch(0, 2))
        assert await owner.position(SOURCE) == 2 * STEP
        with pytest.raises(PartitionTakenError, match="another member forwards the partition"):
            await zombie.handle(batch(2, 4))
        await owner.handle(batch(2, 4))
        # One that takes it back continues behind the other, with a batch that it fetched before.
        await zombie.handle(batch(2, 6))
        with pytest.raises(PartitionTakenError):
            await owner.handle(batch(4, 6))
        await zombie.handle(batch(6, 7))
        await zombie.stop()
        await owner.stop()

    run(play())
    assert (forwarded(broker), broker.hanging) == (MESSAGES, [])


def test_a_batch_that_is_too_large_for_a_request_is_sent_in_smaller_ones_within_a_transaction() -> None:
    broker = TransactionalBroker()
    append = broker._append

    def limited(version: int, body: Any, where: TopicPartition, data: bytes) -> tuple[int, int]:
        too_large = len(decode_records(data, 0).payloads) > 2
        return (10, -1) if too_large else append(version, body, where, data)

    broker._append = limited  # type: ignore[method-assign]

    async def play() -> None:
        handler = await started(broker)
        await handler.handle(batch(0, 7))
        await handler.stop()

    run(play())
    assert forwarded(broker) == MESSAGES
    assert broker.counts["EndTxn"] == 1 + 2  # with all 7 in a chunk, and with 3


def test_a_log_that_begins_again_stops_unless_its_id_is_another_one() -> None:
    broker = TransactionalBroker()
    broker.offsets[NAME, position_place("t")] = 5 * STEP

    async def play() -> None:
        handler = await started(broker)
        assert await handler.position(SOURCE) == 5 * STEP
        with pytest.raises(
            OtherLogError, match="restarts at offset 0, and the target has its messages up to offset 95"
        ):
            await handler.handle(batch(0, 2))
        await handler.stop()

    run(play())
    assert forwarded(broker) == []


def test_a_topic_that_was_created_again_is_forwarded_from_its_beginning() -> None:
    broker = TransactionalBroker()
    former, present = LogId(b"f" * 16, 3), LogId(b"p" * 16, 0)
    broker.offsets[NAME, position_place("t")] = 5 * STEP
    broker.texts[NAME, position_place("t")] = ForwardPosition(0, former).as_offset().metadata

    async def play() -> None:
        handler = await started(broker)
        position = await handler.position(SOURCE)
        assert (position, getattr(position, "log", None)) == (5 * STEP, former)
        message = KeyedMessage(SOURCE, 0, 0, STEP, b"of the new topic", None, -1, -1, ())
        await handler.handle(Batch(SOURCE, SparseContent([message], log=present, contiguous=True)))
        await handler.stop()

    run(play())
    assert forwarded(broker) == [b"of the new topic"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"resume": ForwardResume.TARGET}, "exactly_once has positions of its own"),
        ({"idempotent": False}, "exactly_once needs an idempotent producer"),
    ],
)
def test_rejects_settings_that_do_not_go_together(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ForwardSettings(exactly_once=True, **settings)


@pytest.mark.parametrize("text", [None, "", "someone else's", "consumerd x", "consumerd - 99999999999", "a b c"])
def test_a_text_of_another_client_is_an_unknown_log(text: str | None) -> None:
    assert ForwardPosition.of(3, text) == ForwardPosition(3, LogId())


@pytest.mark.parametrize("log", [LogId(), LogId(b"i" * 16), LogId(b"i" * 16, 5), LogId(None, 5)])
def test_reads_the_log_that_was_written(log: LogId) -> None:
    written = ForwardPosition(7, log).as_offset()
    assert ForwardPosition.of(written.offset, written.metadata) == (7, log)

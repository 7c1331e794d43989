"""Transactions of a producer with a broker in memory: both versions of the protocol, each fault at each request."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.producer import ProducerClosedError, ProducerFencedError, TransactionAbortedError
from consumerd.producer.cluster import ClusterProducer
from consumerd.producer.errors import TransactionUncertainError
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.producer.v08.transaction_tables import (
    TRANSACTION_PHASES,
    TransactionCause,
    TransactionPhase,
    Verdict,
    verdict_of,
    verdict_of_batch,
)
from consumerd.producer.v08.transactions import ProducerIdentity, TransactionOffset, TransactionState
from consumerd.wire.v08 import Api, ErrorCode
from tests.support.transactional_broker import FAULTS, Strike, TransactionalBroker, lost
from tests.support.virtual_time import LoopClock, run_in_virtual_time

PLACE = TopicPartition.numbered("source", 0)
LEVELS = pytest.mark.parametrize("level", [1, 2])
Producing = Callable[[V08Producer], Awaitable[None]]


def with_producer(broker: TransactionalBroker, use: Producing, **settings: Any) -> None:
    """Run `use` with a transactional producer in virtual time."""

    async def main() -> None:
        async with broker.client() as client:
            ours = V08ProducerSettings(**{"transactional_id": "pump", **settings})
            async with V08Producer(client, ours, clock=LoopClock(), rng=random.Random(1)) as producer:
                await use(producer)

    run_in_virtual_time(main())


@LEVELS
def test_messages_and_offsets_count_together(level: int) -> None:
    broker = TransactionalBroker(level)

    async def use(producer: V08Producer) -> None:
        for number in range(3):
            async with producer.transaction() as transaction:
                await transaction.send("t", b"%d" % number, partition=number % 2)
                await transaction.send_offsets("g", {PLACE: TransactionOffset(number + 1, 4, "note")})
                assert broker.offsets.get(("g", PLACE), 0) == number
                assert len(broker.committed()) == number
            assert broker.offsets["g", PLACE] == number + 1

    with_producer(broker, use)
    assert broker.committed() == [b"0", b"2", b"1"]
    assert broker.hanging == []
    # In version 2, brokers add partitions and groups by themselves, and each transaction has an epoch of its own.
    assert (broker.counts["AddPartitionsToTxn"] > 0, broker.counts["AddOffsetsToTxn"] > 0) == ((level == 1,) * 2)
    assert {version for name, version, _ in broker.asked if name == "EndTxn"} == {3 + 1 if level == 1 else 5}
    assert broker.counts["InitProducerId"] == 1
    assert broker.transactions["pump"].epoch == (0 if level == 1 else 3)


@LEVELS
def test_an_error_in_the_block_aborts(level: int) -> None:
    broker = TransactionalBroker(level)

    async def use(producer: V08Producer) -> None:
        with pytest.raises(KeyError):  # noqa: PT012
            async with producer.transaction() as transaction:
                await (await transaction.send("t", b"never"))
                await transaction.send_offsets("g", {PLACE: 9})
                raise KeyError
        async with producer.transaction() as transaction:
            await transaction.send("t", b"counts")

    with_producer(broker, use)
    assert (broker.committed(), broker.offsets, broker.hanging) == ([b"counts"], {}, [])


@LEVELS
def test_a_transaction_in_which_nothing_was_sent_asks_nobody(level: int) -> None:
    broker = TransactionalBroker(level)

    async def use(producer: V08Producer) -> None:
        async with producer.transaction():
            pass
        with pytest.raises(KeyError):
            async with producer.transaction():
                raise KeyError

    with_producer(broker, use)
    assert broker.counts["EndTxn"] == 0


@LEVELS
def test_sends_nothing_outside_of_a_transaction(level: int) -> None:
    broker = TransactionalBroker(level)

    async def use(producer: V08Producer) -> None:
        with pytest.raises(ProducerClosedError, match="no transaction of the producer is open"):
            await producer.send("t", b"alone")
        async with producer.transaction() as transaction:
            await transaction.send("t", b"one")
        with pytest.raises(ProducerClosedError, match="no transaction of the producer is open"):
            await producer.send("t", b"alone")
        with pytest.raises(ProducerClosedError, match="no transaction of the producer is open"):
            await transaction.send_many("t", [b"late", b"later"])

    with_producer(broker, use)
    assert broker.committed() == [b"one"]


def test_a_producer_without_an_id_has_no_transactions() -> None:
    async def use(producer: V08Producer) -> None:
        with pytest.raises(ProducerClosedError, match="the producer has no transactional_id"):
            async with producer.transaction():
                pass

    with_producer(TransactionalBroker(), use, transactional_id=None)


@LEVELS
def test_a_newer_producer_fences_an_older_one_and_aborts_what_it_left(level: int) -> None:
    broker = TransactionalBroker(level)

    async def use(zombie: V08Producer) -> None:
        async with broker.client() as client:
            ours = V08ProducerSettings(transactional_id="pump")
            async with V08Producer(client, ours, clock=LoopClock(), rng=random.Random(2)) as newer:
                with pytest.raises(ProducerFencedError, match="newer producer"):  # noqa: PT012
                    async with zombie.transaction() as old:
                        await (await old.send("t", b"of the zombie"))
                        await newer.init_transactions()
                        assert broker.hanging == []
                        async with newer.transaction() as transaction:
                            await transaction.send("t", b"of the newer one")
                with pytest.raises(ProducerFencedError, match="newer producer"):
                    async with zombie.transaction():
                        pass

    with_producer(broker, use)
    assert (broker.committed(), broker.hanging) == ([b"of the newer one"], [])


@LEVELS
@pytest.mark.parametrize(
    ("generation", "member_id", "error"), [(4, "me", "ILLEGAL_GENERATION"), (5, "gone", "UNKNOWN_MEMBER_ID")]
)
def test_offsets_of_a_former_member_abort(level: int, generation: int, member_id: str, error: str) -> None:
    broker = TransactionalBroker(level)
    broker.groups["g"] = 5, {"me"}
    member = SimpleNamespace(generation=generation, member_id=member_id, instance_id=None)

    async def use(producer: V08Producer) -> None:
        with pytest.raises(TransactionAbortedError, match=error):  # noqa: PT012
            async with producer.transaction() as transaction:
                await transaction.send("t", b"of a former owner")
                await transaction.send_offsets("g", {PLACE: 3}, member)
        member.generation, member.member_id = 5, "me"
        async with producer.transaction() as transaction:
            await transaction.send("t", b"of the owner")
            await transaction.send_offsets("g", {PLACE: 4}, member)

    with_producer(broker, use)
    assert (broker.committed(), broker.offsets) == ([b"of the owner"], {("g", PLACE): 4})


@LEVELS
def test_a_message_that_fails_aborts_all_and_the_numbers_begin_again(level: int) -> None:
    broker = TransactionalBroker(level)

    def refuse(api: Api[Any, Any]) -> int | None:
        return ErrorCode.MESSAGE_TOO_LARGE if api.name == "Produce" and broker.counts["Produce"] == 3 else None

    broker.before = refuse

    async def use(producer: V08Producer) -> None:
        async with producer.transaction() as transaction:
            await (await transaction.send("t", b"first", partition=0))
        with pytest.raises(TransactionAbortedError, match="MESSAGE_TOO_LARGE"):  # noqa: PT012
            async with producer.transaction() as transaction:
                await (await transaction.send("t", b"before", partition=1))
                failed = await transaction.send("t", b"too large", partition=0)
        with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
            await failed
        async with producer.transaction() as transaction:
            await transaction.send("t", b"last", partition=0)

    # Version 2 has no request of its own before the first batch after a transaction; that one waits a moment.
    with_producer(broker if level == 1 else quick(broker), use)
    assert (broker.committed(), broker.hanging) == ([b"first", b"last"], [])


def quick(broker: TransactionalBroker) -> TransactionalBroker:
    """End transactions at once."""
    end = broker._end

    def ended(known: Any, state: str, *, bump: bool) -> None:
        end(known, state, bump=bump)
        known.busy = 0

    broker._end = ended  # type: ignore[method-assign]
    return broker


@LEVELS
def test_a_transactional_id_that_was_forgotten_begins_again(level: int) -> None:
    broker = TransactionalBroker(level)

    async def use(producer: V08Producer) -> None:
        async with producer.transaction() as transaction:
            await transaction.send("t", b"one", partition=0)
        del broker.transactions["pump"]  # after transactional.id.expiration.ms
        with pytest.raises((TransactionAbortedError, BrokerError)):
            async with producer.transaction() as transaction:
                await transaction.send("t", b"two", partition=0)
        async with producer.transaction() as transaction:
            await transaction.send("t", b"three", partition=0)

    with_producer(broker, use)
    assert (broker.committed(), broker.hanging) == ([b"one", b"three"], [])


@LEVELS
def test_a_commit_without_an_answer_is_uncertain_and_the_next_transaction_begins_behind_it(level: int) -> None:
    broker = TransactionalBroker(level)

    def refuse(api: Api[Any, Any]) -> None:
        if api.name == "EndTxn":
            raise lost()

    broker.after = refuse

    async def use(producer: V08Producer) -> None:
        with pytest.raises(TransactionUncertainError, match="cannot commit the transaction of 'pump'"):
            async with producer.transaction() as transaction:
                await transaction.send("t", b"one", partition=0)
        broker.after = lambda _: None
        async with producer.transaction() as transaction:
            await transaction.send("t", b"two", partition=0)

    with_producer(broker, use, delivery_timeout=5.0)
    assert (broker.committed(), broker.hanging) == ([b"one", b"two"], [])


@LEVELS
def test_the_library_sends_payloads_in_a_transaction(level: int) -> None:
    broker = TransactionalBroker(level)

    async def main() -> None:
        async with broker.client() as client:
            ours = V08ProducerSettings(transactional_id="pump")
            below = V08Producer(client, ours, clock=LoopClock(), rng=random.Random(1))
            async with ClusterProducer(below) as producer, producer.transaction() as transaction:
                await transaction.send("t", ["coffee", b"tea"], key="ann")
                await transaction.send_offsets("g", {PLACE: 2})
                with pytest.raises(TypeError):
                    await transaction.send("t", "coffee")

    run_in_virtual_time(main())
    assert (broker.committed(), broker.offsets) == ([b"coffee", b"tea"], {("g", PLACE): 2})


# -- each fault at each request of a copy from a source to the topic


SOURCE = [b"%d" % number for number in range(5)]


async def copy(broker: TransactionalBroker, until: asyncio.Event) -> None:
    """Copy the source in batches of 2 from the committed offset on, until all of it was."""
    async with broker.client() as client:
        ours = V08ProducerSettings(transactional_id="pump", delivery_timeout=20.0)
        async with V08Producer(client, ours, clock=LoopClock(), rng=random.Random(1)) as producer:
            await producer.init_transactions()  # ends what a former process left, so that the offset is final
            while True:
                position = broker.offsets.get(("g", PLACE), 0)
                if position == len(SOURCE):
                    until.set()
                    return
                batch = SOURCE[position : position + 2]
                async with producer.transaction() as transaction:
                    for number, message in enumerate(batch):
                        await transaction.send("t", message, partition=number)
                    await transaction.send_offsets("g", {PLACE: position + len(batch)})


def play(level: int, fault: str, place: int) -> tuple[TransactionalBroker, str]:
    """A copy with one fault at the request of this number; the API at which it happened, if it did."""
    broker = TransactionalBroker(level)
    strike = Strike(broker, fault, place)

    async def main() -> None:
        done = asyncio.Event()
        for _ in range(4):
            broker.dead = False
            strike.running = asyncio.create_task(copy(broker, done))
            await asyncio.wait([strike.running])
            if not strike.running.cancelled():
                strike.running.exception()
            if done.is_set():
                return
        raise AssertionError(f"not copied in the end: {fault} at {place}")

    run_in_virtual_time(main())
    return broker, strike.happened


@LEVELS
@pytest.mark.parametrize("fault", FAULTS)
def test_each_message_counts_once_whatever_happens_at_any_request(level: int, fault: str) -> None:
    struck: Counter[str] = Counter()
    for place in count(1):
        broker, happened = play(level, fault, place)
        assert sorted(filter(None, broker.committed())) == SOURCE, (fault, place)
        assert broker.hanging == [], (fault, place)
        assert broker.offsets == {("g", PLACE): len(SOURCE)}
        if not happened:
            break
        struck[happened] += 1
    assert struck.keys() >= {"InitProducerId", "Produce", "TxnOffsetCommit", "EndTxn"}
    assert struck["EndTxn"] >= 3


@LEVELS
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "error 47"])  # which is final
def test_the_same_producer_goes_on_after_a_fault_at_any_request(level: int, fault: str) -> None:
    """Each transaction is a task, which may be cancelled, also while the broker answers nothing for ten seconds."""
    for place in count(1):
        broker = TransactionalBroker(level)
        strike = Strike(broker, fault, place)

        async def use(producer: V08Producer, broker: TransactionalBroker = broker, strike: Strike = strike) -> None:
            async def once() -> None:
                async with producer.transaction() as transaction:
                    # Once a transaction is open, the former one has ended either way.
                    position = broker.offsets.get(("g", PLACE), 0)
                    batch = SOURCE[position : position + 2]
                    for number, message in enumerate(batch):
                        await transaction.send("t", message, partition=number)
                    await transaction.send_offsets("g", {PLACE: position + len(batch)})

            for _ in range(8):
                if broker.offsets.get(("g", PLACE), 0) == len(SOURCE) and not broker.hanging:
                    break
                strike.running = asyncio.create_task(once())
                await asyncio.wait([strike.running])
                if not strike.running.cancelled() and (error := strike.running.exception()) is not None:
                    assert isinstance(error, BrokerError)
                    assert not isinstance(error, ProducerFencedError)
                if broker.dead:
                    await asyncio.sleep(10.0)
                    broker.dead = False

        with_producer(broker, use, delivery_timeout=20.0)
        assert sorted(filter(None, broker.committed())) == SOURCE, (fault, place)
        assert broker.hanging == [], (fault, place)
        if not strike.happened:
            break
    assert place > 12


# -- the tables, and the state alone


def test_every_phase_is_reached_and_left() -> None:
    assert {phase for phase, _ in TRANSACTION_PHASES} == set(TransactionPhase)
    assert {*TRANSACTION_PHASES.values()} == set(TransactionPhase)
    assert {cause for _, cause in TRANSACTION_PHASES} == set(TransactionCause)


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ErrorCode.CONCURRENT_TRANSACTIONS, Verdict.RETRY),
        (ErrorCode.NOT_COORDINATOR_FOR_GROUP, Verdict.RETRY),
        (ErrorCode.UNKNOWN, Verdict.RETRY),
        (ErrorCode.TRANSACTION_ABORTABLE, Verdict.ABORT),
        (ErrorCode.ILLEGAL_GENERATION, Verdict.ABORT),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, Verdict.ABORT),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, Verdict.RENEW),
        (ErrorCode.PRODUCER_FENCED, Verdict.FENCE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, Verdict.FENCE),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Verdict.FENCE),
    ],
)
def test_each_error_has_a_meaning(code: int, verdict: Verdict) -> None:
    assert verdict_of(code) is verdict
    of_batch = Verdict.ABORT if code == ErrorCode.INVALID_PRODUCER_EPOCH else verdict
    assert verdict_of_batch(code) is of_batch


STEPS = st.lists(
    st.sampled_from(
        ["init", "begin", "touch", "abortable", "gap", "fence", "renew", "commit", "abort", "ended", "unsure"]
    ),
    max_size=40,
)


@given(steps=STEPS, version=st.sampled_from([1, 2]))
def test_nothing_is_committed_after_an_error_and_no_numbers_continue_behind_a_gap(  # noqa: C901
    steps: list[str], version: int
) -> None:
    state = TransactionState("x")
    epochs, failed, gap = count(1), False, False
    for step in steps:
        before = state.phase
        try:
            match step:
                case "init":
                    state.initialised(ProducerIdentity(7, next(epochs)), version)
                    gap = False
                case "begin":
                    state.begin()
                    failed = False
                    assert not gap
                case "touch":
                    if state.open:
                        missing = state.missing([PLACE])
                        assert missing == (set() if version == 2 else {PLACE})
                case "abortable" | "gap" | "fence" | "renew":
                    if before in (TransactionPhase.OPEN, TransactionPhase.FAILED):
                        verdict = {"fence": Verdict.FENCE, "renew": Verdict.RENEW}.get(step, Verdict.ABORT)
                        state.fail(BrokerError("refused"), verdict, gap=step == "gap")
                        failed, gap = True, gap or step == "gap"
                case "commit":
                    state.ending(commit=True)
                    assert not failed
                case "abort":
                    state.ending(commit=False)
                case "ended":
                    new = ProducerIdentity(7, next(epochs)) if version == 2 else None
                    state.ended(new)
                    gap = gap and version == 1
                case _:
                    state.unsure()
        except RuntimeError:
            assert state.phase is before
        if state.phase is TransactionPhase.FENCED:
            assert not state.open
        assert not (state.open and failed)

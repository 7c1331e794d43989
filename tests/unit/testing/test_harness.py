"""The harness behaves as the daemon: what a handler sees, what counts as handled, what comes again."""

from __future__ import annotations

import asyncio

import pytest

from consumerd.base.errors import HandlerFailedError, HandlerLoadError
from consumerd.base.partition import TopicPartition
from consumerd.handlers import (
    Batch,
    HandlerContext,
    Message,
    PartitionTakenError,
    RetryPolicy,
    message_handler,
)
from consumerd.testing import Codec, ContractError, HandlerFactory, HarnessError

TP = TopicPartition("t", 0, 0)


class Sink:
    """Has nothing but what a test needs; every life begins with an empty list."""

    lives = 0

    def __init__(self, *, start: int | None = None, fail: bool = False) -> None:
        self.seen: list[bytes] = []
        self.batches: list[Batch] = []
        self.calls: list[str] = []
        self._start = start
        self._fail = fail
        self.context: HandlerContext | None = None

    async def start(self, context: HandlerContext) -> None:
        self.calls.append("start")
        self.context = context
        if self._fail:
            raise OSError("cannot start")

    async def stop(self) -> None:
        self.calls.append("stop")

    async def position(self, partition: TopicPartition) -> int | None:
        self.calls.append(f"position {partition}")
        return self._start

    async def handle(self, batch: Batch) -> None:
        self.seen += batch
        self.batches.append(batch)


async def test_calls_start_position_handle_and_stop(consumerd_handler: HandlerFactory) -> None:
    harness = consumerd_handler(Sink, group="g", consumer_id="g_1")
    handler = harness.handler
    async with harness:
        assert handler is harness.handler
        await harness.deliver([b"a"])
        await harness.deliver([b"b"])
        await harness.deliver([b"c"], "other", 2, broker=1)
        assert handler.context == HandlerContext("g", "g_1", harness.clock)
    assert handler.calls == ["start", "position t/0-0", "position other/1-2", "stop"]
    assert handler.seen == [b"a", b"b", b"c"]
    assert [batch.partition for batch in handler.batches] == [TP, TP, TopicPartition("other", 1, 2)]
    assert not harness.started


async def test_numbers_batches_as_a_real_log(consumerd_handler: HandlerFactory) -> None:
    async with consumerd_handler(Sink) as harness:
        first = await harness.deliver([b"a", b"b"])
        second = await harness.deliver([b"c", b"d"], codec=Codec.GZIP)
        messages = [message for batch in harness.handler.batches for message in batch.messages()]
    assert (first.start_offset, first.next_offset) == (0, 22)
    assert (second.start_offset, second.next_offset) == (22, harness.end())
    assert [(m.offset, m.index, m.next_offset) for m in messages] == [
        (0, 0, 11),
        (11, 0, 22),
        (22, 0, 22),
        (22, 1, harness.end()),
    ]


@pytest.mark.parametrize("form", ["function", "decorated", "object", "name"])
async def test_accepts_every_form_of_a_handler(consumerd_handler: HandlerFactory, form: str) -> None:
    seen: list[bytes] = []

    async def function(batch: Batch) -> None:
        seen.extend(batch)

    @message_handler
    async def decorated(message: Message) -> None:
        seen.append(message.payload)

    sink = Sink()
    handler: object = {"function": function, "decorated": decorated, "object": sink, "name": "null"}[form]
    async with consumerd_handler(handler) as harness:
        assert form == "name" or harness.handler is handler
        delivery = await harness.deliver([b"a", b"b"])
    assert harness.handled == [b"a", b"b"]
    assert delivery.payloads == (b"a", b"b")
    assert len(delivery.attempts) == 1
    if form != "name":
        assert (seen or sink.seen) == [b"a", b"b"]


async def test_rejects_wrong_options_as_the_daemon(consumerd_handler: HandlerFactory) -> None:
    with pytest.raises(HandlerLoadError, match="has no option 'strat', did you mean 'start'"):
        consumerd_handler(Sink, {"strat": 1})
    with pytest.raises(HandlerLoadError, match="unknown handler 'nulll', did you mean 'null'"):
        consumerd_handler("nulll")


async def test_stops_after_a_failed_start(consumerd_handler: HandlerFactory) -> None:
    harness = consumerd_handler(Sink, {"fail": True})
    handler = harness.handler
    with pytest.raises(HandlerFailedError, match=r"failed 5 times \(OSError: cannot start\)"):
        await harness.start()
    assert handler.calls == ["start"] * 5 + ["stop"]
    assert not harness.started


async def test_rejects_calls_in_the_wrong_state(consumerd_handler: HandlerFactory) -> None:
    harness = consumerd_handler(Sink)
    with pytest.raises(HarnessError, match=r"await harness\.start"):
        await harness.deliver([b"a"])
    with pytest.raises(HarnessError, match="cannot crash"):
        await harness.crash()
    await harness.start()
    with pytest.raises(HarnessError, match="already started"):
        await harness.start()
    await harness.stop()
    await harness.stop()


# -- failures


async def test_records_attempts_and_pauses(consumerd_handler: HandlerFactory) -> None:
    policy = RetryPolicy(max_attempts=4, initial_backoff=100.0, max_backoff=1000.0)
    async with consumerd_handler(Sink, policy=policy) as harness:
        before = harness.clock.now
        harness.fail(times=2)
        harness.fail(ConnectionError("away"))
        delivery = await harness.deliver([b"a"])
        assert [type(attempt.error) for attempt in delivery.attempts] == [OSError, OSError, ConnectionError, type(None)]
        assert [attempt.handled for attempt in delivery.attempts] == [0, 0, 0, 1]
        assert list(delivery.attempts) == harness.attempts
        assert len(harness.pauses) == 3
        assert harness.clock.now == pytest.approx(before + sum(harness.pauses))
        assert harness.handler.seen == [b"a"]


async def test_permanent_failure_stops_and_keeps_handled_batches(consumerd_handler: HandlerFactory) -> None:
    @message_handler
    async def picky(message: Message) -> None:
        if message.payload == b"bad":
            raise ValueError(message.payload)

    async with consumerd_handler(picky, policy=RetryPolicy(max_attempts=3)) as harness:
        with pytest.raises(HandlerFailedError, match="failed 3 times at offset 11 of t/0-0"):
            await harness.deliver([b"a", b"bad", b"c"])
        assert harness.position() == 11
        with pytest.raises(HarnessError, match="the daemon has stopped"):
            await harness.deliver([b"d"], partition=1)
    assert harness.committed() == 11
    assert harness.handled == [b"a"]


async def test_continues_after_skip_and_dead_letter(consumerd_handler: HandlerFactory) -> None:
    async def bad(batch: Batch) -> None:
        raise ValueError("bad")

    for on_failure in ("skip", "dead_letter"):
        policy = RetryPolicy(max_attempts=2, on_failure=on_failure)
        async with consumerd_handler(bad, policy=policy) as harness:
            await harness.deliver([b"a", b"b"])
        assert harness.committed() == harness.end() == 22
        assert [letter.message.payload for letter in harness.dead_letters] == [b"a", b"b"] * (
            on_failure == "dead_letter"
        )
        assert all(letter.attempts == 2 for letter in harness.dead_letters)


async def test_reports_a_handler_that_does_not_return(consumerd_handler: HandlerFactory) -> None:
    async def endless(batch: Batch) -> None:
        await asyncio.Event().wait()

    async with consumerd_handler(endless, patience=0.02) as harness:
        with pytest.raises(TimeoutError, match=r"not returned from <Handover t/0-0 0-11> within 0\.02 s$"):
            await harness.deliver([b"a"])
        assert harness.position() == 0


async def test_recognises_a_handler_that_sleeps_on_the_clock(consumerd_handler: HandlerFactory) -> None:
    class Sleepy:
        async def start(self, context: HandlerContext) -> None:
            self.clock = context.clock

        async def handle(self, batch: Batch) -> None:
            await self.clock.sleep(60.0)

    async with consumerd_handler(Sleepy, patience=0.02) as harness:
        with pytest.raises(TimeoutError, match=r"1 sleep on the harness's clock: `await harness\.clock\.advance"):
            await harness.deliver([b"a"])
        work = await harness.begin([b"b"])
        await harness.clock.advance(120.0)  # the one that was given up before comes first
        delivery = await work.result()
        assert delivery.payloads == (b"b",)
        assert harness.handled == [b"a", b"b"]


async def test_applies_the_timeout_of_the_policy(consumerd_handler: HandlerFactory) -> None:
    async def endless(batch: Batch) -> None:
        await asyncio.Event().wait()

    async with consumerd_handler(endless, policy=RetryPolicy(max_attempts=2, timeout=0.01)) as harness:
        with pytest.raises(HandlerFailedError, match=r"timed out after 0\.01 s"):
            await harness.deliver([b"a"])
    assert [type(attempt.error) for attempt in harness.attempts] == [asyncio.CancelledError] * 2


# -- crashes and positions


async def test_crash_commits_nothing(consumerd_handler: HandlerFactory) -> None:
    async with consumerd_handler(Sink) as harness:
        await harness.deliver([b"a"])
        await harness.commit()
        committed = harness.committed()
        await harness.deliver([b"b"])
        await harness.deliver([b"c"])
        dead = await harness.crash()
        assert dead.calls == ["start", "position t/0-0"]
        assert harness.committed() == committed == 11
        assert harness.position() is None

        await harness.start()
        assert harness.handler is not dead
        again = await harness.redeliver()
        assert [delivery.payloads for delivery in again] == [(b"b", b"c")]  # cut differently
        assert await harness.redeliver() == []
        assert harness.handled == [b"a", b"b", b"c", b"b", b"c"]


async def test_limits_redelivery(consumerd_handler: HandlerFactory) -> None:
    async with consumerd_handler(Sink) as harness:
        harness.append([b"a", b"b"])
        harness.append([b"c", b"d"], codec=Codec.SNAPPY)
        harness.append([b"e"], "s")
        deliveries = await harness.redeliver(at_most=1)
        assert [delivery.payloads for delivery in deliveries] == [(b"e",), (b"a",), (b"b",), (b"c", b"d")]


async def test_delivers_earlier_messages_first(consumerd_handler: HandlerFactory) -> None:
    async with consumerd_handler(Sink) as harness:
        harness.append([b"a"])
        harness.append([b"b"])
        delivery = await harness.deliver([b"c"])
        assert delivery.payloads == (b"c",)
        assert len(delivery.attempts) == 1
        assert [list(batch) for batch in harness.handler.batches] == [[b"a", b"b"], [b"c"]]


async def test_position_of_the_sink_takes_precedence(consumerd_handler: HandlerFactory) -> None:
    async with consumerd_handler(Sink, {"start": 11}) as harness:
        harness.append([b"a", b"b"])
        assert await harness.claim() == 11
        await harness.redeliver()
        assert harness.handler.seen == [b"b"]


async def test_rejects_a_position_between_boundaries(consumerd_handler: HandlerFactory) -> None:
    async with consumerd_handler(Sink, {"start": 12}) as harness:
        with pytest.raises(ContractError, match="position of t/0-0 is 12, where no batch ended"):
            await harness.deliver([b"a", b"b"])
        with pytest.raises(ContractError, match="is 12"):
            await harness.claim()


async def test_stop_commits(consumerd_handler: HandlerFactory) -> None:
    async with consumerd_handler(Sink) as harness:
        await harness.deliver([b"a"])
        await harness.deliver([b"b"], "s", 1)
        assert harness.committed() is None
    assert harness.committed() == 11
    assert harness.committed("s", 1) == 11
    await harness.start()
    assert await harness.redeliver() == []
    await harness.stop()


async def test_claims_a_lost_partition_again(consumerd_handler: HandlerFactory) -> None:
    class Fenced(Sink):
        async def handle(self, batch: Batch) -> None:
            if not self.seen:
                self.seen.append(b"fenced")
                raise PartitionTakenError("another member has it")
            await super().handle(batch)

    async with consumerd_handler(Fenced) as harness:
        with pytest.raises(PartitionTakenError):
            await harness.deliver([b"a"])
        assert harness.position() is None
        await harness.redeliver()
        assert harness.handler.seen == [b"fenced", b"a"]
        assert harness.handler.calls.count("position t/0-0") == 2


async def test_handler_object_survives_a_crash(consumerd_handler: HandlerFactory) -> None:
    sink = Sink()
    async with consumerd_handler(sink) as harness:
        await harness.deliver([b"a"])
        assert await harness.crash() is sink
        await harness.start()
        await harness.redeliver()
    assert sink.seen == [b"a", b"a"]


# -- at work


async def test_handles_partitions_concurrently_and_batches_in_order(
    consumerd_handler: HandlerFactory,
) -> None:
    inside: set[TopicPartition] = set()
    together: list[int] = []

    async def handle(batch: Batch) -> None:
        assert batch.partition not in inside
        inside.add(batch.partition)
        together.append(len(inside))
        await asyncio.sleep(0.001)
        inside.remove(batch.partition)

    async with consumerd_handler(handle) as harness:
        await asyncio.gather(*[harness.deliver([b"%d" % n], partition=n % 3) for n in range(9)])
    assert max(together) == 3
    assert [a.payloads for a in harness.attempts if a.partition.partition == 1] == [(b"1",), (b"4",), (b"7",)]


async def test_marked_messages_count_at_once(consumerd_handler: HandlerFactory) -> None:
    class Marking:
        def __init__(self) -> None:
            self.go = asyncio.Event()

        async def handle(self, batch: Batch) -> None:
            batch.mark(1)
            await self.go.wait()

    async with consumerd_handler(Marking) as harness:
        work = await harness.begin([b"a", b"b"])
        assert harness.position() == 11
        await harness.commit()
        assert harness.committed() == 11
        assert not work.done
        harness.handler.go.set()
        await work.result()
        assert harness.position() == 22


async def test_cancelled_delivery_cancels_the_handler(consumerd_handler: HandlerFactory) -> None:
    held = asyncio.Event()
    ended = asyncio.Event()

    async def handle(batch: Batch) -> None:
        held.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with consumerd_handler(handle) as harness:
        task = asyncio.create_task(harness.deliver([b"a"]))
        await held.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

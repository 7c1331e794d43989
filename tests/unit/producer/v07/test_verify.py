"""Reading back, against a broker in memory that loses things."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.net.errors import ConnectError, ConnectionClosedError
from consumerd.producer import Missing, NoPartitionError, NotArrivedError, NotSentError, ProducerData, UncertainError
from consumerd.producer.v07.verify import count_partitions
from consumerd.wire.errors import FrameError
from consumerd.wire.v07 import (
    Codec,
    ErrorCode,
    FetchRequest,
    FetchResponse,
    MultiProduceRequest,
    OffsetsRequest,
    OffsetsResponse,
    ProduceRequest,
    Request,
    encode_message_set,
)


def with_partitions(world: Any, count: int, then: Callable[[Request], Any] = lambda request: None) -> None:
    """Let the broker have so many partitions of every topic, as far as it can be asked."""

    def answer(request: Request) -> Any:
        if isinstance(request, OffsetsRequest) and not 0 <= request.partition < count:
            return ConnectionClosedError("no such partition", blamed=True)
        if isinstance(request, FetchRequest) and not 0 <= request.partition < count:
            return FetchResponse(ErrorCode.WRONG_PARTITION, b"").encode()[4:]
        return then(request)

    world.broker.on_request = answer


def drop(world: Any, *dropped: bytes) -> Callable[[Request], Any]:
    """Swallow the sets that hold one of these payloads, as 0.7.2 does with those that are too large."""

    def answer(request: Request) -> None:
        if isinstance(request, (ProduceRequest, MultiProduceRequest)):
            entries = request.produces if isinstance(request, MultiProduceRequest) else (request,)
            for entry in entries:
                if any(payload in entry.messages for payload in dropped):
                    object.__setattr__(entry, "messages", b"")

    return answer


def reads(world: Any) -> list[tuple[int, int]]:
    """Offset and size of the requests that read."""
    fetches = [request for request in world.broker.requests if isinstance(request, FetchRequest)]
    return [(fetch.offset, fetch.max_size) for fetch in fetches if fetch.max_size]


@pytest.mark.parametrize("codec", Codec)
async def test_finds_stored_messages_among_those_of_others(world: Any, codec: Codec) -> None:
    world.broker.append("t", 1, b"older", b"a")

    def others(request: Request) -> None:
        if isinstance(request, (ProduceRequest, MultiProduceRequest)):
            world.broker.append("t", 1, b"a", b"noise" * 100_000, b"a", codec=Codec.GZIP)

    with_partitions(world, 2, others)
    async with world.producer(verify=True, codec=codec) as producer:
        await producer.send("t", [b"a", b"b", b"a"], partition=1)
        await producer.send_all([ProducerData("t", [b"%d" % n], partition=n % 2) for n in range(6)])
    assert world.stored("t", 0) == [b"0", b"2", b"4"]


async def test_chooses_a_random_partition_itself(world: Any) -> None:
    with_partitions(world, 5)
    async with world.producer(verify=True) as producer:
        for n in range(40):
            await producer.send("t", [b"%d" % n])
    assert sorted(partition for _, partition in world.broker.logs) == list(range(5))


async def test_names_messages_that_were_not_stored(world: Any) -> None:
    with_partitions(world, 2, drop(world, b"lost"))
    async with world.producer(verify=True, verify_timeout=3.0) as producer:
        data = [
            ProducerData("t", [b"a", b"b"], partition=0),
            ProducerData("t", [b"x", b"lost", b"y"], partition=0),
            ProducerData("t", [b"c"], partition=0),
            ProducerData("u", [b"lost"], partition=1),
        ]
        sending = asyncio.create_task(producer.send_all(data))
        await world.advance(10)
        with pytest.raises(NotArrivedError, match=r"within 3 s \(3 in t-0, 1 in u-1\).*max.message.size") as caught:
            await sending
    assert caught.value.missing == (Missing("t", 0, 3), Missing("u", 1, 1))
    assert caught.value.exit_code is ExitCode.CHECK_FAILED
    assert world.stored("t", 0) == [b"a", b"b", b"c"]


async def test_equal_messages_of_others_prove_nothing_where_the_set_is_not_there_in_one_piece(world: Any) -> None:
    lose = drop(world, b"b")

    def others(request: Request) -> Any:
        if isinstance(request, ProduceRequest):
            world.broker.append("t", 0, b"a", b"other", b"b")
        return lose(request)

    world.broker.append("t", 0, b"a", b"b")  # before the end that was noted
    with_partitions(world, 1, others)
    world.clock.auto = True
    async with world.producer(verify=True, verify_timeout=1.0) as producer:
        with pytest.raises(NotArrivedError) as caught:
            await producer.send("t", [b"a", b"b"], partition=0)
    assert caught.value.missing == (Missing("t", 0, 2),)


async def test_asks_for_no_number_of_partitions_where_the_partition_is_given(world: Any) -> None:
    with_partitions(world, 5)
    async with world.producer(verify=True) as producer:
        await producer.send("t", [b"a"], partition=0)
    probes = [request for request in world.broker.requests if isinstance(request, FetchRequest)]
    assert {probe.partition for probe in probes} == {0}


async def test_equal_sets_are_each_looked_for(world: Any) -> None:
    def drop_the_second(request: Request) -> None:
        if isinstance(request, MultiProduceRequest):
            object.__setattr__(request.produces[1], "messages", b"")

    with_partitions(world, 1, drop_the_second)
    world.clock.auto = True
    async with world.producer(verify=True, verify_timeout=1.0) as producer:
        with pytest.raises(NotArrivedError) as caught:
            await producer.send_all([ProducerData("t", [b"a"], partition=0)] * 2)
    assert caught.value.missing == (Missing("t", 0, 1),)


async def test_reads_again_after_growing_pauses_until_the_timeout(world: Any) -> None:
    with_partitions(world, 1, drop(world, b"lost"))
    world.clock.auto = True
    async with world.producer(verify=True, verify_timeout=2.0) as producer:
        with pytest.raises(NotArrivedError):
            await producer.send("t", [b"lost"], partition=0)
    assert world.clock.sleeps == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.38])
    assert reads(world) == [(0, 1 << 20)] * 9


async def test_reads_on_at_once_while_messages_come(world: Any) -> None:
    lose = drop(world, b"lost")

    def others(request: Request) -> Any:
        if isinstance(request, FetchRequest) and request.max_size and len(reads(world)) % 3 == 0:
            world.broker.append("t", 0, b"noise")
        return lose(request)

    with_partitions(world, 1, others)
    world.clock.auto = True
    async with world.producer(verify=True, verify_timeout=0.3) as producer:
        with pytest.raises(NotArrivedError):
            await producer.send("t", [b"lost"], partition=0)
    assert world.clock.sleeps[:6] == pytest.approx([0.02, 0.04] * 3)


async def test_log_that_cannot_be_read_further_does_not_end_the_wait_for_another(world: Any) -> None:
    held: list[bytes] = []

    def hold(request: Request) -> Any:
        if isinstance(request, MultiProduceRequest):
            held.append(request.produces[1].messages)
            object.__setattr__(request.produces[1], "messages", b"")
        if isinstance(request, FetchRequest) and request.max_size and request.partition == 0:
            return FetchResponse(ErrorCode.OFFSET_OUT_OF_RANGE, b"").encode()[4:]
        return None

    with_partitions(world, 2, hold)
    async with world.producer(verify=True, verify_timeout=60.0) as producer:
        data = [ProducerData("t", [b"a", b"b"], partition=0), ProducerData("t", [b"c"], partition=1)]
        sending = asyncio.create_task(producer.send_all(data))
        await world.advance(30)
        assert not sending.done()
        world.broker.logs["t", 1] += held[0]
        await world.advance(1)
        with pytest.raises(NotArrivedError) as caught:
            await sending
    assert caught.value.missing == (Missing("t", 0, 2),)
    read = [r.partition for r in world.broker.requests if isinstance(r, FetchRequest) and r.max_size]
    assert world.clock.sleeps[:6] == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.5])
    assert (read.count(0), read.count(1)) == (1, len(world.clock.sleeps) + 1)


async def test_asynchronous_producer_reports_at_its_flush(world: Any, told: Any) -> None:
    with_partitions(world, 1, drop(world, b"lost"))
    producer = world.queued(world.producer(verify=True, verify_timeout=1.0), batch_size=2, callbacks=told)
    await producer.start()
    await producer.send("t", [b"a", b"b", b"lost", b"c"], partition=0)
    closing = asyncio.create_task(producer.close())
    await world.advance(5)
    with pytest.raises(NotSentError, match="could not be read back"):
        await closing
    assert [event.message for event in told.lost] == [b"lost", b"c"]


async def test_waits_for_a_late_flush(world: Any) -> None:
    held: list[tuple[str, int, bytes]] = []

    def hold(request: Request) -> None:
        if isinstance(request, ProduceRequest):
            held.append((request.topic, request.partition, request.messages))
            object.__setattr__(request, "messages", b"")

    with_partitions(world, 1, hold)
    async with world.producer(verify=True, verify_timeout=5.0) as producer:
        sending = asyncio.create_task(producer.send("t", [b"a"], partition=0))
        await world.advance(3)
        assert not sending.done()
        ((topic, partition, messages),) = held
        world.broker.logs[topic, partition] += messages
        await world.advance(1)
        await sending


async def test_rejects_a_missing_partition(world: Any) -> None:
    with_partitions(world, 2)
    async with world.producer(verify=True) as producer:
        with pytest.raises(NoPartitionError, match="broker memory:1 has no partition 2 of 't'"):
            await producer.send("t", [b"a"], partition=2)
    assert not world.produced


async def test_failure_before_the_send_stores_nothing_and_after_it_is_uncertain(world: Any) -> None:
    def refuse_offsets(request: Request) -> Any:
        return ConnectionClosedError("gone") if isinstance(request, OffsetsRequest) else None

    with_partitions(world, 1, refuse_offsets)
    world.clock.auto = True
    async with world.producer(verify=True, retries=2) as producer:
        with pytest.raises(ConnectError, match="nothing was sent"):
            await producer.send("t", [b"a"], partition=0)
        assert not world.produced

        def refuse_reading(request: Request) -> Any:
            reads = isinstance(request, FetchRequest) and request.max_size > 0
            return ConnectionClosedError("gone") if reads else None

        with_partitions(world, 1, refuse_reading)
        with pytest.raises(UncertainError, match="it may have stored the messages"):
            await producer.send("t", [b"a"], partition=0)
        assert world.stored("t") == [b"a"] * 3


@pytest.mark.parametrize(
    "answer",
    [
        FetchResponse(ErrorCode.OFFSET_OUT_OF_RANGE, b"").encode()[4:],  # the log was cut
        FetchResponse(ErrorCode.NONE, b"\xff" * 9).encode()[4:],  # a message of no size
    ],
)
async def test_does_not_wait_for_a_log_that_cannot_be_read_further(world: Any, answer: bytes) -> None:
    def spoil(request: Request) -> Any:
        return answer if isinstance(request, FetchRequest) and request.max_size > 0 else None

    with_partitions(world, 1, spoil)
    async with world.producer(verify=True, verify_timeout=1e6) as producer:
        sending = asyncio.create_task(producer.send("t", [b"a"], partition=0))
        await world.advance(5)
        with pytest.raises(NotArrivedError):
            await sending


@pytest.mark.parametrize(("size", "second"), [(5_000_000, 5_000_010), (1_500_000, 2 << 20)])
async def test_finds_messages_behind_one_that_is_larger_than_a_fetch(world: Any, size: int, second: int) -> None:
    def large(request: Request) -> None:
        if isinstance(request, ProduceRequest):
            world.broker.append("t", 0, b"x" * size)

    with_partitions(world, 1, large)
    async with world.producer(verify=True) as producer:
        await producer.send("t", [b"y", b"z"], partition=0)
    assert reads(world)[:2] == [(0, 1 << 20), (0, second)]


async def test_reads_no_more_at_once_than_a_request_may_have(world: Any) -> None:
    def cut_short(request: Request) -> None:
        if isinstance(request, ProduceRequest):
            world.broker.logs["t", 0] = bytearray((60 << 20).to_bytes(4, "big") + b"\1" * 100)

    with_partitions(world, 1, cut_short)
    async with world.producer(verify=True, verify_timeout=1e6) as producer:
        sending = asyncio.create_task(producer.send("t", [b"a"], partition=0))
        await world.advance(5)
        assert sending.done()
        with pytest.raises(NotArrivedError):
            await sending
    assert reads(world) == [(0, 1 << 20), (0, (60 << 20) + 4), (0, 100 << 20)]


async def test_skips_corrupt_messages_of_others(world: Any) -> None:
    bad = bytearray(encode_message_set([b"other"]))
    bad[-1] ^= 1

    def damage(request: Request) -> None:
        if isinstance(request, ProduceRequest):
            world.broker.logs["t", 0] = bytearray(bad)

    with_partitions(world, 1, damage)
    async with world.producer(verify=True) as producer:
        await producer.send("t", [b"a", b"b"], partition=0)


async def test_treats_invalid_responses_as_a_closed_connection(world: Any) -> None:
    with_partitions(world, 1, lambda request: b"\0" if isinstance(request, OffsetsRequest) else None)
    world.clock.auto = True
    async with world.producer(verify=True, retries=0) as producer:
        with pytest.raises(ConnectError, match="while reading the end offset"):
            await producer.send("t", [b"a"], partition=0)
    with_partitions(
        world, 1, lambda request: b"\0" if isinstance(request, FetchRequest) and request.max_size > 0 else None
    )
    async with world.producer(verify=True, resends=0) as producer:
        with pytest.raises(UncertainError, match="sent an invalid response"):
            await producer.send("t", [b"a"], partition=0)


async def test_sends_to_a_topic_without_an_offset(world: Any) -> None:
    empty = OffsetsResponse(ErrorCode.NONE, ()).encode()[4:]
    with_partitions(world, 1, lambda request: empty if isinstance(request, OffsetsRequest) else None)
    async with world.producer(verify=True) as producer:
        await producer.send("t", [b"a"], partition=0)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 100])
async def test_counts_partitions(world: Any, count: int) -> None:
    with_partitions(world, count)
    connection = await world.broker.connect("memory", 1)
    assert await count_partitions(connection, "t") == count
    assert len(world.broker.requests) <= 15
    world.broker.on_request = lambda request: None
    with pytest.raises(FrameError, match="claims to have 1048576 partitions of topic 't'"):
        await count_partitions(connection, "t")

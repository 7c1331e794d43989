"""A message stream alone: how long it relies on one check of its fence, and which delivery continues."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from consumerd import ConsumerTimeoutError, MessageStream, TopicPartition
from consumerd.handlers import Batch
from consumerd.member.consumer.streams import FRESH, TOGETHER, StreamedBatch
from consumerd.wire.v07 import decode_batch, encode_message_set


class LeaseOverError(Exception):
    """The fence was checked after the lease had ended."""


class World:
    """A clock that stands still, and a sink whose fence says when it was checked."""

    over = False

    def __init__(self) -> None:
        self.now = 100.0
        self.held = self.winding = False
        self.checked: list[float] = []
        self.reads = 0
        #: What the stream delivers, and whether it ended with all messages handled.
        self.delivery: StreamedBatch
        self.whole: asyncio.Future[bool]

    def monotonic(self) -> float:
        self.reads += 1
        return self.now

    def allowed(self) -> bool:
        if self.over:
            raise LeaseOverError
        self.checked.append(self.now)
        return True

    def stream(self, messages: int) -> MessageStream:
        stream = MessageStream("t", 0, timeout=None, clock=self)  # type: ignore[arg-type]
        self.delivery, self.whole = self.made(messages)
        stream.offer(self.delivery)
        return stream

    def made(self, messages: int) -> tuple[StreamedBatch, asyncio.Future[bool]]:
        batch = Batch(TopicPartition("t", 0, 0), decode_batch(encode_message_set([b"x"] * messages), 0))
        sink: Any = self
        whole: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        return StreamedBatch(batch, sink, whole), whole


@pytest.mark.parametrize(("waits", "most"), [(True, 1), (False, TOGETHER)])
async def test_program_that_was_suspended_gets_few_messages(waits: bool, most: int) -> None:
    world, got = World(), 0

    async def consume() -> None:
        nonlocal got
        async for _ in world.stream(1000):
            got += 1
            if got == 500:
                world.now += 60
                world.over = True
            if waits:
                await asyncio.sleep(0)

    with pytest.raises(LeaseOverError):
        await consume()
    assert got < 500 + most


async def reading(world: World, messages: int, *, waits: bool = False, seconds: float = 0.0) -> list[int]:
    """Take messages that take `seconds` each, and return the numbers of those for which the clock was read."""
    stream, numbers = world.stream(messages + 1), []
    for number in range(messages):
        before = world.reads
        await anext(stream)
        if world.reads > before:
            numbers.append(number)
        world.now += seconds
        if waits:
            await asyncio.sleep(0)
    return numbers


async def test_quick_program_reads_clock_once_for_several_messages() -> None:
    world = World()
    numbers = await reading(world, 100)
    assert {later - sooner for sooner, later in pairwise(numbers[2:])} == {TOGETHER}
    assert world.checked == [100.0]  # one check of the fence is enough meanwhile


async def test_program_that_waits_reads_clock_for_each_message() -> None:
    world = World()
    assert await reading(world, 100, waits=True) == list(range(100))
    assert world.checked == [100.0]


@pytest.mark.parametrize(("seconds", "messages"), [(0.001, 100), (FRESH / TOGETHER, 4)])
async def test_slow_program_reads_clock_for_each_message(seconds: float, messages: int) -> None:
    world = World()
    world.now = 0.0
    assert await reading(world, messages, seconds=seconds) == list(range(messages))


async def test_quick_program_schedules_one_look_at_its_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    world, scheduled, loop = World(), [], asyncio.get_running_loop()
    call_soon = loop.call_soon

    def counting(callback: Any, *arguments: Any, **options: Any) -> Any:
        scheduled.append(callback)
        return call_soon(callback, *arguments, **options)

    stream = world.stream(200)
    await anext(stream)
    monkeypatch.setattr(loop, "call_soon", counting)
    for _ in range(100):
        await anext(stream)
    assert len(scheduled) == 1


async def test_pause_stops_quick_program_at_once() -> None:
    world = World()
    stream = world.stream(100)
    for _ in range(10):
        await anext(stream)
    world.held = True
    stream.reconsider(world.delivery)
    following = stream.__anext__()
    following.send(None)  # it waits, and returns no message at once
    following.close()
    assert world.delivery.taken == 10


async def test_batch_ends_as_a_whole_with_its_last_message() -> None:
    world = World()
    stream = world.stream(2)
    await anext(stream)
    await anext(stream)
    assert not world.whole.done()
    stream.ack()
    assert world.whole.result() is True


async def test_batches_end_at_a_message_when_the_partition_is_revoked() -> None:
    world = World()
    stream = world.stream(4)
    await anext(stream)
    world.winding = True
    stream.reconsider(world.delivery)
    assert not world.whole.done()  # the program has a message of it
    following = asyncio.create_task(anext(stream.batches()))
    await asyncio.sleep(0)
    assert world.whole.result() is False
    assert (world.delivery.handled, world.delivery.taken) == (1, 1)
    following.cancel()


async def test_current_delivery_continues_when_another_is_withdrawn() -> None:
    world = World()
    stream, (other, _) = world.stream(2), world.made(2)
    stream.offer(other)
    await anext(stream)
    stream.withdraw(other)
    stream.ack()
    assert world.delivery.handled == 1
    await anext(stream)
    assert (world.delivery.taken, other.taken) == (2, 0)


async def test_timeout_of_zero_does_not_wait() -> None:
    stream = MessageStream("t", 0, timeout=0, clock=World())  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        with pytest.raises(ConsumerTimeoutError):
            await anext(stream)


async def test_check_of_fence_ends_with_its_time() -> None:
    world = World()
    stream = world.stream(10)
    await anext(stream)
    world.now += FRESH
    await anext(stream)
    assert world.checked == [100.0, 100.0 + FRESH]


@pytest.mark.parametrize("seconds", [0.0001, 0.0005, 0.001, 0.005, 0.1])
async def test_fence_is_checked_as_often_as_messages_take_long(seconds: float) -> None:
    world, left = World(), 1000
    async for _ in world.stream(1000):
        world.now += seconds
        left -= 1
        if not left:
            break
    longest = max(later - sooner for sooner, later in pairwise(world.checked))
    assert longest < 2 * FRESH + seconds

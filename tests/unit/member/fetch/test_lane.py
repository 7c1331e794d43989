"""Lanes: order, bounds, and that no byte leaks."""

from __future__ import annotations

import asyncio

import pytest

from consumerd.base.budget import ByteBudget
from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.errors import LaneClosedError
from consumerd.member.fetch.lane import Lane
from consumerd.wire.v07 import MessageBatch, decode_batch, encode_message_set

T0 = TopicPartition("t", 0, 0)


def batch(number: int) -> MessageBatch:
    return decode_batch(encode_message_set([b"%d" % number]), number * 100)


def make(limit: int = 1000, **arguments: int) -> tuple[ByteBudget, Lane]:
    budget = ByteBudget(limit)
    return budget, Lane(T0, budget, max_bytes=arguments.pop("max_bytes", limit), **arguments)


async def fill(lane: Lane, count: int) -> list[MessageBatch]:
    batches = [batch(number) for number in range(count)]
    for each in batches:
        lane.put(each, await lane.budget.reserve(10))
    return batches


async def test_returns_batches_in_order_and_releases_bytes() -> None:
    budget, lane = make()
    heads = [lane.head]
    batches = await fill(lane, 3)
    heads.append(lane.head)
    assert [id(head) for head in heads] == [id(None), id(batches[0])]
    assert (len(lane), lane.budget.used, budget.used) == (3, 30, 30)
    got = [await lane.get() for _ in range(3)]
    assert [id(each) for each in got] == [id(each) for each in batches]
    assert (len(lane), lane.budget.used, budget.used) == (0, 30, 30)  # handled, hence held
    lane.finished(got[1])
    lane.finished(got[1])
    lane.finished(batch(9))
    assert budget.used == 20
    lane.finished(got[0])
    lane.finished(got[2])
    assert budget.used == lane.budget.used == 0


async def test_limits_queued_batches() -> None:
    _, lane = make(max_batches=2)
    await lane.wait_for_room()
    await fill(lane, 2)
    room = asyncio.create_task(lane.wait_for_room())
    await asyncio.sleep(0)
    assert not room.done()
    lane.finished(await lane.get())
    await room
    lane.close()


async def test_queues_ten_batches_by_default() -> None:
    _, lane = make()
    await fill(lane, 9)
    async with asyncio.timeout(5):
        await lane.wait_for_room()
    await fill(lane, 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await lane.wait_for_room()
    lane.close()


async def test_get_waits_for_batch() -> None:
    _, lane = make()
    getting = asyncio.create_task(lane.get())
    await asyncio.sleep(0)
    assert not getting.done()
    (only,) = await fill(lane, 1)
    assert await getting is only
    lane.close()


async def test_clear_keeps_batch_of_consumer() -> None:
    budget, lane = make()
    await fill(lane, 3)
    held = await lane.get()
    lane.clear()
    assert (len(lane), budget.used) == (0, 10)
    lane.finished(held)
    assert budget.used == 0


async def test_clear_leaves_waking_consumer_waiting() -> None:
    budget, lane = make()
    getting = asyncio.create_task(lane.get())
    await asyncio.sleep(0)
    await fill(lane, 1)
    lane.clear()
    await asyncio.sleep(0)
    assert not getting.done()
    _, last = await fill(lane, 2)
    assert await getting is not last
    assert await lane.get() is last
    lane.close()
    assert budget.used == 0


async def test_close_releases_bytes_and_wakes_waiters() -> None:
    budget, lane = make(max_batches=1)
    await fill(lane, 1)
    held = await lane.get()
    await fill(lane, 1)
    room = asyncio.create_task(lane.wait_for_room())
    drained = asyncio.create_task(lane.wait_drained())
    await asyncio.sleep(0)
    lane.close()
    async with asyncio.timeout(5):
        await drained
    assert lane.closed
    assert budget.used == 0
    with pytest.raises(LaneClosedError):
        await room
    with pytest.raises(LaneClosedError):
        await lane.get()
    reservation = await budget.reserve(5)
    with pytest.raises(LaneClosedError):
        lane.put(batch(1), reservation)
    reservation.release()
    lane.finished(held)  # a handler that comes late
    lane.close()
    assert budget.used == 0


async def test_wait_drained_returns_when_nothing_is_queued_or_held() -> None:
    _, lane = make()
    await lane.wait_drained()
    await fill(lane, 2)
    drained = asyncio.create_task(lane.wait_drained())
    first, second = await lane.get(), await lane.get()
    lane.finished(second)
    await asyncio.sleep(0)
    assert not drained.done()
    lane.finished(first)
    await drained

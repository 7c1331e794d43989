"""The queue of the asynchronous producer of 0.7: who is served, and what is put in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumerd.producer import CallbackHandler, Event, ProducerClosedError, QueueSettings
from consumerd.producer.v07.event_queue import EventQueue


def numbered(*numbers: int) -> list[Event]:
    return [Event("t", number) for number in numbers]


async def test_puts_at_once_where_there_is_room(world: Any) -> None:
    queue = EventQueue(QueueSettings(queue_size=2), world.clock)
    first, second, third = numbered(1, 2, 3)
    assert await queue.put(first, 0.0) is True
    assert await queue.put(second, None) is True
    assert await queue.put(third, 0.0) is False
    assert await queue.batch() == [first, second]


async def test_waits_for_room_as_long_as_it_may(world: Any) -> None:
    queue = EventQueue(QueueSettings(queue_size=1), world.clock)
    first, second, third = numbered(1, 2, 3)
    queue.offer(first)
    putting = asyncio.create_task(queue.put(second, 1.0))
    await world.advance(0.9)
    assert not putting.done()
    assert await queue.batch() == [first]
    assert await putting is True
    putting = asyncio.create_task(queue.put(third, 1.0))
    await world.advance(1.0)
    assert await putting is False
    assert await queue.batch() == [second]


async def test_room_for_several_serves_as_many_senders_in_their_order(world: Any) -> None:
    queue = EventQueue(QueueSettings(queue_size=2), world.clock)
    events = numbered(*range(6))
    for event in events[:2]:
        assert queue.offer(event)
    waiting = [asyncio.create_task(queue.put(event, None)) for event in events[2:]]
    await world.settle()
    assert await queue.batch() == events[:2]
    await world.settle()
    assert [task.done() for task in waiting] == [True, True, False, False]
    waiting[2].cancel()
    assert await queue.batch() == events[2:4]
    await world.settle()
    assert [task.done() for task in waiting] == [True] * 4
    queue.close()
    assert await queue.batch() == events[5:]
    assert await queue.batch() == []


async def test_batch_is_due_as_soon_as_enough_messages_came_one_by_one(world: Any) -> None:
    queue = EventQueue(QueueSettings(batch_size=3), world.clock)
    taking = asyncio.create_task(queue.batch())
    events = numbered(1, 2, 3)
    for event in events:
        await world.settle()
        assert not taking.done()
        queue.offer(event)
    await world.settle()
    assert taking.done()
    assert await taking == events


async def test_queue_time_of_the_first_message_counts_from_its_own_put(world: Any) -> None:
    queue = EventQueue(QueueSettings(queue_time=1.0), world.clock)
    first, second = numbered(1, 2)
    taken = []
    for event in (first, second):
        await world.advance(5.0)
        queue.offer(event)
        taking = asyncio.create_task(queue.batch())
        await world.advance(0.9)
        assert not taking.done()
        await world.advance(0.1)
        taken.append(await taking)
    assert taken == [[first], [second]]


@pytest.mark.parametrize(
    ("early", "due"),
    [(5, 1.0), (4, 1.5)],
    ids=["the oldest that is left came early", "the oldest that is left came late"],
)
async def test_queue_time_counts_from_the_oldest_message_that_is_left(world: Any, early: int, due: float) -> None:
    queue = EventQueue(QueueSettings(batch_size=4, queue_time=1.0), world.clock)
    events = numbered(*range(early + 1))
    queue.mark()
    for event in events[:early]:
        queue.offer(event)
    await world.advance(0.5)
    queue.mark()
    queue.offer(events[early])
    assert await queue.batch() == events[:4]
    taking = asyncio.create_task(queue.batch())
    await world.advance(due - 0.6)
    assert not taking.done()
    await world.advance(0.1)
    assert taking.done()
    assert await taking == events[4:]


async def test_abandoned_queue_accepts_nothing(world: Any) -> None:
    queue = EventQueue(QueueSettings(), world.clock)
    first, second = numbered(1, 2)
    queue.offer(first)
    assert queue.abandon() == [first]
    with pytest.raises(ProducerClosedError):
        queue.offer(second)
    assert await queue.batch() == []


async def test_callbacks_that_are_not_overridden_change_nothing() -> None:
    callbacks, (event,) = CallbackHandler(), numbered(1)
    assert callbacks.before_enqueue(event) == event
    assert callbacks.after_dequeuing_existing_data(event) == (event,)
    assert callbacks.before_sending_data([event]) == [event]
    assert callbacks.last_batch_before_close() == ()

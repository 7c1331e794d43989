"""How long a message stream relies on one check of its fence, in a program that waits and in one that does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumerd import MessageStream, TopicPartition
from consumerd.consumer.deliveries import Delivery
from consumerd.consumer.streams import FRESH, TOGETHER
from consumerd.handlers import Batch
from consumerd.wire.v07 import decode_batch, encode_message_set

pytestmark = pytest.mark.asyncio


class LeaseOverError(Exception):
    """The fence was checked after the lease had ended."""


class World:
    """A clock that stands still, and a sink whose fence says when it was checked."""

    winding = held = over = False

    def __init__(self) -> None:
        self.now = 100.0
        self.checked: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def allowed(self) -> bool:
        if self.over:
            raise LeaseOverError
        self.checked.append(self.now)
        return True

    def stream(self, messages: int) -> MessageStream:
        stream = MessageStream("t", 0, timeout=None, clock=self)  # type: ignore[arg-type]
        batch = Batch(TopicPartition("t", 0, 0), decode_batch(encode_message_set([b"x"] * messages), 0))
        sink: Any = self
        stream.offer(Delivery(batch, sink, asyncio.get_running_loop().create_future()))
        return stream


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


@pytest.mark.parametrize("seconds", [0.0001, 0.0005, 0.001, 0.005, 0.1])
async def test_fence_is_checked_as_often_as_messages_take_long(seconds: float) -> None:
    world, left = World(), 1000
    async for _ in world.stream(1000):
        world.now += seconds
        left -= 1
        if not left:
            break
    longest = max(later - sooner for sooner, later in zip(world.checked, world.checked[1:], strict=False))
    assert longest < 2 * FRESH + seconds

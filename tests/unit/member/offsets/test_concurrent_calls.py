"""Calls that run together: their results in order, and the first error of one for all."""

from __future__ import annotations

import asyncio

import pytest

from consumerd.member.offsets.guards import all_of, each_of


async def test_returns_results_in_the_order_of_the_items() -> None:
    async def double(item: int) -> int:
        for _ in range(5 - item % 5):  # later items end before earlier ones
            await asyncio.sleep(0)
        return 2 * item

    assert await each_of(list(range(100)), double) == [2 * item for item in range(100)]


async def test_first_error_cancels_the_other_calls_and_is_raised_as_itself() -> None:
    ended = []

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise OSError("the disk is full")

    async with asyncio.timeout(60):
        with pytest.raises(OSError, match="the disk is full"):
            await all_of([wait_for_ever, fail, wait_for_ever])
    assert ended == ["cancelled", "cancelled"]
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()

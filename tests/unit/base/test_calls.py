from __future__ import annotations

import asyncio

import pytest

from consumerd.base.calls import read_all


async def test_bounds_concurrent_reads_and_keeps_order() -> None:
    under_way = most = 0

    async def read(item: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(item % 3):
            await asyncio.sleep(0)
        under_way -= 1
        return item * 2

    assert list((await read_all(range(50), read, at_once=7)).items()) == [(item, item * 2) for item in range(50)]
    assert most == 7
    assert await read_all([], read) == {}


async def test_stops_remaining_reads_after_error() -> None:
    begun: list[int] = []

    async def read(item: int) -> None:
        begun.append(item)
        await asyncio.sleep(0)
        if item == 1:
            raise OSError(item)

    with pytest.raises(OSError, match="1"):
        await read_all(range(50), read, at_once=3)
    assert len(begun) < 10


async def test_propagates_cancellation_despite_error() -> None:
    async def fail_on_cancel(item: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise KeyError(item) from None

    task = asyncio.create_task(read_all(range(3), fail_on_cancel))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

"""Intervals that change while a task waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from consumerd.base.clock import Interval
from consumerd.testing import FakeClock
from tests.support.waiting import cancel


class Runs:
    """A task that runs at an interval, with the times of its runs."""

    def __init__(self, seconds: float | None) -> None:
        self.clock = FakeClock(0.0)
        self.interval = Interval(seconds, self.clock)
        self.times: list[float] = []
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self.interval.wait()
            self.times.append(self.clock.now)

    async def change(self, seconds: float | None) -> None:
        self.interval.change(seconds)
        for _ in range(5):
            await asyncio.sleep(0)

    async def until(self, time: float) -> list[float]:
        await asyncio.sleep(0)
        await self.clock.advance(time - self.clock.now)
        return self.times


@pytest_asyncio.fixture
async def made() -> AsyncIterator[list[Runs]]:
    made: list[Runs] = []
    yield made
    for each in made:
        await cancel(each.task)


async def test_a_shorter_interval_holds_at_once(made: list[Runs]) -> None:
    made.append(runs := Runs(3600.0))
    await runs.until(5.0)
    await runs.change(8.0)
    assert await runs.until(20.0) == [8.0, 16.0]
    await runs.change(1.0)
    assert await runs.until(22.5) == [8.0, 16.0, 20.0, 21.0, 22.0]


async def test_a_longer_interval_holds_at_once(made: list[Runs]) -> None:
    made.append(runs := Runs(10.0))
    await runs.until(9.0)
    await runs.change(100.0)
    assert await runs.until(110.0) == [100.0]


async def test_runs_end_and_begin_with_the_interval(made: list[Runs]) -> None:
    made.append(runs := Runs(None))
    assert await runs.until(1000.0) == []
    await runs.change(5.0)
    assert await runs.until(1006.0) == [1000.0, 1005.0]
    await runs.change(None)
    assert await runs.until(2000.0) == [1000.0, 1005.0]


async def test_an_interval_that_is_set_again_changes_nothing(made: list[Runs]) -> None:
    made.append(runs := Runs(10.0))
    for time in range(1, 30):
        await runs.until(time)
        await runs.change(10.0)
    assert runs.times == [10.0, 20.0]
    assert runs.clock.sleeps == [10.0, 10.0, 10.0]


async def test_a_change_while_the_task_works_holds_for_its_next_wait() -> None:
    clock = FakeClock(0.0)
    interval = Interval(10.0, clock)
    interval.change(2.0)
    waiting = asyncio.create_task(interval.wait())
    await asyncio.sleep(0)
    await clock.advance(2.0)
    await waiting
    assert clock.sleeps == [2.0]


async def test_cancellation_ends_the_wait() -> None:
    interval = Interval(10.0, FakeClock())
    waiting = asyncio.create_task(interval.wait())
    await asyncio.sleep(0)
    interval.change(20.0)
    await cancel(waiting)
    assert waiting.cancelled()

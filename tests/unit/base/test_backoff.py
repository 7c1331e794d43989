"""Delays that double, and a sleep that an event cuts short."""

from __future__ import annotations

import asyncio
import random

import pytest

from consumerd.base.backoff import Backoff, sleep_unless
from consumerd.testing.clock import FakeClock


def test_doubles_the_delay_up_to_a_limit_and_shortens_it_by_up_to_a_half() -> None:
    backoff = Backoff(1.0, 8.0, random.Random(1))
    for _ in range(2):
        bases = [1.0, 2.0, 4.0, 8.0, 8.0]
        delays = [backoff.next() for _ in bases]
        assert all(base / 2 <= delay <= base for base, delay in zip(bases, delays, strict=True))
        assert backoff.attempts == 5
        backoff.reset()
        assert backoff.attempts == 0


def test_many_attempts_keep_the_largest_delay() -> None:
    backoff = Backoff(0.001, 8.0, random.Random(1))
    delays = [backoff.next() for _ in range(5000)][100:]
    assert 4.0 <= min(delays) < 4.1
    assert 7.9 < max(delays) <= 8.0


@pytest.mark.parametrize(("seconds", "happened"), [(5.0, True), (0.0, False), (-1.0, False)])
async def test_does_not_sleep_after_the_event_or_without_time(seconds: float, happened: bool) -> None:
    clock, event = FakeClock(), asyncio.Event()
    if happened:
        event.set()
    async with asyncio.timeout(60):
        await sleep_unless(clock, seconds, event)
    assert clock.sleeps == []


@pytest.mark.parametrize("how", ["time", "event"])
async def test_sleeps_until_the_time_or_the_event(how: str) -> None:
    clock, event = FakeClock(), asyncio.Event()
    sleeping = asyncio.create_task(sleep_unless(clock, 0.5, event))
    while not clock.sleepers:
        await asyncio.sleep(0)
    await clock.advance(0.25)
    assert not sleeping.done()
    if how == "time":
        await clock.advance(0.25)
    else:
        event.set()
    async with asyncio.timeout(60):
        await sleeping
    assert clock.sleepers == 0

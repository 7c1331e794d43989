"""Time that passes when a test says so."""

import asyncio

from consumerd.testing import FakeClock
from consumerd.testing.clock import PassingPauses


async def periodic(clock: FakeClock, period: float, seen: list[float]) -> None:
    while True:
        await clock.sleep(period)
        seen.append(clock.now)


async def test_wakes_sleepers_in_order_of_time() -> None:
    clock = FakeClock(0.0)
    fast: list[float] = []
    slow: list[float] = []
    tasks = [asyncio.create_task(periodic(clock, 3.0, slow)), asyncio.create_task(periodic(clock, 2.0, fast))]
    await asyncio.sleep(0)
    assert clock.sleepers == 2
    await clock.advance(7.0)
    assert (fast, slow) == ([2.0, 4.0, 6.0], [3.0, 6.0])
    assert clock.monotonic() == 7.0
    await clock.advance(0.5)
    assert fast == [2.0, 4.0, 6.0]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert clock.sleepers == 0
    await clock.advance(100.0)  # what was cancelled does not count
    assert slow == [3.0, 6.0]


async def test_jump_wakes_all_due_sleepers_once() -> None:
    clock = FakeClock(0.0)
    seen: list[float] = []
    task = asyncio.create_task(periodic(clock, 2.0, seen))
    await asyncio.sleep(0)
    clock.jump(7.0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert seen == [7.0]
    task.cancel()


async def test_auto_advances_to_the_next_sleeper() -> None:
    clock = FakeClock(10.0, auto=True)
    order: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        order.append((name, clock.now))

    await asyncio.gather(sleeper("late", 5.0), sleeper("early", 1.0))
    assert order == [("early", 11.0), ("late", 15.0)]
    assert clock.sleeps == [5.0, 1.0]


async def test_wall_time_advances_too() -> None:
    clock = FakeClock(10.0, wall=500.0)
    await clock.advance(2.5)
    assert clock.wall() == 502.5


async def test_sleep_of_zero_takes_one_turn() -> None:
    clock = FakeClock(10.0)
    turned = False

    async def other() -> None:
        nonlocal turned
        turned = True

    task = asyncio.create_task(other())
    await clock.sleep(0)
    await clock.sleep(-1.0)
    assert turned
    assert clock.now == 10.0
    await task


async def test_pauses_apply_to_all_users_of_the_clock() -> None:
    clock = FakeClock(0.0)
    sleeper = asyncio.create_task(clock.sleep(1.5))
    await asyncio.sleep(0)
    noted: list[float] = []
    pauses = PassingPauses(clock, noted)
    await pauses.sleep(1.0)
    assert not sleeper.done()
    await pauses.sleep(1.0)
    await sleeper
    assert noted == [1.0, 1.0]
    assert pauses.monotonic() == clock.monotonic() == 2.0
    assert pauses.wall() == clock.wall()

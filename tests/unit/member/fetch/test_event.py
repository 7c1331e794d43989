"""`Flag`: its tasks wait as for one of asyncio's."""

from __future__ import annotations

import asyncio

from consumerd.member.fetch.event import Flag


async def begun(count: int, event: Flag) -> list[asyncio.Task[None]]:
    async def wait() -> None:
        await event.wait()

    tasks = [asyncio.create_task(wait()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_wakes_up_all_that_wait_though_it_is_cleared_at_once() -> None:
    event = Flag()
    tasks = await begun(2, event)
    assert not any(task.done() for task in tasks)
    event.set()
    event.clear()
    event.set()  # again, before any of them ran
    event.clear()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert not event.is_set()


async def test_does_not_wait_while_it_is_set() -> None:
    event = Flag(is_set=True)
    await asyncio.wait_for(event.wait(), 60)
    event.clear()
    [task] = await begun(1, event)
    assert not task.done()
    event.set()
    await asyncio.wait_for(task, 60)


async def test_forgets_a_task_that_is_cancelled() -> None:
    event = Flag()
    first, second = await begun(2, event)
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    [third] = await begun(1, event)
    assert event._waiters is not None
    assert len(event._waiters) == 2
    event.set()
    await asyncio.wait_for(asyncio.gather(second, third), 60)
    assert event._waiters is None

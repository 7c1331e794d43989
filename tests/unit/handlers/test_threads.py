from __future__ import annotations

import asyncio
import threading

import pytest

from consumerd.handlers.threads import in_thread
from consumerd.net.addresses import addresses_of


async def test_returns_results_and_raises_errors() -> None:
    assert await in_thread(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_cancelled_caller_waits_for_the_thread_through_repeated_cancellation() -> None:
    loop = asyncio.get_running_loop()
    started, go_on = asyncio.Event(), threading.Event()
    ended: list[str] = []
    interrupts: list[str] = []

    def work() -> None:
        loop.call_soon_threadsafe(started.set)
        assert go_on.wait(10)
        ended.append("thread")
        raise ValueError("dropped with the outcome")

    task = asyncio.create_task(in_thread(work, interrupt=lambda: interrupts.append("interrupt")))
    await started.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not task.done()
    assert interrupts == ["interrupt"]
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["thread"]


async def test_host_names_are_looked_up_while_all_threads_of_handlers_wait_for_a_disk() -> None:
    """Otherwise no connection to ZooKeeper could be established meanwhile."""
    go_on = threading.Event()
    waiting = [asyncio.create_task(in_thread(go_on.wait)) for _ in range(100)]  # more than there are threads
    try:
        for _ in range(10):  # until each has begun, or stands in the line
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert await addresses_of("localhost", 1)
    finally:
        go_on.set()
        await asyncio.gather(*waiting)

from __future__ import annotations

import asyncio
import threading

import pytest

from consumerd.handlers.threads import in_thread


@pytest.mark.asyncio
async def test_returns_results_and_raises_errors() -> None:
    assert await in_thread(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


@pytest.mark.asyncio
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

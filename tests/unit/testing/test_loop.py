"""A loop in a thread, seen from other threads."""

import asyncio
import threading
import time

import pytest

from consumerd.testing import HarnessError, LoopThread


async def current_thread() -> threading.Thread:
    return threading.current_thread()


def test_runs_work_in_another_thread() -> None:
    async def broken() -> None:
        raise KeyError("mine")

    with LoopThread() as loop:
        assert loop.run(current_thread()) is not threading.current_thread()
        assert loop.call(threading.current_thread) is loop.run(current_thread())
        with pytest.raises(KeyError, match="mine"):
            loop.run(broken())


def test_loop_runs_between_calls() -> None:
    ticks: list[int] = []
    enough = threading.Event()

    async def tick() -> None:
        while True:
            ticks.append(1)
            if len(ticks) > 3:
                enough.set()
            await asyncio.sleep(0.001)

    async def start() -> None:
        tasks.append(asyncio.create_task(tick()))

    tasks: list[asyncio.Task[None]] = []
    with LoopThread() as loop:
        loop.run(start())
        assert enough.wait(5)
    assert tasks[0].cancelled()  # and awaited: what is left ends with the loop


def test_cancels_work_after_the_timeout() -> None:
    ended = threading.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with LoopThread() as loop:
        with pytest.raises(TimeoutError, match=r"endless.* did not finish within 0\.01 s"):
            loop.run(endless(), timeout=0.01)
        assert ended.wait(5)


def test_passes_on_a_timeout_of_the_work() -> None:
    async def work() -> None:
        raise TimeoutError("mine")

    with LoopThread() as loop, pytest.raises(TimeoutError, match=r"^mine$"):
        loop.run(work())


def test_reports_cancelled_work() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with LoopThread() as loop, pytest.raises(asyncio.CancelledError):
        loop.run(work())


def test_rejects_calls_from_itself_and_after_close() -> None:
    loop = LoopThread()
    with pytest.raises(HarnessError, match="await the coroutine"):
        loop.call(lambda: loop.run(current_thread()))
    loop.close()
    loop.close()
    with pytest.raises(HarnessError, match="has ended"):
        loop.run(current_thread())


def test_close_is_prompt() -> None:
    start = time.monotonic()
    LoopThread().close()
    assert time.monotonic() - start < 5

"""Steps of long work take turns with everything else on the loop."""

import asyncio
from collections.abc import Generator

import pytest

from consumerd.base.turns import in_turns


async def test_other_tasks_run_after_each_step() -> None:
    seen: list[str] = []

    def work(name: str) -> Generator[None, None, str]:
        for _ in range(3):
            seen.append(name)
            yield
        return name.upper()

    one, two = await asyncio.gather(in_turns(work("a")), in_turns(work("b")))
    assert (one, two) == ("A", "B")
    assert seen == ["a", "b"] * 3


async def test_work_without_steps_does_not_yield() -> None:
    turns: list[str] = []
    asyncio.get_running_loop().call_soon(turns.append, "other")

    def work() -> Generator[None, None, list[str]]:
        yield from ()
        return list(turns)

    assert await in_turns(work()) == []
    await asyncio.sleep(0)
    assert turns == ["other"]


async def test_raises_errors_and_closes_the_work_when_cancelled() -> None:
    closed: list[str] = []

    def work(fail: bool) -> Generator[None, None, None]:
        try:
            yield
            if fail:
                raise ValueError("bad")
            while True:
                yield
        finally:
            closed.append("closed")

    with pytest.raises(ValueError, match="bad"):
        await in_turns(work(True))
    task = asyncio.create_task(in_turns(work(False)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == ["closed", "closed"]


async def test_only_work_of_several_steps_waits_for_the_gate() -> None:
    gate = asyncio.Semaphore(1)
    await gate.acquire()
    seen: list[int] = []

    def work(count: int) -> Generator[None, None, int]:
        for number in range(count):
            seen.append(number)
            yield
        return count

    def at_once() -> Generator[None, None, str]:
        yield from ()
        return "done"

    assert await in_turns(at_once(), gate) == "done"
    waiting = asyncio.create_task(in_turns(work(3), gate))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == [0]
    gate.release()
    assert await waiting == 3
    assert not gate.locked()

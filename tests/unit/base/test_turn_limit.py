"""Tasks that begin together pass in parts, in their order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from typing import Any

import pytest

from consumerd.base.turns import TurnLimit


class Turns:
    """Lists who passed in each turn of the event loop."""

    def __init__(self, width: int) -> None:
        self.passed: list[list[int]] = [[]]
        self._limit = TurnLimit(width)
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self.passed.append([])
        asyncio.get_running_loop().call_soon(self._next)

    async def enter(self, number: int) -> None:
        await self._limit.wait()
        self.passed[-1].append(number)


async def test_passes_so_many_in_a_turn_in_their_order() -> None:
    turns = Turns(3)
    await asyncio.gather(*(turns.enter(number) for number in range(10)))
    assert [part for part in turns.passed if part] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


async def test_single_task_passes_at_once() -> None:
    limit = TurnLimit(1)
    loop = asyncio.get_running_loop()
    for _ in range(3):
        turn_over: list[bool] = []
        loop.call_soon(turn_over.append, True)
        await limit.wait()
        assert not turn_over
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_loop_has_nothing_to_do_when_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = TurnLimit(2)
    await asyncio.gather(*(limit.wait() for _ in range(5)))
    loop = asyncio.get_running_loop()
    soon, called = loop.call_soon, Counter[object]()

    def count(callback: Callable[..., object], *arguments: Any, context: Context | None = None) -> asyncio.Handle:
        called[getattr(callback, "__self__", None)] += 1
        return soon(callback, *arguments, context=context)

    monkeypatch.setattr(loop, "call_soon", count)
    for _ in range(20):
        await asyncio.sleep(0)
    assert called[limit] <= 1  # the end of the last turn


async def test_those_who_wait_pass_before_those_who_come_later() -> None:
    turns = Turns(1)
    tasks = [asyncio.create_task(turns.enter(number)) for number in range(3)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(turns.enter(3)))
    await asyncio.gather(*tasks)
    assert [number for part in turns.passed for number in part] == [0, 1, 2, 3]


async def test_cancelled_tasks_take_no_place() -> None:
    turns = Turns(2)
    tasks = [asyncio.create_task(turns.enter(number)) for number in range(7)]
    await asyncio.sleep(0)
    for number in (2, 3, 5):
        tasks[number].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [part for part in turns.passed if part] == [[0, 1], [4, 6]]


async def test_rejects_width_below_one() -> None:
    with pytest.raises(ValueError, match="must be a positive number, not 0"):
        TurnLimit(0)

"""Waiting in tests: for other tasks, and for what cannot be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def turns(count: int = 20) -> None:
    """Let all tasks run as far as they can without time passing: so many turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and return when all of them have ended, whatever with."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def until(condition: Callable[..., object], seconds: float = 120.0, *, every: float = 0.01) -> None:
    """Poll: other processes and their files, other sessions and their nodes send no events.

    `condition` may be a coroutine function. Raises TimeoutError after so many seconds.
    """
    async with asyncio.timeout(seconds):
        while True:
            holds = condition()
            if await holds if asyncio.iscoroutine(holds) else holds:
                return
            await asyncio.sleep(every)

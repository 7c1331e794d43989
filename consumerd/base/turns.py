"""Turns of the event loop: long work in steps, with other tasks after each, and a limit of tasks for each turn.

Strategy: long computations on a loop (checking messages, decoding) are generators that yield after each step of a
millisecond or two. In a thread the same work would hold the interpreter's lock for 5 ms each time that the loop
releases it, which it does at every system call: a hundred clients would wait for long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

Result = TypeVar("Result")


async def in_turns(
    steps: Generator[None, None, Result], gate: AbstractAsyncContextManager[object] | None = None
) -> Result:
    """Run `steps` to its end and return its value; other due tasks of the loop run after each step.

    Work of more than one step continues within `gate` after the first one: a semaphore, say, which limits the large
    work under way. The first step is done without waiting. Raises the errors of `steps` and `gate`; at every end,
    cancellation included, `steps` is closed.
    """
    try:
        next(steps)
        async with gate or contextlib.nullcontext():
            while True:
                await asyncio.sleep(0)
                next(steps)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        steps.close()


class TurnLimit:
    """Lets at most `width` tasks pass in a turn of the event loop, in the order in which they came.

    Where thousands of tasks begin together, what has to happen meanwhile, above all the heartbeats of the session with
    ZooKeeper, waits for one turn and not for all of them.
    """

    def __init__(self, width: int) -> None:
        if width < 1:
            raise ValueError(f"the tasks of a turn must be a positive number, not {width}")
        self._width = width
        self._room = width
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turning = False

    async def wait(self) -> None:
        """Return in a turn that has room."""
        if not self._turning:
            self._turn_later()
        if self._room and not self._waiting:
            self._room -= 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        await place

    def _turn_later(self) -> None:
        self._turning = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        self._room = self._width
        while self._room and self._waiting:
            place = self._waiting.popleft()
            if not place.done():  # else it was cancelled
                place.set_result(None)
                self._room -= 1
        if self._room < self._width:
            self._turn_later()

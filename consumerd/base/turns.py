"""Long work on the loop, in steps: other tasks run after each.

Strategy: long computations on a loop (checking messages, decoding) are generators that yield after each step of a
millisecond or two. In a thread the same work would hold the interpreter's lock for 5 ms each time that the loop
releases it, which it does at every system call: a hundred clients would wait for long.
"""

from __future__ import annotations

import asyncio
import contextlib
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

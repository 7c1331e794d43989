"""Long work on the loop, in steps: others get their turn after each.

Strategy: what takes long on a loop and is not the system's doing (checking messages, decoding) is a generator that
yields after each step of a millisecond or two. In a thread the same work would hold the interpreter's lock for 5 ms
each time that the loop gives it away, which it does at every system call: a hundred clients would wait for long.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractAsyncContextManager

Result = TypeVar("Result")


async def in_turns(
    steps: Generator[None, None, Result], gate: AbstractAsyncContextManager[object] | None = None
) -> Result:
    """Run `steps` to its end and return its value; after each step whatever else is due on the loop runs.

    Work of more than one step goes on within `gate` after the first one: a semaphore, say, so that not everything large
    is under way at once. The first step is done without waiting. Raises what `steps` and `gate` raise; however it ends,
    cancelled too, `steps` is closed.
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

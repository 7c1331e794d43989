"""Long work on the loop, in steps: others get their turn after each.

Strategy: what takes long on a loop and is not the system's doing (checking messages, decoding) is a generator that
yields after each step of a millisecond or two. In a thread the same work would hold the interpreter's lock for 5 ms
each time that the loop gives it away, which it does at every system call: a hundred clients would wait for long.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator

Result = TypeVar("Result")


async def in_turns(steps: Generator[None, None, Result]) -> Result:
    """Run `steps` to its end, and whatever else is due after each of them; returns what it returns."""
    try:
        while True:
            next(steps)
            await asyncio.sleep(0)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        steps.close()

"""Repeating an idempotent call of a ZooKeeper session whose connection fails, as tests under faults do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from consumerd.net.zk.errors import ConnectionLost, NotConnected

T = TypeVar("T")

_FIRST_PAUSE, _LARGEST_PAUSE = 0.02, 1.0


async def retry(call: Callable[[], Awaitable[T]], *, deadline: float) -> T:
    """The result of `call`, which is repeated while the connection fails it, for up to `deadline` seconds.

    Raises what the call raises otherwise, and its last NotConnected or ConnectionLost when the time is up.
    """
    last: NotConnected | ConnectionLost | None = None
    pause = _FIRST_PAUSE
    limit = asyncio.timeout(deadline)
    try:
        async with limit:
            while True:
                try:
                    return await call()
                except (NotConnected, ConnectionLost) as error:
                    last = error
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LARGEST_PAUSE)
    except TimeoutError:
        if not limit.expired():
            raise
        raise last or NotConnected(f"ZooKeeper did not answer within {deadline:g} s") from None

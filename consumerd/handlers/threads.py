"""Blocking work of a handler in a thread, such that the thread has ended when a cancelled handler returns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")


async def in_thread(work: Callable[[], Result], *, interrupt: Callable[[], None] | None = None) -> Result:
    """Run `work()` in a thread and return its result.

    When this coroutine is cancelled, `interrupt()` is called (from the loop's thread; it should make `work` return
    soon), the thread's end is awaited, and only then the cancellation continues: an owner node is deleted after that,
    and a thread that still wrote would write beside the partition's next owner. The outcome of an interrupted `work`
    is dropped.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            # `wait` neither cancels the thread's future with us nor raises its error.
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            if interrupt is not None and cancelled is None:
                interrupt()
            cancelled = error
    if cancelled is not None:
        running.exception()
        raise cancelled
    return running.result()

"""Blocking work of a handler in a thread, such that the thread has ended when a cancelled handler returns.

Strategy: handlers have threads of their own. With those of the event loop (`asyncio.to_thread`) as many partitions as
there are threads would occupy them all on a slow disk, and asyncio looks up host names there: a connection to
ZooKeeper that breaks meanwhile could not be established again, and the session would end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from typing import Final, TypeVar

from consumerd.base.threads import until_done

Result = TypeVar("Result")

#: As many as the event loop has: more would not make a disk faster.
_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)


@cache
def _threads() -> ThreadPoolExecutor:
    """The threads of all handlers of this process; none is started before there is work."""
    return ThreadPoolExecutor(_THREADS, "handler")


async def in_thread(work: Callable[[], Result], *, interrupt: Callable[[], None] | None = None) -> Result:
    """Run `work()` in a thread and return its result.

    When this coroutine is cancelled, `interrupt()` is called (from the loop's thread; it should make `work` return
    soon), the thread's end is awaited, and only then the cancellation continues: an owner node is deleted after that,
    and a thread that still wrote would write beside the partition's next owner. The outcome of an interrupted `work`
    is dropped.
    """
    running = asyncio.get_running_loop().run_in_executor(_threads(), copy_context().run, work)
    cancelled = await until_done(running, interrupt)
    if cancelled is None:
        return running.result()
    running.exception()
    raise cancelled

"""Blocking work on files, in a thread that is always waited for.

Strategy: a thread cannot be cancelled, and its files (in a roll, a flush, a new log, a read) must not be touched,
closed or unlocked by others until it is done. So a cancellation is held back until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import structlog

from consumerd.base.errors import reason_of

logger = structlog.get_logger(__name__)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


async def in_thread(
    work: Callable[Parameters, Result], *arguments: Parameters.args, **options: Parameters.kwargs
) -> Result:
    """Run `work` in a thread. If cancelled, raise CancelledError after `work` has ended, with or without an error."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *arguments, **options))
    cancelled = await until_done(task)
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning(
            "failed_while_cancelled", work=getattr(work, "__qualname__", repr(work)), reason=reason_of(error)
        )
    raise cancelled


async def until_done(
    task: asyncio.Future[Any], interrupt: Callable[[], None] | None = None
) -> asyncio.CancelledError | None:
    """Return when `task` is done, however often the caller is cancelled, with a cancellation that it has to raise.

    `interrupt()` is called at the first one: it should make the task end soon.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            # `wait` neither cancels the task with us nor raises its error.
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            if interrupt is not None and cancelled is None:
                interrupt()
            cancelled = error
    return cancelled

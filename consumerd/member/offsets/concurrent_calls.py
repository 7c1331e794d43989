"""Concurrent calls: the first error cancels the others and is raised as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TypeVar, cast

_A = TypeVar("_A")
_T = TypeVar("_T")

#: Calls in flight at once.
READS_AT_ONCE = 48


async def each_of(items: list[_A], call: Callable[[_A], Coroutine[None, None, _T]]) -> list[_T]:
    """Run `call(item)` for all items, some hundred at a time; return the results in the items' order."""
    results: list[_T] = []
    for start in range(0, len(items), READS_AT_ONCE):
        results += await all_of([partial(call, item) for item in items[start : start + READS_AT_ONCE]])
    return results


async def all_of(calls: Sequence[Callable[[], Coroutine[None, None, _T]]]) -> list[_T]:
    """Run the calls together. The first error cancels the others, and is raised as itself and not as a group.

    Errors are noted, not raised, inside the group: before Python 3.13 a failing TaskGroup swallows a cancellation that
    comes at the same moment, and a member whose commits fail would never end.
    """
    failures: list[Exception] = []
    tasks: list[asyncio.Task[_T | None]] = []

    async def run(call: Callable[[], Coroutine[None, None, _T]]) -> _T | None:
        try:
            return await call()
        except Exception as error:
            failures.append(error)
            for task in tasks:  # also this one, which ends without another await
                task.cancel()
            return None

    async with asyncio.TaskGroup() as group:
        tasks += [group.create_task(run(call)) for call in calls]
    if failures:
        raise failures[0]
    return [cast("_T", task.result()) for task in tasks]

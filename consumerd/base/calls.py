"""Calls for many items, some of them at once.

Strategy: a fixed number of workers share one iterator, so that ten thousand topics neither become ten thousand tasks
nor flood the one connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

_A = TypeVar("_A")
_T = TypeVar("_T")

#: Reads in flight. More would be faster only with servers far away, and would delay other requests to the server.
READS_AT_ONCE = 48


async def read_all(
    items: Iterable[_A], read: Callable[[_A], Awaitable[_T]], *, at_once: int = READS_AT_ONCE
) -> dict[_A, _T]:
    """Call `read` for every item, `at_once` at a time; the result has the items' order.

    After the first error no further read is begun, and it is raised as itself when those under way have ended.
    """
    wanted = list(items)
    rest = iter(wanted)
    found: dict[_A, _T] = {}
    failures: list[Exception] = []
    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_once, len(wanted))):
            group.create_task(_work(rest, read, found, failures))
    if failures:
        raise failures[0]
    return {item: found[item] for item in wanted}


async def _work(
    rest: Iterator[_A], read: Callable[[_A], Awaitable[_T]], found: dict[_A, _T], failures: list[Exception]
) -> None:
    for item in rest:
        try:
            found[item] = await read(item)
        except Exception as error:  # noted, not raised: a failing TaskGroup may swallow a cancellation before 3.13
            failures.append(error)
        if failures:
            return

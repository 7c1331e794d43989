"""Requests that arrive while one is under way are made together in the next round, as in group commit.

Strategy: the first caller performs a round; requests that arrive meanwhile gather in the next one. So a thousand
partitions that begin or end together cost a few round trips and not a thousand, and a single caller does not wait. All
of a round continue in the same turn of the loop, so that what they ask for next is one request again. When a performing
caller is cancelled, the next waiting one performs its round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class _Round(Generic[_Item, _Result]):
    def __init__(self) -> None:
        self.items: dict[_Item, None] = {}
        self.ended = False
        self.result: _Result | None = None
        self.error: Exception | None = None


class Rounds(Generic[_Item, _Result]):
    """Calls `perform(items)`, never twice at the same time."""

    def __init__(self, perform: Callable[[list[_Item]], Awaitable[_Result]]) -> None:
        self._perform = perform
        self._next: _Round[_Item, _Result] = _Round()
        self._under_way: _Round[_Item, _Result] | None = None
        #: Set when the round under way has ended, or its performer was cancelled.
        self._over = asyncio.Event()

    async def take_part(self, items: Iterable[_Item]) -> _Result:
        """Have the items performed with those of others. Return or raise what `perform` did for all of them."""
        mine = self._next
        mine.items.update(dict.fromkeys(items))
        await asyncio.sleep(0)  # requests of the same turn of the loop take part
        while not mine.ended:
            if self._under_way is not None:
                await self._over.wait()
                continue
            if self._next is mine:
                self._next = _Round()
            await self._run(mine)
        if mine.error is not None:
            raise mine.error
        return mine.result  # type: ignore[return-value]  # ended without an error

    async def _run(self, mine: _Round[_Item, _Result]) -> None:
        self._under_way, self._over = mine, asyncio.Event()
        try:
            mine.result = await self._perform(list(mine.items))
        except Exception as error:
            mine.error = error
        finally:
            self._under_way = None
            self._over.set()
        mine.ended = True

    async def wait_for(self, items: Iterable[_Item]) -> None:
        """Return when no round with any of the items is under way."""
        while self._under_way is not None and not self._under_way.items.keys().isdisjoint(items):
            await self._over.wait()

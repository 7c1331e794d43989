"""Memory budgets in bytes: one for everything, one below it per partition.

Strategy: before it holds bytes, a task reserves the most that they can become, in its partition's budget first and then
in the common one, and waits there in line; later it resizes the reservation to what it really holds and finally
releases it. Lines are first come, first served, so that a large reservation is not starved by small ones.

What is held exceeds the limit by one batch at most, never by two. There are two ways to get there, and both need that
it is not exceeded already: a *large* reservation (a fetch that grew for one message) is granted when it is first in
line, since waiting until this size is free would make all behind it wait for the slowest handler; and decoding can
make a fetch larger than its reservation (compression, overhead per message), which `resize` takes without waiting,
because the bytes exist, while `solvent` is the gate before the next decoding.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

#: A reservation is large if it is more than this part of the limit.
LARGE = 16


class _Waiter(NamedTuple):
    amount: int
    future: asyncio.Future[None]


class ByteBudget:
    """At most `limit` bytes may be reserved, and in `parent` as well if there is one. For one event loop."""

    __slots__ = ("_gate", "_line", "_parent", "_used", "limit")

    def __init__(self, limit: int, parent: ByteBudget | None = None) -> None:
        if limit <= 0:
            raise ValueError("a byte budget must be positive")
        self.limit = limit
        self._parent = parent
        self._used = 0
        self._line: list[_Waiter] = []
        self._gate: dict[asyncio.Future[None], None] = {}  # a set that keeps its order

    @property
    def used(self) -> int:
        """Bytes reserved now; above `limit` when overdrawn."""
        return self._used

    async def reserve(self, amount: int) -> Reservation:
        """Wait for `amount` bytes here and in the parent."""
        await self._take(amount)
        if self._parent is not None:
            try:
                await self._parent._take(amount)  # noqa: SLF001 - the same class
            except BaseException:
                self._change(-amount)
                raise
        return Reservation(self, amount)

    def charge(self, amount: int) -> Reservation:
        """Reserve without waiting, for bytes that exist already; may overdraw."""
        budget: ByteBudget | None = self
        while budget is not None:
            budget._used += amount  # noqa: SLF001 - with less room nobody that waits may go on
            budget = budget._parent  # noqa: SLF001
        return Reservation(self, amount)

    async def solvent(self, reservation: Reservation) -> None:
        """Wait until neither this budget nor its parent is overdrawn by others than `reservation`."""
        while (budget := self._overdrawn(reservation)) is not None:
            freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            budget._gate[freed] = None  # noqa: SLF001
            try:
                await freed
            finally:
                del budget._gate[freed]  # noqa: SLF001

    @property
    def overdrawn(self) -> bool:
        """Whether `solvent` would wait, for a reservation that is charged next."""
        budget: ByteBudget | None = self
        while budget is not None and budget._used <= budget.limit:  # noqa: SLF001
            budget = budget._parent  # noqa: SLF001
        return budget is not None

    def _overdrawn(self, reservation: Reservation) -> ByteBudget | None:
        """Return this budget or the parent, if it is overdrawn by others than `reservation`."""
        budget: ByteBudget | None = self
        while budget is not None and budget._used - reservation.amount <= budget.limit:  # noqa: SLF001
            budget = budget._parent  # noqa: SLF001
        return budget

    async def _take(self, amount: int) -> None:
        waiter = _Waiter(amount, asyncio.get_running_loop().create_future())
        self._line.append(waiter)
        self._serve()
        try:
            await waiter.future
        except asyncio.CancelledError:
            if waiter.future.cancelled():
                self._serve()  # later ones may fit now
            else:
                self._change(-amount)  # granted at the moment of the cancellation
            raise

    def _change(self, amount: int) -> None:
        self._used += amount
        if self._gate or self._line:
            self._notify()

    def _notify(self) -> None:
        """Let those that wait look again."""
        for freed in self._gate:
            if not freed.done():
                freed.set_result(None)
        self._serve()

    def _serve(self) -> None:
        line = self._line
        while line:
            amount, future = line[0]
            if not future.done():
                large = amount * LARGE > self.limit
                if self._used + (0 if large else amount) > self.limit:
                    return
                self._used += amount
                future.set_result(None)
            line.pop(0)


class Reservation:
    """Bytes held in a budget and its parents. Must be released; releasing again does nothing."""

    __slots__ = ("_budget", "amount")

    def __init__(self, budget: ByteBudget, amount: int) -> None:
        self._budget = budget
        self.amount = amount

    def resize(self, amount: int) -> None:
        """Hold `amount` bytes from now on. Growing does not wait."""
        change = amount - self.amount
        self.amount = amount
        budget: ByteBudget | None = self._budget
        while budget is not None:
            # As `_change`, without a call: three times for each batch, and mostly nobody waits.
            budget._used += change  # noqa: SLF001 - two halves of one thing
            if budget._gate or budget._line:  # noqa: SLF001
                budget._notify()  # noqa: SLF001
            budget = budget._parent  # noqa: SLF001

    def grow(self, least: int, most: int) -> int:
        """Hold as many free bytes more as there are, up to `most`, if no reservation waits; return how many.

        If fewer than `least` are free, holds none of them and returns 0.
        """
        amount = most
        budget: ByteBudget | None = self._budget
        while budget is not None:
            amount = min(amount, budget.limit - budget._used)  # noqa: SLF001
            if budget._line or amount < least:  # noqa: SLF001
                return 0
            budget = budget._parent  # noqa: SLF001
        self.amount += amount
        budget = self._budget
        while budget is not None:
            budget._used += amount  # noqa: SLF001
            budget = budget._parent  # noqa: SLF001
        return amount

    def release(self) -> None:
        """Release all bytes."""
        self.resize(0)

"""Memory budgets in bytes: one for everything, one below it per partition.

Strategy: whoever is about to hold bytes reserves the most it can become, in its partition's budget first and then in
the common one, and waits there in line; later it resizes the reservation to what it really holds and finally releases
it. Lines are first come, first served, so that a large reservation is not starved by small ones, and a reservation
larger than the whole limit is granted when nothing else is held.

Decoding can make more of a fetch than its reservation (compression, 57 bytes of overhead per message). `resize` takes
that without waiting, since the bytes exist already, and overdraws; `solvent` is the gate before the next decoding.
Together: what is held never exceeds the limit by more than one batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple


class _Waiter(NamedTuple):
    amount: int
    future: asyncio.Future[None]


class ByteBudget:
    """At most `limit` bytes may be reserved, and in `parent` as well if there is one. For one event loop."""

    def __init__(self, limit: int, parent: ByteBudget | None = None) -> None:
        if limit <= 0:
            raise ValueError("a byte budget must be positive")
        self.limit = limit
        self._parent = parent
        self._used = 0
        self._line: deque[_Waiter] = deque()
        self._gate: set[asyncio.Future[None]] = set()

    @property
    def used(self) -> int:
        """Bytes reserved now; above `limit` when overdrawn."""
        return self._used

    @property
    def waiting(self) -> int:
        """How many wait for a reservation here."""
        return sum(not waiter.future.done() for waiter in self._line)

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
        reservation = Reservation(self, 0)
        reservation.resize(amount)
        return reservation

    async def solvent(self, reservation: Reservation) -> None:
        """Wait until neither this budget nor its parent is overdrawn by others than `reservation`."""
        budget: ByteBudget | None = self
        while budget is not None:
            if budget._used - reservation.amount <= budget.limit:  # noqa: SLF001
                budget = budget._parent  # noqa: SLF001
                continue
            freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            budget._gate.add(freed)  # noqa: SLF001
            try:
                await freed
            finally:
                budget._gate.discard(freed)  # noqa: SLF001
            budget = self

    async def _take(self, amount: int) -> None:
        waiter = _Waiter(amount, asyncio.get_running_loop().create_future())
        self._line.append(waiter)
        self._serve()
        try:
            await waiter.future
        except asyncio.CancelledError:
            if waiter.future.cancelled():
                self._serve()  # those behind may fit now
            else:
                self._change(-amount)  # granted in the moment of the cancellation
            raise

    def _change(self, amount: int) -> None:
        self._used += amount
        if amount < 0:
            for freed in self._gate:
                if not freed.done():
                    freed.set_result(None)
            self._serve()

    def _serve(self) -> None:
        line = self._line
        while line:
            amount, future = line[0]
            if not future.done():
                if self._used and self._used + amount > self.limit:
                    return
                self._used += amount
                future.set_result(None)
            line.popleft()


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
            budget._change(change)  # noqa: SLF001 - two halves of one thing
            budget = budget._parent  # noqa: SLF001

    def release(self) -> None:
        """Give everything back."""
        if self.amount:
            self.resize(0)

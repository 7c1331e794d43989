"""A batch on its way through the handler under test, as a task that the harness owns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING

from consumerd.base.partition import TopicPartition
from consumerd.testing.errors import ContractError, HarnessError

if TYPE_CHECKING:
    from consumerd.testing.records import DeliveredBatch


class Handover:
    """The messages of `partition` from `start_offset` to `next_offset`. Made by `HandlerHarness.begin`."""

    def __init__(
        self,
        partition: TopicPartition,
        start_offset: int,
        next_offset: int,
        work: Callable[[Handover], Coroutine[None, None, DeliveredBatch]],
        *,
        patience: float,
        why_waiting: Callable[[], str],
    ) -> None:
        self.partition = partition
        self.start_offset = start_offset
        self.next_offset = next_offset
        #: The tasks that there were before it.
        self.tasks_before = frozenset(asyncio.all_tasks())
        self._patience = patience
        self._why_waiting = why_waiting
        self._entered = asyncio.Event()
        self.task = asyncio.create_task(work(self), name=f"deliver {partition}")
        self.task.add_done_callback(self._ended)

    @property
    def done(self) -> bool:
        """Whether it has ended, in any way."""
        return self.task.done()

    def note_entered(self) -> None:
        """The handler was called with it."""
        self._entered.set()

    async def entered(self) -> None:
        """Return when the handler was called with it, or it ended before that."""
        await self._entered.wait()

    async def result(self) -> DeliveredBatch:
        """The result. Raises the handler's error, TimeoutError, and HarnessError when it was revoked."""
        try:
            await asyncio.wait({self.task}, timeout=self._patience)
        except asyncio.CancelledError:
            await cancel([self], self._patience)
            raise
        if not self.done:
            reason = self._why_waiting()
            await cancel([self], self._patience)
            raise TimeoutError(f"the handler has not returned from {self} within {self._patience:g} s{reason}")
        if self.task.cancelled():
            raise HarnessError(f"{self} was cancelled: its partition was revoked")
        return self.task.result()

    def __repr__(self) -> str:
        return f"<Handover {self.partition} {self.start_offset}-{self.next_offset}>"

    def _ended(self, task: asyncio.Task[DeliveredBatch]) -> None:
        self._entered.set()
        if not task.cancelled():
            task.exception()  # the caller gets it with the result


async def cancel(handovers: Sequence[Handover], patience: float) -> None:
    """Cancel and await the end. Raises ContractError for a handler that continues for `patience` seconds."""
    tasks = [each.task for each in handovers]
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    _, pending = await asyncio.wait(tasks, timeout=patience)
    if pending:
        names = ", ".join(repr(each) for each in handovers if not each.done)
        raise ContractError(f"{patience:g} s after its cancellation the handler still holds {names}")

"""A limit on how many messages a handler gets in a second, all partitions of a member together.

Strategy: the wait that pays for a batch comes after its delivery, so nothing waits between the fence
and the handler. Handled messages are marked before the wait: they can be committed, and a drain that ends the wait
loses nothing and repeats nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.handlers.api import Handler

if TYPE_CHECKING:
    from consumerd.handlers.context import HandlerContext
    from consumerd.handlers.messages import Batch
    from consumerd.partition import TopicPartition
    from consumerd.ports import Clock


class RateLimit(Handler):
    """Hands at most `rate` messages a second to `inner`, which has its retry policy around it."""

    def __init__(self, inner: Handler, rate: float, *, clock: Clock) -> None:
        self._inner = inner
        self._rate = rate
        self._clock = clock
        #: When the messages so far will have had their time.
        self._paid = -float("inf")

    async def start(self, context: HandlerContext) -> None:
        await self._inner.start(context)

    async def stop(self) -> None:
        await self._inner.stop()

    async def position(self, partition: TopicPartition) -> int | None:
        return await self._inner.position(partition)

    async def handle(self, batch: Batch) -> None:
        """Have `batch` handled, then wait for its share of time."""
        await self._inner.handle(batch)
        batch.mark(len(batch))
        now = self._clock.monotonic()
        self._paid = max(self._paid, now) + len(batch) / self._rate
        await self._clock.sleep(self._paid - now)

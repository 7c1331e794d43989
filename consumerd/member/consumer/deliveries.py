"""Batches on their way through a stream: how much was delivered, how much is handled, and when they end.

Strategy: the partition's work waits in `StreamSink.handle` while the stream returns the batch's messages, and a
`StreamedBatch` counts: `taken` messages were returned, `handled` of them are handled. The difference is what the
program holds. A delivery ends once, with a verdict: everything was handled, or the rest is given back.

A partition that is revoked ends at a boundary where the next owner can continue without repeating anything: only the
last message of a compressed one moves the position (golden notes, 2), so a compressed message that was begun is
delivered to its end while the drain's deadline allows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from consumerd.member.consumer.sinks import HandedBackError

if TYPE_CHECKING:
    from consumerd.handlers import Batch, Message


class StreamedBatch:
    """A batch that a stream delivers. `sink` is the sink that offered it."""

    __slots__ = ("_base", "_given", "_over", "batch", "handled", "length", "messages", "sink", "taken")

    def __init__(self, batch: Batch, sink: StreamSink, over: asyncio.Future[bool]) -> None:
        self.batch = batch
        self.sink = sink
        self.length = len(batch)
        #: The messages that are still to be returned.
        self.messages: Iterator[Message] = batch.messages()
        self.taken = 0
        self.handled = 0
        self._over = over
        #: The batch that was returned as a whole: all messages from number `_base` on.
        self._given: Batch | None = None
        self._base = 0

    @property
    def in_use(self) -> bool:
        """Whether the program holds some of its messages."""
        return self.taken > self.handled

    @property
    def at_boundary(self) -> bool:
        """Whether all handled messages can be committed."""
        count = self.handled
        return count == 0 or self.batch.prefix(count) > self.batch.prefix(count - 1)

    def give(self) -> Batch:
        """Return all remaining messages as one batch."""
        self._base, self.taken = self.taken, self.length
        self._given = self.batch.rest(self._base)
        self.messages = iter(())
        return self._given

    def settle(self) -> None:
        """Mark the handled messages in the batch, and those that the program marked itself."""
        handled = self.handled
        if self._given is not None:
            handled = max(handled, self._base + self._given.handled)
        if handled > self.batch.handled:
            self.batch.mark(handled)

    def end(self, *, whole: bool) -> None:
        """End the delivery: all is handled (`whole`), or the rest is given back."""
        if not self._over.done():
            self._over.set_result(whole)


class Offers(Protocol):
    """The operations of a sink on its stream."""

    def offer(self, delivery: StreamedBatch) -> None:
        """Deliver it in its turn."""
        ...

    def withdraw(self, delivery: StreamedBatch) -> None:
        """Deliver nothing more of it."""
        ...

    def reconsider(self, delivery: StreamedBatch) -> None:
        """Decide again whether it continues: its sink winds down, or holds."""
        ...


class StreamSink:
    """The sink of one partition (see `consumerd.member.consumer.sinks`): its batches go through `stream`, one at a
    time.
    """

    def __init__(self, stream: Offers, allowed: Callable[[], bool]) -> None:
        self._stream = stream
        self._delivery: StreamedBatch | None = None
        #: Whether messages may be delivered at this very moment.
        self.allowed = allowed
        self.winding = False
        self.held = False

    async def handle(self, batch: Batch) -> None:
        if self.winding:
            raise HandedBackError
        over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        delivery = self._delivery = StreamedBatch(batch, self, over)
        try:
            if not self.held:
                self._stream.offer(delivery)
            whole = await over
        finally:
            delivery.settle()
            self._delivery = None
            self._stream.withdraw(delivery)
        if not whole:
            raise HandedBackError

    def settle(self) -> None:
        if self._delivery is not None:
            self._delivery.settle()

    def wind_down(self) -> None:
        self.winding = True
        if self._delivery is not None:
            self._stream.reconsider(self._delivery)

    def discard(self) -> None:
        if self._delivery is not None:
            self._delivery.end(whole=False)
            self._stream.withdraw(self._delivery)

    def hold(self, held: bool) -> None:
        self.held = held
        if self._delivery is None:
            return
        if held:
            self._stream.reconsider(self._delivery)
        else:
            self._stream.offer(self._delivery)

"""Batches on their way through a stream: how much was delivered, how much is handled, and when they end.

Strategy: the partition's work waits in `StreamSink.handle` while the stream hands the batch out, and a `Delivery`
counts: `taken` messages were handed out, `handled` of them are done with. The difference is what the program has in
its hands. A delivery is over once, with a verdict: everything was handled, or the rest is given back.

A partition that goes away ends at a boundary where the next owner can go on without repeating anything: of the messages
of a compressed one only the last moves the position (golden notes, 2), so those that were begun are handed out to
the end while the drain's deadline allows it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from consumerd.consumer.sinks import HandedBackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from consumerd.handlers import Batch, Message


class Delivery:
    """A batch in the hands of a stream. `sink` is where it came from."""

    __slots__ = ("_base", "_given", "_over", "batch", "handled", "length", "messages", "sink", "taken")

    def __init__(self, batch: Batch, sink: StreamSink, over: asyncio.Future[bool]) -> None:
        self.batch = batch
        self.sink = sink
        self.length = len(batch)
        #: What is to be handed out still.
        self.messages: Iterator[Message] = batch.messages()
        self.taken = 0
        self.handled = 0
        self._over = over
        #: What was handed out as a batch: all from the message `_base` on.
        self._given: Batch | None = None
        self._base = 0

    @property
    def in_use(self) -> bool:
        """Whether the program has some of it in its hands."""
        return self.taken > self.handled

    @property
    def at_boundary(self) -> bool:
        """Whether all that is handled can be committed."""
        count = self.handled
        return count == 0 or self.batch.prefix(count) > self.batch.prefix(count - 1)

    def give(self) -> Batch:
        """Hand out all that is left as one batch."""
        self._base, self.taken = self.taken, self.length
        self._given = self.batch.rest(self._base)
        self.messages = iter(())
        return self._given

    def settle(self) -> None:
        """Mark in the batch what is handled, and what the program marked itself."""
        handled = self.handled
        if self._given is not None:
            handled = max(handled, self._base + self._given.handled)
        if handled > self.batch.handled:
            self.batch.mark(handled)

    def end(self, *, whole: bool) -> None:
        """It is over: all is handled, or the rest is given back."""
        if not self._over.done():
            self._over.set_result(whole)


class Offers(Protocol):
    """What a sink does with its stream."""

    def offer(self, delivery: Delivery) -> None:
        """Hand it out in its turn."""
        ...

    def withdraw(self, delivery: Delivery) -> None:
        """Hand out nothing more of it."""
        ...

    def reconsider(self, delivery: Delivery) -> None:
        """Its sink winds down, or holds: see what is to become of it."""
        ...


class StreamSink:
    """The sink of one partition (see `consumerd.consumer.sinks`): its batches go through `stream`, one at a time."""

    def __init__(self, stream: Offers, allowed: Callable[[], bool]) -> None:
        self._stream = stream
        self._delivery: Delivery | None = None
        #: Whether messages may be delivered at this very moment.
        self.allowed = allowed
        self.winding = False
        self.held = False

    async def handle(self, batch: Batch) -> None:
        if self.winding:
            raise HandedBackError
        over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        delivery = self._delivery = Delivery(batch, self, over)
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

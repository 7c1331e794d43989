"""Message streams: async iterators over the partitions that an assignment gives to one stream.

Strategy: the partitions' sinks offer their batches, and the stream returns their messages one after the other, in the
order of the offers. It has no task: iteration does the work. Within a batch the next message does not yield to the
loop; after `FRESH` seconds, and between batches, it does, and the fence is checked again: neither heartbeats nor other
streams starve, and no message is delivered after the lease ended. To read the clock costs a fifth of a message, so a
loop that does not wait reads it once for up to `TOGETHER` messages, as long as they come quickly; after any wait it is
read before the next message. So a process that was suspended may finish these few, and commits none of them.

A message counts as handled when the next one is requested, or when `ack` says so. So the message in the body of a loop
that failed, was cancelled, or broke out is delivered again, to the partition's owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Self

from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.member.consumer.errors import ConnectorStateError, ConsumerTimeoutError
from consumerd.member.consumer.sinks import HandedBackError, PartitionedHandler, Sink

if TYPE_CHECKING:
    from consumerd.handlers import Batch, Message


# Batches on their way through a stream: how much was delivered, how much is handled, and when they end.
#
# Strategy: the partition's work waits in `StreamSink.handle` while the stream returns the batch's messages, and a
# `StreamedBatch` counts: `taken` messages were returned, `handled` of them are handled. The difference is what the
# program holds. A delivery ends once, with a verdict: everything was handled, or the rest is given back.
#
# A partition that is revoked ends at a boundary where the next owner can continue without repeating anything: only the
# last message of a compressed one moves the position (golden notes, 2), so a compressed message that was begun is
# delivered to its end while the drain's deadline allows it.


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


class StreamSink(Sink):
    """The sink of one partition (see `consumerd.member.consumer.sinks`): its batches go through `stream`, one at a
    time.
    """

    def __init__(self, stream: MessageStream, allowed: Callable[[], bool]) -> None:
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


#: Seconds for which a check of the fence is valid, and the loop may be kept waiting.
FRESH = 0.01
#: The most messages between two looks at the clock.
TOGETHER = 16
#: Seconds between checks while the fence blocks delivery.
CLOSED_POLL = 0.05
_NEVER = float("-inf")


class MessageStream:
    """An async iterator of messages, for one task at a time. Made by a `ConsumerConnector`.

    `topic` is None for the streams of a filter, whose messages name theirs. `timeout` is the consumer timeout in
    seconds: then ConsumerTimeoutError is raised, and iterating again continues. Ends when the connector is shut down,
    with the error that stopped its member, if there was one.
    """

    def __init__(self, topic: str | None, number: int, *, timeout: float | None, clock: Clock) -> None:
        self.topic = topic
        self.number = number
        self._timeout = timeout
        self._now = clock.monotonic
        #: Those that were offered, the current one too, as a set that keeps its order.
        self._ready: dict[StreamedBatch, None] = {}
        self._current: StreamedBatch | None = None
        self._fresh_until = _NEVER
        self._pace = _Pace()
        self._news = asyncio.Event()
        self._waiting = False
        self._ended = False
        self._failure: BaseException | None = None
        #: Whether an iteration raised the failure that stopped the member.
        self.failure_told = False
        #: The task that iterated last, and whether it has left the iteration.
        self._task: asyncio.Task[object] | None = None
        self._left = False

    def __repr__(self) -> str:
        return f"<MessageStream {self.number} of {self.topic or 'a filter'}>"

    # -- for the program

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        delivery = self._current
        if delivery is not None:
            taken = delivery.handled = delivery.taken
            if taken < self._pace.until or self._is_fresh(taken):
                for message in delivery.messages:
                    delivery.taken = taken + 1
                    return message
            self._decide(delivery)
        delivery = await self._take()
        delivery.taken += 1
        return next(delivery.messages)

    def batches(self) -> BatchStream:
        """The same stream as an iterator of batches, which costs much less per message.

        A batch is handled when the next one is requested; `batch.mark(n)` marks its first `n` messages as handled. The
        two ways of iterating may alternate: a batch then begins after the last message.
        """
        return BatchStream(self._next_batch)

    def ack(self) -> None:
        """Mark the last message or batch as handled: for a commit in the loop's body, or before leaving the loop."""
        if self._current is not None:
            self._current.handled = self._current.taken
            self._decide(self._current)

    async def _next_batch(self) -> Batch:
        self.ack()
        return (await self._take()).give()

    def _is_fresh(self, taken: int) -> bool:
        """Whether the last check of the fence is still valid, by the clock; if so, for some more messages as well."""
        now = self._now()
        if now >= self._fresh_until:
            return False
        self._pace.go_on(taken, now)
        return True

    async def _take(self) -> StreamedBatch:
        """Return the delivery that continues, which has messages left and which the fence allows at this moment."""
        if self._waiting:
            raise ConnectorStateError(f"{self!r} is iterated by two tasks at once; create more streams instead")
        self._task, self._left = asyncio.current_task(), False
        deadline = None if self._timeout is None else self._now() + self._timeout
        self._waiting = True
        try:
            await asyncio.sleep(0)
            while True:
                delivery = self._current or next(iter(self._ready), None)
                if delivery is None:
                    self._raise_at_end()
                    await self._wait(deadline, None)
                elif delivery.taken == delivery.length:
                    # The task that took its last message has left, and the partition was paused since.
                    delivery.handled = delivery.taken
                    self._decide(delivery)
                elif delivery.sink.allowed():
                    self._current = delivery
                    # When a partition is revoked, each message may be the last.
                    self._fresh_until = _NEVER if delivery.sink.winding else self._now() + FRESH
                    return delivery
                else:
                    await self._wait(deadline, CLOSED_POLL)
        finally:
            self._waiting = False

    def _raise_at_end(self) -> None:
        if self._failure is not None:
            self.failure_told = True
            raise self._failure
        if self._ended:
            raise StopAsyncIteration

    async def _wait(self, deadline: float | None, longest: float | None) -> None:
        """Wait for a change, for `longest` seconds at most. Raises ConsumerTimeoutError at the deadline."""
        left = None if deadline is None else deadline - self._now()
        if left is not None and left <= 0:
            assert self._timeout is not None
            raise ConsumerTimeoutError(self._timeout)
        self._news.clear()
        limits = [limit for limit in (left, longest) if limit is not None]
        try:
            async with asyncio.timeout(min(limits, default=None)):
                await self._news.wait()
        except TimeoutError:
            return  # the caller checks whether it was the deadline

    # -- for the sinks and the connector

    @property
    def deserted(self) -> bool:
        """Whether no task will continue the iteration after the current message."""
        return self._left or self._task is None or self._task.done()

    def offer(self, delivery: StreamedBatch) -> None:
        """Deliver it in its turn."""
        self._ready[delivery] = None
        self._news.set()

    def withdraw(self, delivery: StreamedBatch) -> None:
        """Deliver nothing more of it."""
        self._ready.pop(delivery, None)
        if delivery is self._current:
            self._current = None

    def reconsider(self, delivery: StreamedBatch) -> None:
        """Decide again: its sink winds down, or holds. A task that still iterates may finish its messages."""
        self._fresh_until = _NEVER
        self._pace.stop()
        if delivery is not self._current or not delivery.in_use or self.deserted:
            self._decide(delivery)

    def _decide(self, delivery: StreamedBatch) -> None:
        """End, withdraw or keep a delivery of which nothing is in use."""
        sink = delivery.sink
        if delivery.handled == delivery.length:
            delivery.end(whole=True)
        elif sink.winding and (sink.held or self.deserted or delivery.at_boundary):
            delivery.end(whole=False)
        elif not sink.held:
            return
        self.withdraw(delivery)

    def leave(self, task: asyncio.Task[object] | None) -> None:
        """Note that `task` has left the iteration: if it is the one that iterates, its messages are given back."""
        if self._task is task:
            self._left = True

    def end(self, failure: BaseException | None) -> None:
        """End the stream, as the member has left the group."""
        self._ended = True
        self._failure = failure
        self._news.set()


class _Pace:
    """For how many messages the clock need not be read: those before number `until` of the delivery."""

    def __init__(self) -> None:
        self.until = 0
        self._looked = _NEVER
        self._together = 1
        #: Whether the loop will call `_turned`.
        self._awaited = False

    def go_on(self, taken: int, now: float) -> None:
        """Read the clock, which says `now`, after some more messages: one, where the last ones took long."""
        self._together = TOGETHER if now - self._looked < self._together * FRESH / TOGETHER else 1
        self._looked = now
        self.until = taken + self._together
        if not self._awaited:
            self._awaited = True
            asyncio.get_running_loop().call_soon(self._turned)

    def stop(self) -> None:
        """Read the clock before the next message."""
        self.until = 0

    def _turned(self) -> None:
        """Stop: the program has waited, for how long is unknown."""
        self._awaited = False
        self.until = 0


class BatchStream:
    """An async iterator of the batches of a stream."""

    def __init__(self, following: Callable[[], Awaitable[Batch]]) -> None:
        self._following = following

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        return await self._following()


class StreamHandler(PartitionedHandler):
    """The member's handler: gives each partition the sink of the stream for which it was claimed.

    Streams need no preparation, and have no position of their own; a listener may seek.
    """

    def __init__(self, find: Callable[[str, int], MessageStream]) -> None:
        self._find = find

    def for_partition(self, partition: TopicPartition, stream: int, allowed: Callable[[], bool]) -> Sink:
        """Return a sink of our stream number `stream` of the partition's topic."""
        return StreamSink(self._find(partition.topic, stream), allowed)

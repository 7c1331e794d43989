"""Sinks: what takes the messages of one owned partition, a handler or a stream.

Strategy: one `Sink` per ownership of a partition, made when its flow starts. A plain handler (the daemon's) is one sink
behind all partitions and learns nothing of ownership. The streams of the library (`consumerd.consumer.streams`) hold a
batch for long, hand it out message by message, and therefore have to report how far they are, and can be
drained and paused. A sink that gives a batch back unfinished marks what was handled and raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.handlers import Batch, Handler, HandlerContext
    from consumerd.partition import TopicPartition


class HandedBackError(Exception):
    """The sink gave a batch back before all of it was handled. Control flow between a sink and the partition's work."""


class Sink(Protocol):
    """Takes the batches of one partition, one at a time. All but `handle` takes effect at once and does not wait."""

    async def handle(self, batch: Batch) -> None:
        """Handle the batch. Returning confirms all of it. Raises HandedBackError; else as `Handler.handle`."""
        ...

    def settle(self) -> None:
        """Mark in the batch in hand what of it is handled by now."""
        ...

    def wind_down(self) -> None:
        """The partition goes away: begin nothing new, and end `handle` as soon as what was begun is handled."""
        ...

    def discard(self) -> None:
        """A seek: deliver nothing more of the current batch."""
        ...

    def hold(self, held: bool) -> None:
        """Hand out nothing while `held`."""
        ...


@runtime_checkable
class PartitionedHandler(Protocol):
    """A handler that has a sink for each partition. `start`, `stop` and `position` are those of `Handler`."""

    async def start(self, context: HandlerContext) -> None: ...

    async def stop(self) -> None: ...

    async def position(self, partition: TopicPartition) -> int | None: ...

    def for_partition(self, partition: TopicPartition, stream: int, allowed: Callable[[], bool]) -> Sink:
        """The sink for a partition that was claimed for our stream number `stream`.

        `allowed()` says whether messages of this ownership may be delivered at this very moment (see `Fence`).
        """
        ...


class PlainHandler:
    """A handler without sinks of its own: batches of all partitions pass through to it, and are always finished."""

    def __init__(self, handler: Handler) -> None:
        self.replace(handler)

    def replace(self, handler: Handler) -> None:
        """Pass batches to `handler` from now on. Nothing may be in hand; starting and stopping is the caller's."""
        self.start = handler.start
        self.stop = handler.stop
        self.position = handler.position
        self._sink = _PassThrough(handler)

    def for_partition(self, partition: TopicPartition, stream: int, allowed: Callable[[], bool]) -> Sink:
        """The same for all."""
        return self._sink


class _PassThrough:
    def __init__(self, handler: Handler) -> None:
        self.handle = handler.handle

    def settle(self) -> None:
        """Nothing to do: a handler marks by itself."""

    def wind_down(self) -> None:
        """Nothing to do: no further batch comes."""

    def discard(self) -> None:
        """Nothing to do: what a handler has begun it ends, and it counts for nothing."""

    def hold(self, held: bool) -> None:
        """Nothing to do: what a handler has begun it ends."""

"""Sinks: the receivers of one owned partition's messages, a handler or a stream.

Strategy: one `Sink` per ownership of a partition, made when its flow starts. A plain handler (the daemon's) is one sink
for all partitions and does not see ownership. The streams of the library (`consumerd.member.consumer.streams`) hold a
batch for long, return it message by message, and therefore report how far they are, and can be drained and
paused. A sink that gives a batch back unfinished marks what was handled and raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from consumerd.base.partition import TopicPartition

if TYPE_CHECKING:
    from consumerd.handlers import Batch, Handler, HandlerContext


class HandedBackError(Exception):
    """The sink gave a batch back before all of it was handled. Control flow between a sink and the partition's work."""


class Sink:
    """Takes the batches of one partition, one at a time. All but `handle` takes effect at once and does not wait.

    A sink that finishes each batch that it has begun needs no more than `handle`.
    """

    async def handle(self, batch: Batch) -> None:
        """Handle the batch. Returning confirms all of it. Raises HandedBackError; else as `Handler.handle`."""
        raise NotImplementedError

    def settle(self) -> None:
        """Mark the messages of the current batch that are handled by now."""

    def wind_down(self) -> None:
        """Begin nothing new, and end `handle` when what was begun is handled: the partition is revoked."""

    def discard(self) -> None:
        """Deliver nothing more of the current batch, because of a seek."""

    def hold(self, held: bool) -> None:
        """Deliver nothing while `held`."""


@runtime_checkable
class PartitionedHandler(Protocol):
    """A handler that has a sink for each partition. `start`, `stop` and `position` are those of `Handler`.

    By default nothing is to be prepared, and there is no position of its own.
    """

    async def start(self, context: HandlerContext) -> None:
        return

    async def stop(self) -> None:
        return

    async def position(self, partition: TopicPartition) -> int | None:
        return None

    def for_partition(self, partition: TopicPartition, stream: int, allowed: Callable[[], bool]) -> Sink:
        """Return the sink for a partition that was claimed for our stream number `stream`.

        `allowed()` says whether messages of this ownership may be delivered at this moment (see `Fence`).
        """
        ...


class PlainHandler:
    """A handler without sinks of its own: batches of all partitions pass through to it, and are always finished."""

    def __init__(self, handler: Handler) -> None:
        self.replace(handler)

    def replace(self, handler: Handler) -> None:
        """Pass batches to `handler` from now on. No batch may be under way; the caller starts and stops handlers."""
        self.start = handler.start
        self.stop = handler.stop
        self.position = handler.position
        self._sink = _PassThrough(handler)

    def for_partition(self, partition: TopicPartition, stream: int, allowed: Callable[[], bool]) -> Sink:
        """Return the one sink of all partitions."""
        return self._sink


class _PassThrough(Sink):
    def __init__(self, handler: Handler) -> None:
        self.handle = handler.handle  # type: ignore[method-assign]  # one call less for each batch

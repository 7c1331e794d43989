"""Defects of daemons with the handler `forward`, put in place in memory: what faults at a step have to find.

Strategy: as in `tests.simulation.planted`. Two are those of the producer that it uses, some are the handler's, and the
others are where the daemon's runtime and the handler meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch
from consumerd.handlers.forward import handler
from consumerd.handlers.forward.feed import PartitionFeed
from consumerd.handlers.forward.handler import ForwardHandler
from consumerd.handlers.forward.identity import read_identity
from consumerd.member.consumer.partition_work import PartitionWork
from tests.simulation.defects import Defects
from tests.simulation.planted_producer import MUTATIONS as OF_PRODUCER

if TYPE_CHECKING:
    import asyncio

_PATCH = mock.patch.object
MUTATIONS = Defects({each: OF_PRODUCER[each] for each in ("acknowledged_when_sent", "renumbered_when_sent_again")})


@MUTATIONS.instead(PartitionFeed, "_known_in")
async def known_sent_again(self: PartitionFeed, batch: Any) -> int:
    """Messages that the target has already are sent again."""
    return 0


@MUTATIONS.instead(handler, "last_forwarded")
async def first_identity_found(target: Any, topic: str, place: int, source: Any, cluster: str | None) -> Any:
    """A partition continues after its first message on the target instead of its last one."""
    start, end = await target.bounds(topic, place)
    async for records in target.read(topic, place, start, end):
        return read_identity(records[0].headers)
    return None


@MUTATIONS.instead(handler, "read_identity")
def identity_of_another_cluster_found(headers: Any) -> Any:
    """A partition continues after a message of the same place in another cluster."""
    identity = read_identity(headers)
    return None if identity is None else identity._replace(cluster=None)


@MUTATIONS.instead(PartitionFeed, "_deliver")
async def deliveries_not_confirmed(self: PartitionFeed, chunk: list[Any]) -> None:
    """A chunk counts as delivered when the producer is done with it, whatever became of it."""
    for each in chunk:
        await self._producer.send(
            self.topic, each.value, key=each.key, partition=each.partition, timestamp=each.timestamp,
            headers=each.headers,
        )  # fmt: skip
    await self._producer.flush()


@MUTATIONS.add
def marked_before_acknowledged() -> Iterator[None]:
    """Messages are marked as handled when they are sent."""
    deliver = PartitionFeed._deliver

    async def send(self: PartitionFeed, chunk: Any, batch: Batch) -> None:
        batch.mark(batch.handled + len(chunk))
        await deliver(self, chunk)

    with _PATCH(PartitionFeed, "_send", send):
        yield


@MUTATIONS.add
def target_not_asked() -> Iterator[None]:
    """A partition continues at the committed offset, whatever the target has."""

    async def position(self: ForwardHandler, partition: TopicPartition) -> int | None:
        await self._close(partition)
        return None

    async def none_known(self: PartitionFeed, batch: Any) -> int:
        return 0

    with _PATCH(ForwardHandler, "position", position), _PATCH(PartitionFeed, "_known_in", none_known):
        yield


@MUTATIONS.add
def cancelled_at_once() -> Iterator[None]:
    """A drain cancels the handler instead of waiting for it."""
    drain = PartitionWork.drain

    async def drain_now(self: PartitionWork, task: asyncio.Task[None], deadline: float) -> None:
        await drain(self, task, 0.0)

    with _PATCH(PartitionWork, "drain", drain_now):
        yield


@MUTATIONS.add
def all_marked_when_cancelled() -> Iterator[None]:
    """A handler that is cancelled counts its batch as handled."""
    forward = PartitionFeed.forward

    async def forward_and_mark(self: PartitionFeed, batch: Batch) -> None:
        try:
            await forward(self, batch)
        finally:
            batch.mark(len(batch))

    with cancelled_at_once(), _PATCH(PartitionFeed, "forward", forward_and_mark):
        yield

"""Defects of daemons with the handler `forward`, put in place in memory: what faults at a step have to find.

Strategy: as in `tests.simulation.planted`. Some are those of the handler alone (`planted_forward`) and of the producer,
others are where the daemon's runtime and the handler meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch
from consumerd.handlers.forward.feed import PartitionFeed
from consumerd.handlers.forward.handler import ForwardHandler
from consumerd.member.consumer.partition_work import PartitionWork
from tests.simulation.defects import Defects
from tests.simulation.planted_forward import MUTATIONS as OF_HANDLER

if TYPE_CHECKING:
    import asyncio

_PATCH = mock.patch.object
#: Defects that only faults of the handler's own simulation show: a partition that refuses, another cluster's messages.
_OF_HANDLER_ALONE = {"deliveries_not_confirmed", "identity_of_another_cluster_found"}

MUTATIONS = Defects({name: each for name, each in OF_HANDLER.items() if name not in _OF_HANDLER_ALONE})


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

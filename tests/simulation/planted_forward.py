"""Defects of the handler `forward`, put in place in memory: what faults at a request have to find.

Strategy: as in `tests.simulation.planted`. The last two are defects of the producer that it uses.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

from consumerd.handlers.forward import handler
from consumerd.handlers.forward.feed import PartitionFeed
from consumerd.handlers.forward.identity import read_identity
from tests.simulation.defects import Defects
from tests.simulation.planted_producer import MUTATIONS as OF_PRODUCER

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

"""Defects of the handler `forward`, put in place in memory: what faults at a request have to find.

Strategy: as in `tests.simulation.planted`. The last two are defects of the producer that it uses.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from consumerd.handlers.forward import handler
from consumerd.handlers.forward.feed import PartitionFeed
from consumerd.handlers.forward.identity import read_identity
from tests.simulation.planted_producer import acknowledged_when_sent, renumbered_when_sent_again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATCH = mock.patch.object


@contextmanager
def known_sent_again() -> Iterator[None]:
    """Messages that the target has already are sent again."""

    async def none_known(self: PartitionFeed, batch: Any) -> int:
        return 0

    with _PATCH(PartitionFeed, "_known_in", none_known):
        yield


@contextmanager
def first_identity_found() -> Iterator[None]:
    """A partition continues after its first message on the target instead of its last one."""

    async def first_forwarded(target: Any, topic: str, place: int, source: Any, cluster: str | None) -> Any:
        start, end = await target.bounds(topic, place)
        async for records in target.read(topic, place, start, end):
            return read_identity(records[0].headers)
        return None

    with _PATCH(handler, "last_forwarded", first_forwarded):
        yield


@contextmanager
def identity_of_another_cluster_found() -> Iterator[None]:
    """A partition continues after a message of the same place in another cluster."""

    def read_any(headers: Any) -> Any:
        identity = read_identity(headers)
        return None if identity is None else identity._replace(cluster=None)

    with _PATCH(handler, "read_identity", read_any):
        yield


@contextmanager
def deliveries_not_confirmed() -> Iterator[None]:
    """A chunk counts as delivered when the producer is done with it, whatever became of it."""

    async def deliver_only(self: PartitionFeed, chunk: list[Any]) -> None:
        for each in chunk:
            await self._producer.send(
                self.topic, each.value, key=each.key, partition=each.partition, timestamp=each.timestamp,
                headers=each.headers,
            )  # fmt: skip
        await self._producer.flush()

    with _PATCH(PartitionFeed, "_deliver", deliver_only):
        yield


MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each
    for each in (
        known_sent_again,
        first_identity_found,
        identity_of_another_cluster_found,
        deliveries_not_confirmed,
        acknowledged_when_sent,
        renumbered_when_sent_again,
    )
}

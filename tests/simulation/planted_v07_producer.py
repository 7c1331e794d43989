"""Defects of the producers for brokers of 0.7, put in place in memory: what faults at a request have to find.

Strategy: as in `tests.simulation.planted`. Three of them are in `planted_mirror`, as the mirror uses the same producer.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from consumerd.net import ConnectError
from consumerd.producer import AsyncProducer
from consumerd.producer.v07 import links
from consumerd.producer.v07.dispatch import Dispatch
from consumerd.producer.v07.links import BrokerLinks
from tests.simulation.planted_mirror import end_of_connection_ignored, not_confirmed, sent_again_behind_the_next

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATCH = mock.patch.object


@contextmanager
def uncertain_called_unsent() -> Iterator[None]:
    """A connection that ended behind a batch counts as one that could not be made."""
    with _PATCH(links, "_uncertain", lambda error: ConnectError(str(error))):
        yield


@contextmanager
def lost_connection_forgotten() -> Iterator[None]:
    """A connection that ended with something unconfirmed on it is replaced, and no flush reports it."""
    connected = BrokerLinks._connected

    async def connected_anew(self: BrokerLinks, address: Any, link: Any) -> Any:
        if link.connection is not None and link.connection.closed:
            link.unconfirmed = None
        return await connected(self, address, link)

    with _PATCH(BrokerLinks, "_connected", connected_anew):
        yield


@contextmanager
def failures_not_reported() -> Iterator[None]:
    """Messages that were given up are not reported."""
    with _PATCH(Dispatch, "failed", lambda self, events, error: None):
        yield


@contextmanager
def flushed_without_the_queue() -> Iterator[None]:
    """A flush of an asynchronous producer does not wait for what is queued."""

    async def flush(self: AsyncProducer) -> None:
        await self._producer.flush()

    with _PATCH(AsyncProducer, "flush", flush):
        yield


@contextmanager
def closed_without_the_queue() -> Iterator[None]:
    """A close of an asynchronous producer leaves out what is queued."""
    drain = AsyncProducer._drain

    async def drain_nothing(self: AsyncProducer, timeout: float | None) -> None:
        self._queue.abandon()
        await drain(self, timeout)

    with _PATCH(AsyncProducer, "_drain", drain_nothing):
        yield


MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each
    for each in (
        not_confirmed,
        end_of_connection_ignored,
        sent_again_behind_the_next,
        uncertain_called_unsent,
        lost_connection_forgotten,
        failures_not_reported,
        flushed_without_the_queue,
        closed_without_the_queue,
    )
}

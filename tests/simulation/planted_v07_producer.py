"""Defects of the producers for brokers of 0.7, put in place in memory: what faults at a request have to find.

Strategy: as in `tests.simulation.planted`. Three of them are in `planted_mirror`, as the mirror uses the same producer.
"""

from __future__ import annotations

from typing import Any

from consumerd.net.errors import ConnectError
from consumerd.producer import AsyncProducer
from consumerd.producer.v07 import links
from consumerd.producer.v07.dispatch import Dispatch
from consumerd.producer.v07.links import BrokerLinks
from tests.simulation.defects import Defects
from tests.simulation.planted_mirror import MUTATIONS as OF_MIRROR

MUTATIONS = Defects(
    {each: OF_MIRROR[each] for each in ("not_confirmed", "end_of_connection_ignored", "sent_again_behind_the_next")}
)


@MUTATIONS.instead(links, "_uncertain")
def uncertain_called_unsent(error: Any) -> Any:
    """A connection that ended behind a batch counts as one that could not be made."""
    return ConnectError(str(error))


@MUTATIONS.around(BrokerLinks, "_connected")
async def lost_connection_forgotten(connected: Any, self: BrokerLinks, address: Any, link: Any) -> Any:
    """A connection that ended with something unconfirmed on it is replaced, and no flush reports it."""
    if link.connection is not None and link.connection.closed:
        link.unconfirmed = None
    return await connected(self, address, link)


@MUTATIONS.instead(Dispatch, "failed")
def failures_not_reported(self: Any, events: Any, error: Any) -> None:
    """Messages that were given up are not reported."""


@MUTATIONS.instead(AsyncProducer, "flush")
async def flushed_without_the_queue(self: AsyncProducer) -> None:
    """A flush of an asynchronous producer does not wait for what is queued."""
    await self._producer.flush()


@MUTATIONS.around(AsyncProducer, "_drain")
async def closed_without_the_queue(drain: Any, self: AsyncProducer, timeout: float | None) -> None:
    """A close of an asynchronous producer leaves out what is queued."""
    self._queue.abandon()
    await drain(self, timeout)

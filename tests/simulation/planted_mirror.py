"""Defects of the mirror, put in place in memory: what faults at a request or an await have to find.

Strategy: as in `tests.simulation.planted`. Some of them are defects of the producer that it uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest import mock

from consumerd.handlers import Batch
from consumerd.handlers.mirror.handler import MirrorHandler
from consumerd.handlers.mirror.placing import KeepingPartitioner
from consumerd.handlers.mirror.topics import MirrorTopics
from consumerd.net.errors import ConnectionClosedError
from consumerd.producer import UncertainError
from consumerd.producer.v07.links import BrokerLinks
from consumerd.producer.v07.sending import Sender
from tests.simulation.defects import Defects

_PATCH = mock.patch.object
MUTATIONS = Defects()


@MUTATIONS.instead(BrokerLinks, "_confirm")
async def not_confirmed(self: BrokerLinks, connection: Any, topic: str) -> None:
    """A batch is handled when its bytes are on their way."""


@MUTATIONS.around(BrokerLinks, "_confirm")
async def end_of_connection_ignored(confirm: Any, self: BrokerLinks, connection: Any, topic: str) -> None:
    """A batch whose connection ended before the confirmation counts as delivered."""
    with suppress(ConnectionClosedError):
        await confirm(self, connection, topic)


@MUTATIONS.add
def sent_again_behind_the_next() -> Iterator[None]:
    """A batch whose connection ended is sent again after the next one."""
    attempt = Sender._attempt
    waiting: list[Any] = []

    async def attempt_or_wait(self: Sender, pending: list[Any], *options: bool) -> None:
        batch = list(pending)
        try:
            await attempt(self, pending, *options)
            while waiting:
                await attempt(self, waiting.pop(), *options)
        except UncertainError:
            waiting.append(batch)

    with _PATCH(Sender, "_attempt", attempt_or_wait):
        yield


@MUTATIONS.around(MirrorHandler, "handle")
async def marked_before_sent(handle: Any, self: MirrorHandler, batch: Batch) -> None:
    """Messages are marked as handled before they are sent."""
    same = _unmarked(batch)
    batch.mark(len(batch))
    await handle(self, same)


@MUTATIONS.around(MirrorHandler, "handle")
async def marked_when_all_is_sent(handle: Any, self: MirrorHandler, batch: Batch) -> None:
    """Another attempt sends messages again that the target has confirmed."""
    await handle(self, _unmarked(batch))


def _unmarked(batch: Batch) -> Batch:
    """The same messages, of which none is handled."""
    return Batch(batch.partition, batch._content, first=batch._first, length=len(batch))


@MUTATIONS.add
def placed_by_turns() -> Iterator[None]:
    """Batches go to the partitions of the target by turns."""
    counts = iter(range(1_000_000))
    with _PATCH(KeepingPartitioner, "partition", lambda self, key, count: next(counts) % count):
        yield


@MUTATIONS.instead(MirrorTopics, "ensure")
async def topic_not_made(self: MirrorTopics, topic: str) -> None:
    """Messages are sent to a topic that is not registered yet: only its partition 0 is known."""

"""Defects of the mirror, put in place in memory: what faults at a request or an await have to find.

Strategy: as in `tests.simulation.planted`. Some of them are defects of the producer that it uses.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from unittest import mock

from consumerd.handlers import Batch
from consumerd.handlers.mirror.handler import MirrorHandler
from consumerd.handlers.mirror.placing import KeepingPartitioner
from consumerd.handlers.mirror.topics import MirrorTopics
from consumerd.net import ConnectionClosedError
from consumerd.producer import UncertainError
from consumerd.producer.v07.links import BrokerLinks
from consumerd.producer.v07.sending import Sender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATCH = mock.patch.object


@contextmanager
def not_confirmed() -> Iterator[None]:
    """A batch is handled when its bytes are on their way."""

    async def confirm(self: BrokerLinks, connection: Any, topic: str) -> None:
        """Leave it to the broker."""

    with _PATCH(BrokerLinks, "_confirm", confirm):
        yield


@contextmanager
def end_of_connection_ignored() -> Iterator[None]:
    """A batch whose connection ended before the confirmation counts as delivered."""
    confirm = BrokerLinks._confirm

    async def confirm_or_not(self: BrokerLinks, connection: Any, topic: str) -> None:
        with suppress(ConnectionClosedError):
            await confirm(self, connection, topic)

    with _PATCH(BrokerLinks, "_confirm", confirm_or_not):
        yield


@contextmanager
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


@contextmanager
def marked_before_sent() -> Iterator[None]:
    """Messages are marked as handled before they are sent."""
    handle = MirrorHandler.handle

    async def mark_and_handle(self: MirrorHandler, batch: Batch) -> None:
        same = _unmarked(batch)
        batch.mark(len(batch))
        await handle(self, same)

    with _PATCH(MirrorHandler, "handle", mark_and_handle):
        yield


@contextmanager
def marked_when_all_is_sent() -> Iterator[None]:
    """Another attempt sends messages again that the target has confirmed."""
    handle = MirrorHandler.handle

    async def handle_unmarked(self: MirrorHandler, batch: Batch) -> None:
        await handle(self, _unmarked(batch))

    with _PATCH(MirrorHandler, "handle", handle_unmarked):
        yield


def _unmarked(batch: Batch) -> Batch:
    """The same messages, of which none is handled."""
    return Batch(batch.partition, batch._content, first=batch._first, length=len(batch))


@contextmanager
def placed_by_turns() -> Iterator[None]:
    """Batches go to the partitions of the target by turns."""
    counts = iter(range(1_000_000))
    with _PATCH(KeepingPartitioner, "partition", lambda self, key, count: next(counts) % count):
        yield


@contextmanager
def topic_not_made() -> Iterator[None]:
    """Messages are sent to a topic that is not registered yet: only its partition 0 is known."""

    async def ensure(self: MirrorTopics, topic: str) -> None:
        """Leave it to the first message."""

    with _PATCH(MirrorTopics, "ensure", ensure):
        yield


MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each
    for each in (
        not_confirmed,
        end_of_connection_ignored,
        sent_again_behind_the_next,
        marked_before_sent,
        marked_when_all_is_sent,
        placed_by_turns,
        topic_not_made,
    )
}

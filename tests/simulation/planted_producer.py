"""Defects of the producer for brokers of 0.8 and later, put in place in memory: what faults at a request have to find.

Strategy: as in `tests.simulation.planted`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from consumerd.base.errors import BrokerError
from consumerd.producer.v08.delivery import BatchOutcome, ProduceRequests
from consumerd.producer.v08.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from consumerd.wire.v08.message_types import ProduceResponsePartitionResponse

_PATCH = mock.patch.object


@contextmanager
def renumbered_when_sent_again() -> Iterator[None]:
    """A batch gets other sequence numbers, of another producer id, with each attempt."""
    put_off = Sender._put_off

    def forget_and_put_off(self: Sender, queue: Any, error: Any) -> None:
        queue.sealed[0].sequence = -1
        self._exchange.forget(queue)
        put_off(self, queue, error)

    with _PATCH(Sender, "_put_off", forget_and_put_off):
        yield


@contextmanager
def next_batch_first() -> Iterator[None]:
    """A batch that is tried again goes behind those that wait."""
    put_off = Sender._put_off

    def put_off_and_rotate(self: Sender, queue: Any, error: Any) -> None:
        put_off(self, queue, error)
        queue.sealed.rotate(-1)

    with _PATCH(Sender, "_put_off", put_off_and_rotate):
        yield


@contextmanager
def acknowledged_when_sent() -> Iterator[None]:
    """A request whose connection breaks counts as delivered."""
    answered = Sender._answered

    def answered_without_error(self: Sender, broker: Any, queues: Any, outcomes: Any) -> None:
        if isinstance(outcomes, BrokerError):
            outcomes = {queue.partition: BatchOutcome(None) for queue in queues}
        answered(self, broker, queues, outcomes)

    with _PATCH(Sender, "_answered", answered_without_error):
        yield


@contextmanager
def refusal_not_read() -> Iterator[None]:
    """The error code of a partition is not looked at."""
    outcome = ProduceRequests._outcome

    def outcome_without_error(
        self: ProduceRequests, partition: Any, part: ProduceResponsePartitionResponse
    ) -> BatchOutcome:
        return outcome(self, partition, {**part, "error_code": 0})

    with _PATCH(ProduceRequests, "_outcome", outcome_without_error):
        yield


MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each
    for each in (renumbered_when_sent_again, next_batch_first, acknowledged_when_sent, refusal_not_read)
}

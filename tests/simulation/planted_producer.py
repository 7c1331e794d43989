"""Defects of the producer for brokers of 0.8 and later, put in place in memory: what faults at a request have to find.

Strategy: as in `tests.simulation.planted`.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

from consumerd.base.errors import BrokerError
from consumerd.producer.v08.delivery import BatchOutcome, ProduceRequests
from consumerd.producer.v08.sender import Sender
from tests.simulation.defects import Defects

_PATCH = mock.patch.object
MUTATIONS = Defects()


@MUTATIONS.around(Sender, "_put_off")
def renumbered_when_sent_again(put_off: Any, self: Sender, queue: Any, error: Any) -> None:
    """A batch gets other sequence numbers, of another producer id, with each attempt."""
    queue.sealed[0].sequence = -1
    self._exchange.forget(queue)
    put_off(self, queue, error)


@MUTATIONS.around(Sender, "_put_off")
def next_batch_first(put_off: Any, self: Sender, queue: Any, error: Any) -> None:
    """A batch that is tried again goes behind those that wait."""
    put_off(self, queue, error)
    queue.sealed.rotate(-1)


@MUTATIONS.around(Sender, "_answered")
def acknowledged_when_sent(answered: Any, self: Sender, broker: Any, queues: Any, outcomes: Any) -> None:
    """A request whose connection breaks counts as delivered."""
    if isinstance(outcomes, BrokerError):
        outcomes = {queue.partition: BatchOutcome(None) for queue in queues}
    answered(self, broker, queues, outcomes)


@MUTATIONS.around(ProduceRequests, "_outcome")
def refusal_not_read(outcome: Any, self: ProduceRequests, partition: Any, part: dict[str, Any]) -> Any:
    """The error code of a partition is not looked at."""
    return outcome(self, partition, {**part, "error_code": 0})

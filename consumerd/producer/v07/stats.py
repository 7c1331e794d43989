"""What an asynchronous producer counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class AsyncProducerStats:
    """Counters of messages, from the start (0.7.2: AsyncProducerStats)."""

    #: Put into the queue.
    enqueued: int = 0
    #: Thrown away because the queue had no room.
    dropped: int = 0
    #: Handled by the event handler: with the default one, sent and confirmed.
    sent: int = 0
    #: Given up.
    failed: int = 0
    batches: int = 0

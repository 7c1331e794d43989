"""What fetching reports: events to a listener, and counters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from consumerd.errors import ConsumerdError
    from consumerd.partition import TopicPartition


class FetchListener(Protocol):
    """Notified of what a partition's owner has to know, and logs it.

    Called from the loop; must not block and must not raise.
    """

    def failed(self, partition: TopicPartition, error: ConsumerdError) -> None:
        """Fetching ended by a `fail` policy. What is in the lane already is sound. Seek or remove goes on."""
        ...

    def reset(self, partition: TopicPartition, old: int, new: int) -> Awaitable[None] | None:
        """The broker has no offset `old`; fetching goes on at `new`, which may lie before or behind.

        A batch that leads there is in the lane. The next owner may not find `new` again, so what is returned is awaited
        before the next fetch: until it is written down.
        """
        ...

    def skipped(self, partition: TopicPartition, offset: int, next_offset: int, reason: str) -> None:
        """What stands at `offset` was given up by a `skip` policy; fetching goes on at `next_offset`."""
        ...

    def parked(self, partition: TopicPartition, reason: str) -> None:
        """Fetching ended by a `park` policy, or because there was nothing to skip to. Seek or remove goes on."""
        ...


@dataclass(slots=True)
class FetchCounters:
    """Totals since the start, for metrics."""

    #: FETCH requests answered.
    fetches: int = 0
    #: MULTIFETCH requests answered.
    polls: int = 0
    #: Bytes of message sets received, and what they held.
    received_bytes: int = 0
    batches: int = 0
    messages: int = 0
    #: Fetches that had to be repeated larger.
    grown: int = 0
    resets: int = 0
    skipped: int = 0
    parked: int = 0
    failed: int = 0
    #: Connections made, and connections lost or not made.
    connects: int = 0
    disconnects: int = 0
    #: Answers with an error, by error code.
    errors: Counter[int] = field(default_factory=Counter)

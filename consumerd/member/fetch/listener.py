"""The reports of fetching: events to a listener, and counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Protocol

from consumerd.base.errors import ConsumerdError
from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.log_changes import LogChange


class FetchListener(Protocol):
    """Receives the events of a partition's fetching that its owner has to know, and logs them.

    Called from the loop; must not block and must not raise.
    """

    def failed(self, partition: TopicPartition, error: ConsumerdError) -> None:
        """Fetching ended by a `fail` policy. Batches in the lane are sound. Seek or remove to continue."""
        ...

    def reset(self, partition: TopicPartition, old: int, new: int) -> Awaitable[None] | None:
        """The broker does not have offset `old`; fetching continues at `new`, which may be lower or higher.

        A batch that moves the position there is in the lane. The next owner may not find `new` again, so the returned
        awaitable is awaited before the next fetch: until the offset is committed.
        """
        ...

    def log_changed(self, partition: TopicPartition, change: LogChange, new: int) -> Awaitable[None] | None:
        """The log is another one than that of our position; fetching continues at offset `new`.

        Else as `reset`.
        """
        ...

    def skipped(self, partition: TopicPartition, offset: int, next_offset: int, reason: str) -> None:
        """A `skip` policy passed over the message at `offset`; fetching continues at `next_offset`."""
        ...

    def parked(self, partition: TopicPartition, reason: str) -> None:
        """Fetching ended by a `park` policy, or because there was nothing to skip to. Seek or remove to continue."""
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
    #: Those of them that followers returned, not leaders.
    follower_bytes: int = 0
    batches: int = 0
    messages: int = 0
    #: Fetches that had to be repeated larger.
    grown: int = 0
    resets: int = 0
    #: Logs that were found to be other ones, and to have been cut off.
    replaced_logs: int = 0
    truncated_logs: int = 0
    skipped: int = 0
    parked: int = 0
    failed: int = 0
    #: Connections made, and connections lost or not made.
    connects: int = 0
    disconnects: int = 0
    #: Partitions of which something was read, or that there is nothing to read; and those that brokers do not let us
    #: read at present.
    answered: set[TopicPartition] = field(default_factory=set)
    denied: set[TopicPartition] = field(default_factory=set)
    #: Seconds of silence that brokers demanded because of a quota.
    throttled: float = 0.0
    #: Answers with an error, by error code.
    errors: Counter[int] = field(default_factory=Counter)

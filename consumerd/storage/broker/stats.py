"""Counters of a broker: connections, requests, bytes, produced messages and flushes. Plain numbers for metrics.

Strategy: one object per broker, on its event loop alone. The code that works on a log keeps its `ProducedCounts`, and
adds to them once per set; nothing is looked up, copied or formatted until they are read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from consumerd.base.metrics.histogram import DURATIONS, Histogram
from consumerd.wire.v07 import ErrorCode

#: The names of 0.7's five requests in metrics.
KINDS: Final = ("produce", "multiproduce", "fetch", "multifetch", "offsets")


@dataclass(slots=True)
class ProducedCounts:
    """Counts of one log's appends since the start."""

    messages: int = 0
    #: Bytes of message sets.
    bytes: int = 0


@dataclass(slots=True)
class RequestCounts:
    """Requests of one kind."""

    count: int = 0
    #: Seconds from a complete request until its response begins, or until its messages are appended.
    seconds: Histogram = field(default_factory=lambda: Histogram(DURATIONS))


@dataclass(slots=True)
class BrokerStats:
    """Counts since the broker was made."""

    accepted: int = 0
    #: Connections beyond `max.connections`.
    connections_refused: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    requests: dict[str, RequestCounts] = field(default_factory=lambda: {kind: RequestCounts() for kind in KINDS})
    #: Requests for which the connection was closed: invalid ones, and those that could not be carried out.
    refused: int = 0
    failed: int = 0
    #: Errors within responses to fetches.
    fetch_errors: Counter[ErrorCode] = field(default_factory=Counter)
    #: Sets that were dropped for a message beyond `max.message.size`.
    oversized_sets: int = 0
    produced: dict[tuple[str, int], ProducedCounts] = field(default_factory=dict)
    #: Seconds of each flush of a log.
    flush_seconds: Histogram = field(default_factory=lambda: Histogram(DURATIONS))
    #: Segments that were begun because one was full or old, and those that retention deleted.
    rolls: int = 0
    segments_deleted: int = 0

    def of(self, topic: str, partition: int) -> ProducedCounts:
        """Return the counts of a log, created on first use."""
        return self.produced.setdefault((topic, partition), ProducedCounts())

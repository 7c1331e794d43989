"""The source of a comparison: partitions of a cluster, or of an archive, read front to back.

Strategy: one protocol for all. Bounds are taken once, before anything is read, so that a log that still grows has an
end. Unreadable messages are reported and skipped, as far as their length is plausible: a mirror skips them, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from consumerd.base.partition import TopicPartition


class SourceMessage(NamedTuple):
    """One message of the source. `payload` is None for a tombstone, which 0.7 does not have."""

    offset: int
    index: int  # type: ignore[assignment]  # the word of the protocol
    payload: bytes | None


class UnreadableStretch(NamedTuple):
    """A stretch without messages that can be read, from `offset` on; one sentence."""

    offset: int
    problem: str


class MessageSource(Protocol):
    """Partitions to compare."""

    async def partitions(self) -> dict[TopicPartition, tuple[int, int]]:
        """All of them, with where they begin and end. Raises NotFoundError, ConfigError, BrokerError, ..."""
        ...

    def read(
        self, partition: TopicPartition, start: int, end: int
    ) -> AsyncIterator[list[SourceMessage] | UnreadableStretch]:
        """The messages in [start, end), in order; both are boundaries of outermost messages.

        Raises BrokerError, CorruptDataError, and the errors of the source's files.
        """
        ...

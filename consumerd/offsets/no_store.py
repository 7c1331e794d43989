"""The store that keeps nothing: the handler stores offsets itself, or nobody needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.offsets.store import CommitResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from consumerd.partition import TopicPartition


class NoOffsets:
    """Stores nothing, and reports every commit as successful."""

    keeps_for: float | None = None

    async def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """None has an offset."""
        return {}

    async def peek(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """None has an offset."""
        return {}

    async def changed(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Nothing is kept, so nothing is written by others."""
        return frozenset()

    async def commit(self, positions: Mapping[TopicPartition, int], *, session_id: int) -> CommitResult:
        """All is well."""
        return CommitResult(frozenset(positions), frozenset())

"""A cluster of 0.8 or later as the source of a comparison.

Strategy: it is read as the target is, partition after partition. What transactions did not commit is there, too, as the
mirror reads it unless told otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.errors import NotFoundError
from consumerd.migrate.message_source import SourceMessage
from consumerd.partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from consumerd.forward import TargetLog
    from consumerd.migrate.message_source import Unreadable


class V08ClusterSource:
    """The topics named of the cluster that `log` reads."""

    def __init__(self, log: TargetLog, topics: Sequence[str]) -> None:
        self._log = log
        self._topics = topics

    async def partitions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Raises NotFoundError for a topic that is not there, BrokerError."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        for topic in self._topics:
            numbers = await self._log.partitions(topic)
            if not numbers:
                raise NotFoundError(f"the source has no topic {topic!r}; see `consumerd topics list`.")
            for number in numbers:
                found[TopicPartition.numbered(topic, number)] = await self._log.bounds(topic, number)
        return found

    async def read(
        self, partition: TopicPartition, start: int, end: int
    ) -> AsyncIterator[list[SourceMessage] | Unreadable]:
        """Raises BrokerError, CorruptDataError."""
        async for records in self._log.read(partition.topic, partition.partition, start, end):
            yield [SourceMessage(record.offset, 0, record.payload) for record in records]

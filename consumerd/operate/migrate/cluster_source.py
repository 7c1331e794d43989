"""A cluster as the source of a comparison: of 0.7 by ZooKeeper and FETCH, of 0.8 and later by a `TargetLog`.

Strategy: partition after partition, one request at a time. The end of a partition is either that of its broker, or the
committed offset of a group: then only messages that the group declared forwarded are looked for on the target.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from consumerd.base.calls import read_all
from consumerd.base.errors import BrokerError, CorruptDataError, NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import ZooKeeper
from consumerd.group.assignment import partitions_of
from consumerd.handlers.forward.target_log import TargetLog
from consumerd.member.consumer.simple import SimpleConsumer
from consumerd.net.cluster.reading import data
from consumerd.net.cluster.view import ClusterView
from consumerd.net.connect import Connector
from consumerd.operate.admin.logs import BrokerLogs, LogRange
from consumerd.operate.migrate.message_source import SourceMessage, UnreadableStretch
from consumerd.wire.registry.paths import offset_path
from consumerd.wire.registry.values import RegisteredBroker, parse_offset
from consumerd.wire.v07 import BatchEnd

_FETCH_BYTES = 1 << 20
_MOST_BYTES = 256 << 20


class ClusterSource:
    """The topics named (all without any) of the cluster in `zk`, up to what `group` has committed, if there is one."""

    def __init__(
        self, zk: ZooKeeper, connect: Connector, topics: Sequence[str] = (), *, group: str | None = None
    ) -> None:
        self._zk = zk
        self._connect = connect
        self._topics = topics
        self._group = group
        self._brokers: dict[int, RegisteredBroker] = {}

    async def partitions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Raises NotFoundError for an unknown topic or group, BrokerError where a broker does not answer."""
        view = ClusterView(self._zk)
        self._brokers = await view.read_brokers()
        found = await view.read_topics(self._topics or None)
        for topic in self._topics:
            if not found.get(topic):
                raise NotFoundError(f"no broker has registered the topic {topic!r}; see `consumerd topics list`.")
        wanted = [partition for topic, counts in found.items() for partition in partitions_of(topic, counts)]
        committed = None if self._group is None else await self._committed(self._group, wanted)
        bounds = {}
        for partition, found_range in (await BrokerLogs(self._brokers, self._connect).ranges(wanted)).items():
            if not isinstance(found_range, LogRange):
                raise BrokerError(f"{partition} cannot be compared: {found_range.reason}")
            end = found_range.end if committed is None else min(found_range.end, committed.get(partition, 0))
            bounds[partition] = found_range.earliest, max(end, found_range.earliest)
        return bounds

    async def _committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's committed offsets of these. Raises NotFoundError if there are none."""
        texts = await read_all(partitions, lambda partition: data(self._zk, offset_path(group, partition)))
        found = {partition: parse_offset(text) for partition, text in texts.items() if text is not None}
        if not found:
            raise NotFoundError(
                f"group {group!r} has committed no offsets of the compared topics; see `consumerd group list`."
            )
        return found

    async def read(
        self, partition: TopicPartition, start: int, end: int
    ) -> AsyncIterator[list[SourceMessage] | UnreadableStretch]:
        """Raises BrokerError, CorruptDataError."""
        host, port = self._brokers[partition.broker].address
        size = _FETCH_BYTES
        async with SimpleConsumer(host, port, connect=self._connect) as consumer:
            while start < end:
                batch = await consumer.fetch(partition.topic, partition.partition, start, size)
                found = [
                    SourceMessage(each.offset, each.index, each.payload)
                    for each in batch.messages()
                    if each.offset < end
                ]
                if found:
                    yield found
                if batch.next_offset > start:
                    start, size = batch.next_offset, _FETCH_BYTES
                elif batch.end is BatchEnd.CORRUPT:
                    problem = batch.problem or "bytes that are not a message"
                    if batch.resume_offset is None or batch.resume_offset <= start:
                        raise CorruptDataError(f"{partition} cannot be read from {start} on: {problem}")
                    yield UnreadableStretch(start, problem)
                    start = batch.resume_offset
                elif size < _MOST_BYTES:
                    size = min(_MOST_BYTES, max(batch.needed or 0, 2 * size))
                else:
                    raise CorruptDataError(
                        f"{partition} cannot be read from {start} on: the broker returned no message"
                    )


class V08ClusterSource:
    """The topics named of the cluster of 0.8 or later that `log` reads, as the target is read.

    Messages of transactions that were not committed are there, too, as the mirror reads them by default.
    """

    def __init__(self, log: TargetLog, topics: Sequence[str]) -> None:
        self._log = log
        self._topics = topics

    async def partitions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Raises NotFoundError for a missing topic, BrokerError."""
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
    ) -> AsyncIterator[list[SourceMessage] | UnreadableStretch]:
        """Raises BrokerError, CorruptDataError."""
        async for records in self._log.read(partition.topic, partition.partition, start, end):
            yield [SourceMessage(record.offset, 0, record.payload) for record in records]

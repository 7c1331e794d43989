"""All fetchers of this process for a cluster of 0.8 or later: one source per broker, one fetcher per partition.

Strategy: that of `base_pool`. Leaders are looked up in the client's metadata, which somebody's wrong answer makes
stale and the next look-up refreshes, once for all. A broker's source lives as long as the pool: leaders come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.client import error_of, list_offsets
from consumerd.errors import BrokerError
from consumerd.fetch.base_pool import BasePool
from consumerd.fetch.policies import Services
from consumerd.fetch.v08.broker_source import BrokerSource
from consumerd.fetch.v08.fetcher import V08Fetcher

if TYPE_CHECKING:
    from random import Random

    from consumerd.client import ClusterClient
    from consumerd.fetch.lane import Lane
    from consumerd.fetch.listener import FetchListener
    from consumerd.fetch.settings import FetchSettings
    from consumerd.partition import TopicPartition
    from consumerd.ports import Clock


class V08FetchPool(BasePool):
    """Fetches the partitions that were added into their lanes, until they are removed. `client` stays the caller's.

    Methods raise KeyError for partitions that were not added.
    """

    def __init__(
        self, client: ClusterClient, settings: FetchSettings, clock: Clock, rng: Random, listener: FetchListener
    ) -> None:
        super().__init__()
        self._client = client
        self._settings = settings
        self._services = Services(settings, clock, rng, listener, self.counters, self.list_offsets)
        self._sources: dict[int, BrokerSource] = {}

    def _fetcher(self, partition: TopicPartition, offset: int, lane: Lane) -> V08Fetcher:
        return V08Fetcher(partition, offset, lane, self, self._services)

    async def leader(self, partition: TopicPartition) -> tuple[BrokerSource, int]:
        """The source of the partition's leader, and the leader's epoch. Raises BrokerError."""
        node = await self._client.leader(partition.topic, partition.partition)
        source = self._sources.get(node.id)
        if source is None:
            assert self._group is not None  # fetchers run
            source = self._sources[node.id] = BrokerSource(node.id, self._client, self._settings, self.counters)
            self._group.create_task(source.run(), name=f"source {node.id}")
        known = self._client.metadata.topics[partition.topic].partitions[partition.partition]
        return source, known.leader_epoch

    def wrong(self, partition: TopicPartition) -> None:
        """The broker does not lead the partition, or cannot be reached: look the leader up again."""
        self._client.stale([partition.topic])

    async def list_offsets(self, partition: TopicPartition, time: int, max_number: int = 1) -> tuple[int, ...]:
        """Ask the leader for offsets: `time` is EARLIEST, LATEST or milliseconds since the epoch.

        One attempt. Since 0.10.1 at most one offset, that of the first message at `time` or after; before, up to
        `max_number` starts of segments, newest first. Empty where there is none. Raises BrokerError, FrameError.
        """
        node = await self._client.leader(partition.topic, partition.partition)
        channel = await self._client.node_channel(node.id)
        place = partition.topic, partition.partition
        told = await list_offsets(
            channel, [place], time, read_committed=self._settings.read_committed, max_number=max_number
        )
        if (found := told.get(place)) is None:
            raise BrokerError(f"broker {node.id} returned no offset of {partition}: it is not in its answer")
        if error := error_of(found.error, f"broker {node.id} returned no offset of {partition}"):
            if error.info.refresh:
                self.wrong(partition)
            raise error
        return found.offsets

"""All fetchers of this process: one link and one poller per broker, one fetcher per partition.

Strategy: that of `base_pool`. A broker's link and poller live as long as it has partitions here. OFFSETS go over
connections of their own (`offset_lookups`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumerd.fetch.base_pool import BasePool
from consumerd.fetch.policies import Services
from consumerd.fetch.v07.fetcher import PartitionFetcher
from consumerd.fetch.v07.link import BrokerLink
from consumerd.fetch.v07.offset_lookups import OffsetLookups
from consumerd.fetch.v07.poller import IdlePoller

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable
    from random import Random

    from consumerd.fetch.budget import ByteBudget
    from consumerd.fetch.lane import Lane
    from consumerd.fetch.listener import FetchListener
    from consumerd.fetch.settings import FetchSettings
    from consumerd.fetch.v07.link import Directory
    from consumerd.net import Connector
    from consumerd.partition import TopicPartition
    from consumerd.ports import Clock


@dataclass(slots=True)
class _Broker:
    link: BrokerLink
    poller: IdlePoller
    partitions: set[TopicPartition]
    tasks: list[asyncio.Task[None]]


class FetchPool(BasePool):
    """Fetches the partitions that were added into their lanes, until they are removed.

    `connect` and `directory` are the ports to brokers (`consumerd.net.connect`, `consumerd.cluster.BrokerDirectory`),
    `budget` the common memory budget that the lanes were made with. Methods raise KeyError for partitions that were
    not added.
    """

    def __init__(
        self,
        connect: Connector,
        directory: Directory,
        budget: ByteBudget,
        settings: FetchSettings,
        clock: Clock,
        rng: Random,
        listener: FetchListener,
    ) -> None:
        super().__init__()
        self._connect = connect
        self._directory = directory
        self._budget = budget
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._services = Services(settings, clock, rng, listener, self.counters, self.list_offsets)
        self._brokers: dict[int, _Broker] = {}
        self._lookups = OffsetLookups(connect, directory)

    def _fetcher(self, partition: TopicPartition, offset: int, lane: Lane) -> PartitionFetcher:
        broker = self._brokers.get(partition.broker)
        if broker is None:
            link = BrokerLink(
                partition.broker,
                self._connect,
                self._directory,
                self._settings,
                self._clock,
                self._rng,
                self.counters,
            )
            poller = IdlePoller(link, self._budget, self._settings, self._clock, self.counters)
            broker = self._brokers[partition.broker] = _Broker(link, poller, set(), [])
            self._start_broker(broker)
        broker.partitions.add(partition)
        return PartitionFetcher(partition, offset, lane, broker.link, broker.poller, self._services)

    def _begin(self) -> None:
        for broker in self._brokers.values():
            self._start_broker(broker)

    def _start_broker(self, broker: _Broker) -> None:
        if self._group is not None:
            broker.tasks = [
                self._group.create_task(broker.link.run(), name=f"link {broker.link.broker}"),
                self._group.create_task(broker.poller.run(), name=f"poll {broker.link.broker}"),
            ]

    def _forget(self, partition: TopicPartition) -> Iterable[asyncio.Task[None]]:
        broker = self._brokers[partition.broker]
        broker.partitions.discard(partition)
        if broker.partitions:
            return ()
        del self._brokers[partition.broker]
        return broker.tasks

    async def list_offsets(self, partition: TopicPartition, time: int, max_number: int = 1) -> tuple[int, ...]:
        """Ask the broker for offsets; see `OffsetLookups`. The partition need not be added."""
        return await self._lookups.list_offsets(partition, time, max_number)

"""All fetchers of this process: one link and one poller per broker, one fetcher per partition.

Strategy: that of `steady_pool`. A broker's link and poller live as long as it has partitions here.

OFFSETS go over connections of their own: a broker answers a bad partition by hanging up (golden notes, 1), and that
must not hit the fetches of others.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumerd.fetch.fetcher import PartitionFetcher
from consumerd.fetch.link import BrokerLink, open_connection
from consumerd.fetch.poller import IdlePoller
from consumerd.fetch.remedies import Services
from consumerd.fetch.steady_pool import SteadyPool
from consumerd.wire.errors import FrameError
from consumerd.wire.v07 import OffsetsRequest, decode_offsets_response

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from consumerd.fetch.budget import ByteBudget
    from consumerd.fetch.lane import Lane
    from consumerd.fetch.link import Directory
    from consumerd.fetch.listener import FetchListener
    from consumerd.fetch.settings import FetchSettings
    from consumerd.net import Connector
    from consumerd.partition import TopicPartition
    from consumerd.ports import Clock

#: OFFSETS connections open at once.
OFFSETS_AT_ONCE = 8
#: An OFFSETS answer: int16 error, int32 count, int64 each.
OFFSETS_HEADER = 6
OFFSET_SIZE = 8


@dataclass(slots=True)
class _Broker:
    link: BrokerLink
    poller: IdlePoller
    partitions: set[TopicPartition]
    tasks: list[asyncio.Task[None]]


class FetchPool(SteadyPool):
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
        self._offsets_turn = asyncio.Semaphore(OFFSETS_AT_ONCE)

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
        """Ask the broker for offsets: `time` is EARLIEST, LATEST or milliseconds since the epoch.

        One attempt. An unknown topic answers (0,) for EARLIEST and LATEST (golden notes, 1). Raises BrokerError, and
        FrameError for an answer that cannot be.
        """
        async with self._offsets_turn:
            connection = await open_connection(partition.broker, self._connect, self._directory)
            try:
                request = OffsetsRequest(partition.topic, partition.partition, time, max_number)
                longest = OFFSETS_HEADER + OFFSET_SIZE * max(max_number, 1)
                body = await connection.request(request.encode(), max_response=longest)
                offsets = decode_offsets_response(body).offsets
            finally:
                await connection.close()
        if any(offset < 0 for offset in offsets):
            raise FrameError(f"broker {partition.broker} answered with offset {min(offsets)} of {partition}")
        return offsets

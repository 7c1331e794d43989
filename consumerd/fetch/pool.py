"""All fetchers of this process: one link and one poller per broker, one fetcher per partition.

Strategy: `run` owns every task in one TaskGroup; `add`, `remove`, `seek` and the rest are called from other tasks and
only start or cancel tasks there. A broker's link and poller live as long as it has partitions here. Seeking replaces
the fetcher by a fresh one: the old task is cancelled and can put nothing any more, so no state has to be mended.

OFFSETS go over connections of their own: a broker answers a bad partition by hanging up (golden notes, 1), and that
must not hit the fetches of others.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumerd.fetch.fetcher import PartitionFetcher
from consumerd.fetch.link import BrokerLink, open_connection
from consumerd.fetch.listener import FetchCounters
from consumerd.fetch.poller import IdlePoller
from consumerd.fetch.remedies import Services
from consumerd.wire.errors import FrameError
from consumerd.wire.v07 import OffsetsRequest, decode_offsets_response

if TYPE_CHECKING:
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


@dataclass(slots=True)
class _Entry:
    fetcher: PartitionFetcher
    lane: Lane
    #: The fetcher's task last; before it, those of replaced fetchers that may not have ended yet.
    tasks: list[asyncio.Task[None]]


class FetchPool:
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
        self._connect = connect
        self._directory = directory
        self._budget = budget
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self.counters = FetchCounters()
        self._services = Services(settings, clock, rng, listener, self.counters, self.list_offsets)
        self._group: asyncio.TaskGroup | None = None
        self._brokers: dict[int, _Broker] = {}
        self._entries: dict[TopicPartition, _Entry] = {}
        self._offsets_turn = asyncio.Semaphore(OFFSETS_AT_ONCE)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are added, whatever their state."""
        return frozenset(self._entries)

    def position(self, partition: TopicPartition) -> int:
        """The offset of the partition's next fetch: everything before it went to the lane, or was skipped."""
        return self._entries[partition].fetcher.offset

    async def run(self) -> None:
        """Run all fetchers until cancelled. Once."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for broker in self._brokers.values():
                self._start_broker(broker)
            for entry in self._entries.values():
                self._start_fetcher(entry)
            await asyncio.Event().wait()

    def add(self, partition: TopicPartition, offset: int, lane: Lane) -> None:
        """Fetch `partition` from `offset` on into `lane`. Raises ValueError if it is added already."""
        if partition in self._entries:
            raise ValueError(f"{partition} is being fetched already")
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
        entry = _Entry(self._fetcher(partition, offset, lane), lane, [])
        self._entries[partition] = entry
        self._start_fetcher(entry)

    async def remove(self, partition: TopicPartition) -> None:
        """Stop fetching; once this returns, nothing more is put in the lane. What is in it stays."""
        entry = self._entries.pop(partition)
        broker = self._brokers[partition.broker]
        broker.partitions.discard(partition)
        ending = entry.tasks
        if not broker.partitions:
            del self._brokers[partition.broker]
            ending = ending + broker.tasks
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    def pause(self, partition: TopicPartition) -> None:
        """Send no new fetch for the partition; the answer to one under way still goes to the lane."""
        self._entries[partition].fetcher.pause()

    def resume(self, partition: TopicPartition) -> None:
        """Go on after `pause`."""
        self._entries[partition].fetcher.resume()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Drop what is queued and fetch from `offset` on, also after a failure or parking. A pause stays."""
        entry = self._entries[partition]
        for task in entry.tasks:
            task.cancel()
        paused = entry.fetcher.paused
        entry.lane.clear()
        entry.fetcher = self._fetcher(partition, offset, entry.lane)
        if paused:
            entry.fetcher.pause()
        self._start_fetcher(entry)

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

    def _fetcher(self, partition: TopicPartition, offset: int, lane: Lane) -> PartitionFetcher:
        broker = self._brokers[partition.broker]
        return PartitionFetcher(partition, offset, lane, broker.link, broker.poller, self._services)

    def _start_broker(self, broker: _Broker) -> None:
        if self._group is not None:
            broker.tasks = [
                self._group.create_task(broker.link.run(), name=f"link {broker.link.broker}"),
                self._group.create_task(broker.poller.run(), name=f"poll {broker.link.broker}"),
            ]

    def _start_fetcher(self, entry: _Entry) -> None:
        if self._group is not None:
            task = self._group.create_task(entry.fetcher.run(), name=f"fetch {entry.fetcher.partition}")
            entry.tasks = [old for old in entry.tasks if not old.done()]
            entry.tasks.append(task)

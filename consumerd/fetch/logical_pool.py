"""All fetchers of this process for a cluster of 0.8 or later: one source per broker, one fetcher per partition.

Strategy: as `consumerd.fetch.pool`, with its methods and promises; `run` owns every task. Leaders are looked up in the
client's metadata, which somebody's wrong answer makes stale and the next look-up refreshes, once for all. A broker's
source lives as long as the pool: leaders come back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consumerd.client import error_of
from consumerd.errors import BrokerError
from consumerd.fetch.listener import FetchCounters
from consumerd.fetch.logical_fetcher import LogicalFetcher
from consumerd.fetch.logical_source import BrokerSource
from consumerd.fetch.remedies import Services
from consumerd.wire.v08.apis import OFFSETS
from consumerd.wire.v08.error_codes import error_info

if TYPE_CHECKING:
    from random import Random

    from consumerd.client import ClusterClient
    from consumerd.fetch.lane import Lane
    from consumerd.fetch.listener import FetchListener
    from consumerd.fetch.settings import FetchSettings
    from consumerd.partition import TopicPartition
    from consumerd.ports import Clock

_NO_OFFSET = -1


@dataclass(slots=True)
class _Entry:
    fetcher: LogicalFetcher
    lane: Lane
    #: The fetcher's task last; before it, those of replaced fetchers that may not have ended yet.
    tasks: list[asyncio.Task[None]]


class LogicalFetchPool:
    """Fetches the partitions that were added into their lanes, until they are removed. `client` stays the caller's.

    Methods raise KeyError for partitions that were not added.
    """

    def __init__(
        self, client: ClusterClient, settings: FetchSettings, clock: Clock, rng: Random, listener: FetchListener
    ) -> None:
        self._client = client
        self._settings = settings
        self.counters = FetchCounters()
        self._services = Services(settings, clock, rng, listener, self.counters, self.list_offsets)
        self._group: asyncio.TaskGroup | None = None
        self._sources: dict[int, BrokerSource] = {}
        self._entries: dict[TopicPartition, _Entry] = {}

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
            for entry in self._entries.values():
                self._start(entry)
            await asyncio.Event().wait()

    # -- leaders, for the fetchers

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
        """The leader that was named is none, or cannot be reached."""
        self._client.stale([partition.topic])

    # -- partitions

    def add(self, partition: TopicPartition, offset: int, lane: Lane) -> None:
        """Fetch `partition` from `offset` on into `lane`. Raises ValueError if it is added already."""
        if partition in self._entries:
            raise ValueError(f"{partition} is being fetched already")
        entry = _Entry(LogicalFetcher(partition, offset, lane, self, self._services), lane, [])
        self._entries[partition] = entry
        self._start(entry)

    async def remove(self, partition: TopicPartition) -> None:
        """Stop fetching; once this returns, nothing more is put in the lane. What is in it stays."""
        entry = self._entries.pop(partition)
        for task in entry.tasks:
            task.cancel()
        if entry.tasks:
            await asyncio.wait(entry.tasks)

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
        entry.fetcher = LogicalFetcher(partition, offset, entry.lane, self, self._services)
        if paused:
            entry.fetcher.pause()
        self._start(entry)

    def _start(self, entry: _Entry) -> None:
        if self._group is not None:
            task = self._group.create_task(entry.fetcher.run(), name=f"fetch {entry.fetcher.partition}")
            entry.tasks = [old for old in entry.tasks if not old.done()]
            entry.tasks.append(task)

    async def list_offsets(self, partition: TopicPartition, time: int, max_number: int = 1) -> tuple[int, ...]:
        """Ask the leader for offsets: `time` is EARLIEST, LATEST or milliseconds since the epoch.

        One attempt. Since 0.10.1 at most one offset, that of the first message at `time` or after; before, up to
        `max_number` starts of segments, newest first. Empty where there is none. Raises BrokerError.
        """
        node = await self._client.leader(partition.topic, partition.partition)
        channel = await self._client.node_channel(node.id)
        version = channel.versions.pick(OFFSETS)
        asked: dict[str, Any] = {"partition": partition.partition, "timestamp": time}
        body: dict[str, Any] = {"topics": [{"topic": partition.topic, "partitions": [asked]}]}
        if version == 0:
            asked["max_num_offsets"] = max_number
        elif version >= _ISOLATION_SINCE:
            body["isolation_level"] = int(self._settings.read_committed)
        answer = await channel.call(OFFSETS, body, version=version)
        told = [part for topic in answer["responses"] for part in topic["partition_responses"]]
        if len(told) != 1:
            raise BrokerError(f"broker {node.id} names offsets of {len(told)} partitions where one was asked for")
        code = told[0]["error_code"]
        if error := error_of(code, f"broker {node.id} names no offset of {partition}"):
            if error_info(code).refresh:
                self.wrong(partition)
            raise error
        if version == 0:
            return tuple(told[0]["offsets"])
        return () if told[0]["offset"] == _NO_OFFSET else (told[0]["offset"],)


_ISOLATION_SINCE = 2

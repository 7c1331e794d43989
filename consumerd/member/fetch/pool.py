"""The pool of fetchers: one task for each partition that is fetched.

Strategy: `run` owns every task in one TaskGroup; `add`, `remove`, `seek` and the rest are called from other tasks and
only start or cancel tasks there. Seeking replaces the fetcher by a fresh one: the old task is cancelled and can put
nothing any more, so no state has to be repaired. Where a partition is fetched from is up to `FetchBrokers`: those of a
cluster of 0.7 are `v07.brokers`, those of 0.8 and later `v08.brokers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.member.fetch.fetcher import Fetcher, PartitionSource
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.policies import FetchServices


class FetchBrokers(Protocol):
    """The brokers of a cluster, as sources of partitions."""

    @property
    def services(self) -> FetchServices:
        """The services that all fetchers share."""
        ...

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Run the tasks that sources need in `tasks`, now and later. Called once."""
        ...

    def source(self, partition: TopicPartition, lane: Lane) -> PartitionSource:
        """Return a new source for one fetcher."""
        ...

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        """Connect, where that takes several round trips: positions of these are looked for, to be fetched then."""
        ...

    def release(self, partition: TopicPartition) -> Iterable[asyncio.Task[None]]:
        """Release a partition that is not fetched any more; return the tasks to cancel, which no other one needs."""
        ...

    async def list_offsets(self, partition: TopicPartition, time: int, max_number: int = 1) -> tuple[int, ...]:
        """Ask the broker for offsets: `time` is EARLIEST, LATEST or milliseconds since the epoch.

        With `read_committed`, LATEST is where the first open transaction begins. One attempt; the partition need not be
        added. Raises BrokerError, and FrameError for an invalid response.
        """
        ...

    async def offset_at(self, partition: TopicPartition, time_ms: int) -> int:
        """Return the offset from which all messages since a time (milliseconds since 1970) follow; else the end.

        Brokers before 0.10.1 know times of segments only: older messages may come, too. Raises as `list_offsets`.
        """
        ...

    def known_end(self, partition: TopicPartition) -> int | None:
        """Return the end of the log, open transactions included, if it is known without asking; None otherwise."""
        ...

    async def log_end(self, partition: TopicPartition) -> int:
        """Ask the broker for the end of the log, which includes open transactions. Raises as `list_offsets`."""
        ...


@dataclass(slots=True)
class _Entry:
    fetcher: Fetcher
    lane: Lane
    #: The fetcher's task last; before it, those of replaced fetchers that may not have ended yet.
    tasks: list[asyncio.Task[None]]


class FetchPool:
    """Fetches the partitions that were added into their lanes, until they are removed.

    Methods raise KeyError for partitions that were not added.
    """

    def __init__(self, brokers: FetchBrokers) -> None:
        self.counters = brokers.services.counters
        self.list_offsets = brokers.list_offsets
        self.offset_at = brokers.offset_at
        self.log_end = brokers.log_end
        self.known_end = brokers.known_end
        self.expect = brokers.expect
        self._brokers = brokers
        self._group: asyncio.TaskGroup | None = None
        self._entries: dict[TopicPartition, _Entry] = {}

    @property
    def partitions(self) -> Set[TopicPartition]:
        """The added partitions, in any state: a view, which shows later changes."""
        return self._entries.keys()

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the partition's next fetch: everything before it went to the lane, or was skipped."""
        return self._entries[partition].fetcher.offset

    async def run(self) -> None:
        """Run all fetchers until cancelled. Called once."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._brokers.start(group)
            for entry in self._entries.values():
                self._start(entry)
            await asyncio.Event().wait()

    def add(self, partition: TopicPartition, offset: int, lane: Lane, log: LogId = UNKNOWN_LOG) -> None:
        """Fetch `partition` from `offset` of `log` on into `lane`. Raises ValueError if it is added already."""
        if partition in self._entries:
            raise ValueError(f"{partition} is already being fetched")
        entry = self._entries[partition] = _Entry(self._fetcher(partition, offset, lane, log), lane, [])
        self._start(entry)

    async def remove(self, partition: TopicPartition) -> None:
        """Stop fetching; once this returns, nothing more is put in the lane. Its batches stay."""
        ending = [*self._entries.pop(partition).tasks, *self._brokers.release(partition)]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    def pause(self, partition: TopicPartition) -> None:
        """Send no new fetch for the partition; the response to one under way still goes to the lane."""
        self._entries[partition].fetcher.pause()

    def resume(self, partition: TopicPartition) -> None:
        """Continue after `pause`."""
        self._entries[partition].fetcher.resume()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Drop the queued batches and fetch from `offset` on, also after a failure or parking. A pause stays."""
        entry = self._entries[partition]
        for task in entry.tasks:
            task.cancel()
        paused, log = entry.fetcher.paused, entry.fetcher.log
        entry.lane.clear()
        # The epoch is that of the message before the former offset.
        entry.fetcher = self._fetcher(partition, offset, entry.lane, log.without_epoch())
        if paused:
            entry.fetcher.pause()
        self._start(entry)

    def _fetcher(self, partition: TopicPartition, offset: int, lane: Lane, log: LogId) -> Fetcher:
        brokers = self._brokers
        return Fetcher(partition, offset, lane, brokers.source(partition, lane), brokers.services, log)

    def _start(self, entry: _Entry) -> None:
        if self._group is not None:
            task = self._group.create_task(entry.fetcher.run(), name=f"fetch {entry.fetcher.partition}")
            entry.tasks = [old for old in entry.tasks if not old.done()]
            entry.tasks.append(task)


class Fetching(NamedTuple):
    """A pool, what has to run for it, beside the member, and what counts the registered brokers (None: not known)."""

    pool: FetchPool
    works: list[Callable[[], Coroutine[None, None, None]]]
    brokers: Callable[[], int | None]

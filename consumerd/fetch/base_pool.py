"""What pools of fetchers have in common: which partitions are fetched, and the tasks that do it.

Strategy: `run` owns every task in one TaskGroup; `add`, `remove`, `seek` and the rest are called from other tasks and
only start or cancel tasks there. Seeking replaces the fetcher by a fresh one: the old task is cancelled and can put
nothing any more, so no state has to be mended. How a partition is fetched, and from where, is said by the subclasses
(`v07.pool`, `v08.pool`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumerd.fetch.listener import FetchCounters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consumerd.fetch.base_fetcher import BaseFetcher
    from consumerd.fetch.lane import Lane
    from consumerd.partition import TopicPartition


@dataclass(slots=True)
class _Entry:
    fetcher: BaseFetcher
    lane: Lane
    #: The fetcher's task last; before it, those of replaced fetchers that may not have ended yet.
    tasks: list[asyncio.Task[None]]


class BasePool(ABC):
    """Fetches the partitions that were added into their lanes, until they are removed.

    Methods raise KeyError for partitions that were not added.
    """

    def __init__(self) -> None:
        self.counters = FetchCounters()
        self._group: asyncio.TaskGroup | None = None
        self._entries: dict[TopicPartition, _Entry] = {}

    @abstractmethod
    def _fetcher(self, partition: TopicPartition, offset: int, lane: Lane) -> BaseFetcher:
        """A fetcher that was not started."""

    def _begin(self) -> None:
        """`run` was called: start what fetchers need that were added before."""
        return

    def _forget(self, partition: TopicPartition) -> Iterable[asyncio.Task[None]]:
        """The partition goes: tasks, beside its own, that nobody needs any more."""
        return ()

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
            self._begin()
            for entry in self._entries.values():
                self._start(entry)
            await asyncio.Event().wait()

    def add(self, partition: TopicPartition, offset: int, lane: Lane) -> None:
        """Fetch `partition` from `offset` on into `lane`. Raises ValueError if it is added already."""
        if partition in self._entries:
            raise ValueError(f"{partition} is already being fetched")
        entry = self._entries[partition] = _Entry(self._fetcher(partition, offset, lane), lane, [])
        self._start(entry)

    async def remove(self, partition: TopicPartition) -> None:
        """Stop fetching; once this returns, nothing more is put in the lane. What is in it stays."""
        ending = [*self._entries.pop(partition).tasks, *self._forget(partition)]
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
        self._start(entry)

    def _start(self, entry: _Entry) -> None:
        if self._group is not None:
            task = self._group.create_task(entry.fetcher.run(), name=f"fetch {entry.fetcher.partition}")
            entry.tasks = [old for old in entry.tasks if not old.done()]
            entry.tasks.append(task)

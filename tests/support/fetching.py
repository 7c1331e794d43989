"""What fetchers and their policies need, in memory: a listener that remembers, a log with two ends, a lane, a clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from consumerd.base.budget import ByteBudget
from consumerd.base.errors import ConsumerdError
from consumerd.base.partition import LogId, TopicPartition
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.log_changes import LogChange
from consumerd.member.fetch.policies import FetchServices
from consumerd.member.fetch.settings import FetchSettings
from consumerd.testing.clock import FakeClock
from consumerd.wire.v07 import EARLIEST


class Recorder:
    """A listener that remembers, and can be waited for."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        #: Called for what is awaited after an event that moves the position.
        self.written: Callable[[], Awaitable[Any] | None] = lambda: None
        self._news = asyncio.Event()

    def failed(self, partition: TopicPartition, error: ConsumerdError) -> None:
        self._add("failed", partition, error)

    def reset(self, partition: TopicPartition, old: int, new: int) -> Awaitable[Any] | None:
        self._add("reset", partition, old, new)
        return self.written()

    def log_changed(self, partition: TopicPartition, change: LogChange, new: int) -> Awaitable[Any] | None:
        self._add("log_changed", partition, change, new)
        return self.written()

    def skipped(self, partition: TopicPartition, offset: int, next_offset: int, reason: str) -> None:
        self._add("skipped", partition, offset, next_offset, reason)

    def parked(self, partition: TopicPartition, reason: str) -> None:
        self._add("parked", partition, reason)

    async def first(self, kind: str) -> tuple[Any, ...]:
        async with asyncio.timeout(60):
            while True:
                for event in self.events:
                    if event[0] == kind:
                        return event
                self._news.clear()
                await self._news.wait()

    def _add(self, *event: Any) -> None:
        self.events.append(event)
        self._news.set()


class FetchingInMemory:
    """The lane of one partition, and services whose sleeps only move the clock.

    The log has the offsets from `first` to `end`; an empty tuple: the broker names none. `listed` are the times that it
    was asked for.
    """

    def __init__(self, partition: TopicPartition, settings: FetchSettings) -> None:
        self.first: tuple[int, ...] = (0,)
        self.end: tuple[int, ...] = (1000,)
        self.listed: list[int] = []
        self.clock, self.listener = FakeClock(auto=True), Recorder()
        self.budget = ByteBudget(1 << 20)
        self.lane = Lane(partition, self.budget, max_bytes=1 << 20)
        self.services = FetchServices(settings, self.clock, random.Random(1), self.listener, self._list_offsets)
        self.counters = self.services.counters

    @property
    def queued(self) -> list[tuple[int, int, int, LogId]]:
        """Start, end, number of messages and log of each batch in the lane."""
        batches = [batch for batch, _ in self.lane._queue]
        return [(batch.start_offset, batch.next_offset, len(batch), batch.log) for batch in batches]

    async def _list_offsets(self, partition: TopicPartition, time: int) -> tuple[int, ...]:
        assert partition == self.lane.partition
        self.listed.append(time)
        return self.first if time == EARLIEST else self.end

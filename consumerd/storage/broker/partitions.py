"""The broker's access to its logs: ordered appends and shared flushes on the loop, slow disk work in threads.

Strategy: an append is a write into the page cache and runs at once; operations that can wait for the disk (creating a
log, rolling a segment, a flush, a very large write) run in a thread while a lock per partition keeps the order. A flush
that is requested while another runs waits for it and then usually finds its bytes flushed: one sync serves all
producers that wrote meanwhile.
"""

from __future__ import annotations

import asyncio
import random

import structlog

from consumerd.base.errors import reason_of
from consumerd.base.ports import Clock
from consumerd.base.threads import in_thread
from consumerd.storage import FlushFailedError, Log, LogManager, SegmentSlice, StorageError
from consumerd.storage.broker.stats import BrokerStats, ProducedCounts

#: Most bytes that a fetch answer can announce: its int32 length counts the error code, too.
MAX_RANGE = (1 << 31) - 3
logger = structlog.get_logger(__name__)

#: Logs that are checked before other tasks run.
_LOGS = 256
#: Sets larger than this are written in a thread.
_LARGE = 1 << 20


class BrokerPartition:
    """One log as the connections of a broker share it."""

    __slots__ = ("_appending", "_clock", "_counts", "_flushing", "_stats", "log")

    def __init__(self, log: Log, clock: Clock, stats: BrokerStats, counts: ProducedCounts) -> None:
        self.log = log
        self._clock = clock
        self._stats = stats
        self._counts = counts
        self._appending = asyncio.Lock()
        self._flushing = asyncio.Lock()

    async def append(self, data: bytes, messages: int) -> None:
        """Append a checked set of `messages` leaves, and flush when that many are due (golden notes, 3).

        Raises StorageError with nothing appended, FlushFailedError when the log must not be used any more.
        """
        now = self._clock.monotonic()
        if self.appends_at_once(len(data), now):
            self.append_at_once(data, messages, now)
        else:
            await self._append_in_turn(data, messages)
        if self.log.flush_due():
            await self.flush()

    def appends_at_once(self, size: int, now: float) -> bool:
        """Whether a set of `size` bytes would wait for nothing: other appends, a roll, a thread."""
        return not self._appending.locked() and size <= _LARGE and not self.log.roll_due(now)

    def append_at_once(self, data: bytes, messages: int, now: float) -> None:
        """As `append` without the flush, where `appends_at_once` says so."""
        self.log.append(data, messages, now)
        self._counts.messages += messages
        self._counts.bytes += len(data)

    async def _append_in_turn(self, data: bytes, messages: int) -> None:
        """Append after those that append now, and in a thread what can wait for the disk."""
        log = self.log
        async with self._appending:
            now = self._clock.monotonic()
            if log.roll_due(now):
                await in_thread(log.roll, now)
                self._stats.rolls += 1
            if len(data) > _LARGE:
                await in_thread(log.append, data, messages, now)
            else:
                log.append(data, messages, now)
            self._counts.messages += messages
            self._counts.bytes += len(data)

    async def clean(self) -> list[str]:
        """Delete the segments that retention does not keep; return the names of the files. Raises StorageError."""
        async with self._appending:
            now_ms = int(self._clock.wall() * 1000)
            dropped = await in_thread(self.log.clean, self._clock.monotonic(), now_ms)
            self._stats.segments_deleted += len(dropped)
            return dropped

    def hold(self, offset: int, max_bytes: int) -> SegmentSlice:
        """Return the file range of a fetch, its segment held: release it when sent. Raises OffsetOutOfRangeError."""
        while True:
            found = self.log.slice(offset, min(max_bytes, MAX_RANGE))
            if found.segment.retain():
                return found
            if found.segment in self.log.segments:
                raise StorageError(f"the log {self.log.name} is closed")

    def rest(self) -> None:
        """Close the files that were not used since the last call, until they are used again."""
        if not (self._appending.locked() or self._flushing.locked()):
            self.log.rest()

    async def flush(self) -> None:
        """Return when all messages appended so far are durable and visible. Raises FlushFailedError."""
        target = self.log.end_offset
        async with self._flushing:
            if self.log.flushed_offset < target:
                began = self._clock.monotonic()
                await in_thread(self.log.flush, began)
                self._stats.flush_seconds.observe(self._clock.monotonic() - began)


class BrokerPartitions:
    """All partitions of a broker, by (topic, partition)."""

    def __init__(self, logs: LogManager, clock: Clock, stats: BrokerStats | None = None) -> None:
        self._logs = logs
        self._clock = clock
        self.stats = stats or BrokerStats()
        self._known: dict[tuple[str, int], BrokerPartition] = {}
        self._creating = asyncio.Lock()

    def get(self, topic: str, partition: int) -> BrokerPartition | None:
        """Return the partition, or None if it has no log yet. Raises CorruptLogError for one that is out of service."""
        known = self._known.get((topic, partition))
        if known is None:
            log = self._logs.get(topic, partition)
            if log is None:
                return None
            known = self._keep(topic, partition, log)
        return known

    def _keep(self, topic: str, partition: int, log: Log) -> BrokerPartition:
        counts = self.stats.of(topic, partition)
        return self._known.setdefault((topic, partition), BrokerPartition(log, self._clock, self.stats, counts))

    def choose(self, topic: str, count: int, rng: random.Random) -> int:
        """Return a random one of the `count` partitions of `topic`, preferably one that is in service."""
        number = rng.randrange(count)
        if self._logs.in_service(topic, number):
            return number
        return rng.choice([other for other in range(count) if self._logs.in_service(topic, other)] or [number])

    async def get_or_create(self, topic: str, partition: int) -> tuple[BrokerPartition, bool]:
        """Return the partition, its log created if it is missing, and whether the topic is new.

        Raises StorageError, and CorruptLogError for one that is out of service.
        """
        known = self.get(topic, partition)
        if known is not None:
            return known, False
        async with self._creating:
            now = self._clock.monotonic()
            log, new_topic = await in_thread(self._logs.get_or_create, topic, partition, now)
            return self._keep(topic, partition, log), new_topic

    async def flush_overdue(self) -> None:
        """Flush the logs whose last flush is too long ago; called by the scheduler. Raises FlushFailedError."""
        now = self._clock.monotonic()
        for partition in self._all():
            if partition.log.flush_overdue(now):
                await partition.flush()

    def is_new_topic(self, topic: str) -> bool:
        """Whether the broker has no log of the topic."""
        return not self._logs.has_topic(topic)

    def __len__(self) -> int:
        """Return the number of logs in service."""
        return len(self._logs)

    async def rest(self) -> None:
        """Close the files of logs that were not used since the last call."""
        for number, partition in enumerate(self._all(), 1):
            partition.rest()
            if not number % _LOGS:
                await asyncio.sleep(0)

    async def clean(self) -> None:
        """Apply retention to every log. Raises FlushFailedError; a log that cannot be cleaned is left for next time."""
        for partition in self._all():
            if not partition.log.settings.delete_policies:
                continue
            try:
                dropped = await partition.clean()
            except FlushFailedError:
                raise
            except StorageError as error:
                logger.error("retention_failed", log=partition.log.name, reason=reason_of(error))
                continue
            if dropped:
                logger.info("segments_deleted", log=partition.log.name, files=dropped)

    def _all(self) -> list[BrokerPartition]:
        found = (self.get(topic, number) for topic, number in self._logs.partitions())
        return [partition for partition in found if partition is not None]

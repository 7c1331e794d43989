"""The order of each key through retry topics: what follows a message that waits there waits behind it.

Strategy: a handler asks before each batch which of its keys wait, and what waits goes to the retry topic, where all
messages of a key are in one partition. A key waits while a retry topic has a message of it behind the group's committed
offset. A pass over the topics finds these keys: for each topic, in the order in which messages move through them, first
the committed offsets, then the end of the log, and what stands between the two. A message is written to the next topic
before the offset in its own is committed, so a pass sees it in one of them.

Passes are made when a partition begins, since a former owner may have written, and when a message comes whose key
waited at the last pass, at most every `_AGE` seconds. Between two passes keys are added and none is removed: a key that
counts as waiting too long costs time, and no order. Of a key its hash is kept.

Memory is bounded by a number of keys. Beyond it, and before the first pass is complete, nothing is handled: the
partition stands still until keys are done. The handlers of later topics do not wait for this one, so they get there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple, Protocol

import structlog

from consumerd.base.errors import ConsumerdError, reason_of
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.handlers.messages import Batch

log = structlog.get_logger(__name__)

#: Keys that wait, at most, before nothing more is handled.
MOST_KEYS: Final = 100_000
#: Seconds for which the result of a pass counts, and between two attempts.
_AGE: Final = 1.0


class FollowsError(Exception):
    """Why a message is deferred that did not fail: an earlier one with its key waits."""


class Waiting(NamedTuple):
    """A message in a retry topic: its offset, its key, and when it failed, in seconds since 1970."""

    offset: int
    key: bytes | None
    failed_at: float


class Bounds(NamedTuple):
    """The messages of a partition that wait: from the committed offset, or the start of the log, to its end."""

    start: int
    end: int


class RetryLogs(Protocol):
    """The retry topics, as the brokers have them now. All raise ConsumerdError."""

    async def start(self) -> None:
        """Find the brokers."""
        ...

    async def bounds(self, topic: str) -> dict[TopicPartition, Bounds]:
        """Return what waits in each partition. Committed offsets are read before the ends."""
        ...

    def read(self, partition: TopicPartition, start: int, end: int) -> AsyncGenerator[list[Waiting]]:
        """Yield the messages from `start` to `end`, in lists that are not empty."""
        ...

    async def stop(self) -> None: ...


class _Last(NamedTuple):
    """The last message of a key in a partition."""

    offset: int
    failed_at: float


class _Seen:
    """The keys of one partition that wait, by their hashes. Read up to `position`."""

    def __init__(self) -> None:
        self.position = 0
        self.last: dict[int, _Last] = {}

    def drop(self, start: int) -> None:
        """Forget what was handled: everything before `start`."""
        self.position = max(self.position, start)
        if any(each.offset < start for each in self.last.values()):
            self.last = {key: each for key, each in self.last.items() if each.offset >= start}


class RetryOrder:
    """Knows the keys that wait in `topics`, which are in the order of a message's way. `most`: keys."""

    def __init__(self, logs: RetryLogs, topics: Sequence[str], clock: Clock, *, most: int = MOST_KEYS) -> None:
        self._logs = logs
        self._topics = topics
        self._clock = clock
        self._most = most
        self._seen: dict[TopicPartition, _Seen] = {}
        #: When the newest message of each key that waits failed; those that were added since the last pass began.
        self._waiting: dict[int, float] = {}
        self._added: dict[int, float] = {}
        self._turn = asyncio.Lock()
        #: The number of passes that began, and of the last complete one, with its time.
        self._begun = self._complete = 0
        self._at = 0.0

    async def start(self) -> None:
        """Find the brokers. Raises ConsumerdError."""
        await self._logs.start()

    async def stop(self) -> None:
        await self._logs.stop()

    def add(self, keys: Iterable[bytes | None], failed_at: float | None = None) -> None:
        """Note that messages with these keys were written to a retry topic. `failed_at`: now by default."""
        at = self._clock.wall() if failed_at is None else failed_at
        for key in keys:
            if key is not None:
                self._waiting[hash(key)] = self._added[hash(key)] = at

    def failed_at(self, key: bytes | None) -> float | None:
        """When the message failed that one with `key` must follow, in seconds since 1970; None if there is none."""
        return None if key is None else self._waiting.get(hash(key))

    async def begin(self) -> None:
        """Return once a complete pass was made that began after this call: a partition is ours from now on."""
        wanted = self._begun + 1
        while self._complete < wanted or len(self._waiting) >= self._most:
            await self._pass(wanted)
            if self._complete < wanted or len(self._waiting) >= self._most:
                await self._clock.sleep(_AGE)
                wanted = self._begun + 1

    async def free(self, batch: Batch) -> int:
        """The number of messages from the front of `batch` whose keys do not wait, 0 where the first one must."""
        if not self._complete or len(self._waiting) >= self._most:
            await self.begin()
        first = self._first_waiting(batch)
        if first == 0 and self._clock.monotonic() - self._at >= _AGE:
            await self._pass(self._begun + 1)
            first = self._first_waiting(batch)
        return first

    def waiting(self, batch: Batch) -> int:
        """The number of messages from the front of `batch` that must wait."""
        keys = batch.keys or ()
        return next((number for number, key in enumerate(keys) if self.failed_at(key) is None), len(keys))

    def _first_waiting(self, batch: Batch) -> int:
        if not self._waiting:
            return len(batch)
        keys = batch.keys or ()
        return next((number for number, key in enumerate(keys) if self.failed_at(key) is not None), len(batch))

    async def _pass(self, wanted: int) -> None:
        """Look at the topics, unless pass number `wanted` was made by another call. Failures are logged."""
        async with self._turn:
            if self._complete >= wanted:
                return
            self._begun += 1
            self._added = {}  # what was written before, this pass reads
            try:
                whole = await self._look()
            except ConsumerdError as error:
                log.warning("retry_keys_unavailable", topics=list(self._topics), reason=reason_of(error))
                return
            found: dict[int, float] = {}
            for seen in self._seen.values():
                for key, last in seen.last.items():
                    found[key] = max(last.failed_at, found.get(key, 0.0))
            if whole:
                self._waiting = found | self._added
                self._complete, self._at = self._begun, self._clock.monotonic()
            else:
                self._waiting |= found
                log.warning("retry_keys_exceeded", topics=list(self._topics), keys=len(self._waiting), most=self._most)

    async def _look(self) -> bool:
        """Read what the topics have by now; return False where there was not enough room for all keys."""
        whole = True
        for topic in self._topics:
            for partition, bounds in (await self._logs.bounds(topic)).items():
                seen = self._seen.setdefault(partition, _Seen())
                if bounds.end < seen.position:  # another log under the same name
                    seen = self._seen[partition] = _Seen()
                seen.drop(bounds.start)
                whole &= await self._read(partition, seen, bounds.end)
        return whole

    async def _read(self, partition: TopicPartition, seen: _Seen, end: int) -> bool:
        if seen.position >= end:
            return True
        async with aclosing(self._logs.read(partition, seen.position, end)) as lists:
            async for messages in lists:
                if sum(len(each.last) for each in self._seen.values()) >= self._most:
                    return False
                seen.last |= {hash(key): _Last(offset, at) for offset, key, at in messages if key is not None}
                seen.position = messages[-1].offset + 1
        seen.position = end
        return True

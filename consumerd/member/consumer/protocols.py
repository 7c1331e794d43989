"""Protocols of what the flow of partitions needs from the rooms below it, in either dialect.

The real ones: `consumerd.member.fetch.pool.FetchPool`; the stores of `consumerd.member.offsets`, which `make_store`
chooses from; the ZooKeeper session, and the membership of a group that a broker coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Set
from typing import NamedTuple, Protocol

from consumerd.base.budget import ByteBudget
from consumerd.base.partition import LogId, TopicPartition
from consumerd.base.ports import Clock
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.listener import FetchCounters, FetchListener


class PartitionPool(Protocol):
    """Fetches partitions into lanes; see `consumerd.member.fetch.pool.FetchPool` for the promises."""

    @property
    def partitions(self) -> Set[TopicPartition]: ...

    @property
    def counters(self) -> FetchCounters: ...

    def expect(self, partitions: Iterable[TopicPartition]) -> None: ...

    def add(self, partition: TopicPartition, offset: int, lane: Lane, log: LogId) -> None: ...

    async def remove(self, partition: TopicPartition) -> None: ...

    def pause(self, partition: TopicPartition) -> None: ...

    def resume(self, partition: TopicPartition) -> None: ...

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    async def list_offsets(self, partition: TopicPartition, time: int, max_number: int = 1) -> tuple[int, ...]: ...

    async def offset_at(self, partition: TopicPartition, time_ms: int) -> int: ...

    def known_end(self, partition: TopicPartition) -> int | None: ...

    async def log_end(self, partition: TopicPartition) -> int: ...


class Fetching(NamedTuple):
    """A pool, what has to run for it, beside the member, and what counts the registered brokers (None: not known)."""

    pool: PartitionPool
    works: list[Callable[[], Coroutine[None, None, None]]]
    brokers: Callable[[], int | None]


class FetchOwner(FetchListener, Protocol):
    """The member for which partitions are fetched, and which is notified of resets and skipped messages."""

    settings: ConsumerSettings
    clock: Clock
    budget: ByteBudget


class Lease(Protocol):
    """The lease on which ownership depends: for how long no other member can have taken over."""

    @property
    def session_id(self) -> int:
        """An id that changes when ownership has to be gained again; 0 while there is none."""
        ...

    @property
    def session_timeout(self) -> float:
        """Seconds without contact after which others take over."""
        ...

    def lease_left(self) -> float:
        """Seconds for which no other member can have taken over; negative when one may have."""
        ...

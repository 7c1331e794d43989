"""Protocols of what the flow of partitions needs from the rooms below it, in either dialect.

The real ones: `consumerd.fetch.FetchPool` and `V08FetchPool`; the stores of `consumerd.offsets`, which
`make_store` chooses from; the ZooKeeper session, and the membership of a group that a broker coordinates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from consumerd.fetch import Lane
    from consumerd.offsets import CommitResult
    from consumerd.partition import TopicPartition


class PartitionPool(Protocol):
    """Fetches partitions into lanes; see `consumerd.fetch.FetchPool` for the promises."""

    @property
    def partitions(self) -> frozenset[TopicPartition]: ...

    def add(self, partition: TopicPartition, offset: int, lane: Lane) -> None: ...

    async def remove(self, partition: TopicPartition) -> None: ...

    def pause(self, partition: TopicPartition) -> None: ...

    def resume(self, partition: TopicPartition) -> None: ...

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    async def list_offsets(self, partition: TopicPartition, time: int, max_number: int = 1) -> tuple[int, ...]: ...


class OffsetStore(Protocol):
    """Committed offsets; see `consumerd.offsets.ZooKeeperOffsetStore` for the promises."""

    @property
    def keeps_for(self) -> float | None:
        """Seconds for which an offset is sure to be kept if it is not written again; None: for ever."""
        ...

    async def changed(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]: ...

    async def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    async def peek(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    async def commit(self, positions: Mapping[TopicPartition, int], *, session_id: int) -> CommitResult: ...


class Lease(Protocol):
    """What ownership rests on, and for how long nobody else can have been given it."""

    @property
    def session_id(self) -> int:
        """Changes when ownership has to be gained anew; 0 while there is none."""
        ...

    @property
    def session_timeout(self) -> float:
        """Seconds without contact after which others take over."""
        ...

    def lease_left(self) -> float:
        """Seconds for which nobody can have taken over; negative when somebody may have."""
        ...

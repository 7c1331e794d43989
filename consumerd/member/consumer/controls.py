"""Operations on single partitions: positions, offsets and lag, seek, pause and resume.

Strategy: thin. Positions are those of `consumerd.member.consumer.partitions`, ends are asked of the brokers, commits of
ZooKeeper. What changes the flow takes effect at once: no message from before comes after `seek` or `pause` returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.member.consumer.errors import NotAssignedError
from consumerd.member.consumer.partitions import OwnedPartitions
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.offsets.store import OffsetStore
from consumerd.wire.v07 import EARLIEST, LATEST


class PartitionControls:
    """Operations on the partitions of one running member. NotAssignedError: the partition is not ours, or not yet."""

    def __init__(self, partitions: OwnedPartitions, pool: FetchPool, store: OffsetStore) -> None:
        self._partitions = partitions
        self._pool = pool
        self._store = store

    def assignment(self) -> dict[TopicPartition, int]:
        """Return the assigned partitions whose position is known, each with the number of its stream."""
        mine = sorted(self._partitions.partitions)
        return {each: self._partitions.stream(each) for each in mine if self._partitions.position(each) is not None}

    def position(self, partition: TopicPartition) -> int:
        """Return the offset up to which all messages are handled, which a commit writes."""
        position = self._partitions.position(partition)
        if position is None:
            raise NotAssignedError(partition)
        return position

    async def committed_offset(self, partition: TopicPartition) -> int | None:
        """Return the committed offset of a partition that need not have a position yet; None for none.

        Waits until the store answers. Raises permanent errors of brokers, and those of a closed store.
        """
        return await self._partitions.starts.committed(partition)

    def pause(self, *partitions: TopicPartition) -> None:
        """Stop fetching and delivering these until `resume`; they stay ours. A new assignment ends the pause."""
        self._hold(partitions, held=True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Continue after `pause`, from where it stopped."""
        self._hold(partitions, held=False)

    def _hold(self, partitions: Iterable[TopicPartition], *, held: bool) -> None:
        for partition in partitions:
            if not self._partitions.pause(partition, held):
                raise NotAssignedError(partition)

    async def seek(self, partition: TopicPartition, offset: int) -> int:
        """Continue at `offset`, or at EARLIEST or LATEST; return the offset, which is the position from now on.

        Offsets are not checked: they must be boundaries of messages (`next_offset`), and one that the broker does not
        have leads to what `out_of_range` says. Raises ValueError for what is not an offset, and BrokerError when
        EARLIEST or LATEST cannot be looked up.
        """
        if not isinstance(offset, int) or offset < EARLIEST:
            raise ValueError(f"an offset must be a number from 0 on, EARLIEST or LATEST, not {offset!r}")
        self.position(partition)
        if offset < 0:
            (offset,) = await self.offsets_before(partition, offset, 1)
        if not self._partitions.seek(partition, offset):
            raise NotAssignedError(partition)
        return offset

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Return the committed offsets of these, or of ours if none is named, without those that have none."""
        return await self._store.peek(partitions or self.assignment())

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Return the end offsets of these, or of ours if none is named. Raises BrokerError, WireError.

        With `read_committed`, they are where open transactions begin: no message from there on is delivered yet.
        """
        wanted = partitions or tuple(self.assignment())
        ends = await asyncio.gather(*(self.offsets_before(each, LATEST, 1) for each in wanted))
        return {each: end[0] for each, end in zip(wanted, ends, strict=True)}

    async def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Return the bytes or messages that are not handled yet, of these or of all of ours. Raises as `end_offsets`.

        Those behind open transactions count, too.
        """
        wanted = partitions or tuple(self.assignment())
        ends = await asyncio.gather(*map(self.log_end, wanted))
        return {each: max(0, end - self.position(each)) for each, end in zip(wanted, ends, strict=True)}

    def known_end(self, partition: TopicPartition) -> int | None:
        """Return the end of the log, if a broker has confirmed it in the last seconds; None: ask `log_end`."""
        return self._pool.known_end(partition)

    async def log_end(self, partition: TopicPartition) -> int:
        """Return the end of the log, open transactions included. Raises as `end_offsets`."""
        return await self._pool.log_end(partition)

    async def offsets_before(self, partition: TopicPartition, time: int, max_number: int = 1) -> tuple[int, ...]:
        """Up to `max_number` offsets, descending, of segments older than `time` (ms since 1970, EARLIEST, LATEST).

        Raises BrokerError, WireError; also when the broker names none for EARLIEST and LATEST.
        """
        offsets = await self._pool.list_offsets(partition, time, max_number)
        if not offsets and time < 0:
            raise BrokerError(f"broker {partition.broker} returned no offset of {partition}")
        return offsets

    async def commit(self) -> dict[TopicPartition, int]:
        """Write all positions that moved. Returns the offsets that ZooKeeper holds then. Raises ZooKeeperError."""
        return await self._partitions.commit_now()

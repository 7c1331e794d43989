"""The partitions that this member owns: starting, draining and abandoning their flow of messages.

Strategy: per partition one task that finds its position, then hands over (`PartitionWork`). Everything the membership
machine asks of the flow is a method here and is answered when it is really so: `drain` returns when no handler holds
anything and what was handled is committed, `abandon` when no handler holds anything. Commits are serialised by one
lock, so that an older position can never be written over a newer one; the last one of a drain is repeated while the
coordinator moves, since nobody repeats it later. A store that forgets what is not written is told again of positions
that stand still. Hooks are told between flow and owner node: of a new partition before its first fetch, of a drained
one before it may be released, of a lost one before it can come back. Where a flow begins is found by `starts`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from consumerd.consumer.owned import Owned
from consumerd.consumer.starts import StartFinder
from consumerd.consumer.work import PartitionWork
from consumerd.errors import BrokerError, ConsumerdError, ZooKeeperError
from consumerd.fetch import Lane
from consumerd.handlers import PartitionTakenError
from consumerd.offsets import OffsetsUnavailableError
from consumerd.zk.errors import ConnectionLost, NotConnected, SessionChanged

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.consumer.fence import Fence
    from consumerd.consumer.listeners import OwnershipHooks
    from consumerd.consumer.seams import OffsetStore, PartitionPool
    from consumerd.consumer.settings import ConsumerSettings
    from consumerd.consumer.sinks import PartitionedHandler
    from consumerd.consumer.stats import ConsumerStats
    from consumerd.fetch import ByteBudget
    from consumerd.partition import TopicPartition
    from consumerd.ports import Clock

log = structlog.get_logger(__name__)

#: What a drain may spend on its last commit after the handler ended, at least.
COMMIT_GRACE = 1.0
#: Between attempts of a drain's last commit, in seconds.
_COMMIT_PAUSE = 0.1


class OwnedPartitions:
    """The flow of messages of all owned partitions.

    `failed` is told of the errors that have to stop the member, `lost` of partitions whose owner node is not ours
    any more, `progressed` of every handled batch.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        pool: PartitionPool,
        budget: ByteBudget,
        store: OffsetStore,
        handler: PartitionedHandler,
        fence: Fence,
        clock: Clock,
        stats: ConsumerStats,
        hooks: OwnershipHooks,
        *,
        failed: Callable[[ConsumerdError], None],
        lost: Callable[[TopicPartition], None],
        progressed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._budget = budget
        self._store = store
        self._handler = handler
        self._fence = fence
        self._clock = clock
        self._stats = stats
        self._hooks = hooks
        self._failed = failed
        self._lost = lost
        self._progressed = progressed
        self._owned: dict[TopicPartition, Owned] = {}
        self._starts = StartFinder(settings, pool, store, handler, fence, clock)
        self._committing = asyncio.Lock()

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that flow, or are about to."""
        return frozenset(self._owned)

    def position(self, partition: TopicPartition) -> int | None:
        """The handled prefix of an owned partition, once its start is known."""
        owned = self._owned.get(partition)
        return owned.work.position if owned is not None and owned.work is not None else None

    def stream(self, partition: TopicPartition) -> int:
        """The number of our stream for which an owned partition was claimed."""
        return self._owned[partition].stream

    @property
    def all_at_end(self) -> bool:
        """Whether every partition is handled up to where it ended when it was claimed."""
        return all(owned.at_end for owned in self._owned.values())

    # -- the flow

    def start(self, partition: TopicPartition, stream: int, session_id: int, group: asyncio.TaskGroup) -> None:
        """Begin the flow of a partition that was claimed on `session_id`; its task belongs to `group`."""
        owned = self._owned[partition] = Owned(partition, stream, session_id)
        owned.task = group.create_task(self._flow(owned), name=f"consume {partition}")

    async def _flow(self, owned: Owned) -> None:
        partition = owned.partition
        try:
            start, owned.committed, owned.end = await self._starts.find(partition, owned.session_id)
            if owned.end is not None and start > owned.end:
                owned.beyond = start
            lane = Lane(partition, self._budget, max_bytes=self._settings.partition_budget)
            owned.work = PartitionWork(
                partition,
                owned.session_id,
                start,
                lane,
                self._handler.for_partition(partition, owned.stream, lambda: self._fence.allows(owned.session_id)),
                self._fence,
                self._clock,
                self._stats,
                self._progressed,
            )
            await self._hooks.assigned(partition)
            if lane.closed:  # drained meanwhile
                return
            start = owned.work.position  # hooks may seek
            log.info("partition_started", partition=str(partition), offset=start)
            self._pool.add(partition, start, lane)
            if owned.paused:
                self._pool.pause(partition)
            self._progressed()
            await owned.work.run()
        except PartitionTakenError as error:
            # The sink knows before ZooKeeper told us. Look again who owns it; if it is us, it is claimed anew.
            log.warning("partition_taken", partition=str(partition), error=str(error))
            self._stats.lost_partitions += 1
            self._lost(partition)
        except ConsumerdError as error:
            self._failed(error)

    def pause(self, partition: TopicPartition, paused: bool) -> bool:
        """Fetch and hand out nothing of a partition (or do so again); False if it does not flow."""
        owned = self._owned.get(partition)
        if owned is None or owned.work is None:
            return False
        owned.paused = paused
        owned.work.hold(paused)
        if partition in self._pool.partitions:
            (self._pool.pause if paused else self._pool.resume)(partition)
        return True

    def seek(self, partition: TopicPartition, offset: int) -> bool:
        """Go on at `offset` and forget what was fetched; False if the partition does not flow."""
        owned = self._owned.get(partition)
        if owned is None or owned.work is None:
            return False
        owned.work.seek(offset)
        if partition in self._pool.partitions:
            self._pool.seek(partition, offset)
        return True

    async def drain(self, partition: TopicPartition, deadline: float) -> None:
        """Stop fetching, let the handler end until `deadline`, commit what was handled."""
        owned = self._owned.get(partition)
        if owned is not None:
            await self._drain([owned], deadline)

    async def drain_all(self, deadline: float) -> None:
        """As `drain`, for all partitions together."""
        await self._drain(list(self._owned.values()), deadline)

    async def _drain(self, leaving: list[Owned], deadline: float) -> None:
        await asyncio.gather(*(self._end(owned, deadline) for owned in leaving))
        if self._settings.auto_commit:
            limit = max(deadline - self._clock.monotonic(), COMMIT_GRACE)
            try:
                async with asyncio.timeout(limit):
                    while not await self._commit(leaving):
                        await self._clock.sleep(_COMMIT_PAUSE)
            except TimeoutError:
                for owned in leaving:
                    position = owned.work and owned.work.position
                    log.warning("last_commit_timed_out", partition=str(owned.partition), position=position)
        await asyncio.gather(*(self._hooks.revoked(owned.partition) for owned in leaving))
        for owned in leaving:
            self._forget(owned)

    async def abandon(self, partition: TopicPartition) -> None:
        """Stop at once and commit nothing. What was handled is remembered, in case the partition is ours still."""
        owned = self._owned.get(partition)
        if owned is None:
            return
        await self._end(owned, None)
        self._forget(owned)
        await self._hooks.lost(partition)

    async def _end(self, owned: Owned, deadline: float | None) -> None:
        """End fetching and the task. Without a deadline, or without work yet, the task is cancelled."""
        if owned.partition in self._pool.partitions:
            await self._pool.remove(owned.partition)
        task = owned.task
        assert task is not None
        if owned.work is not None and deadline is not None:
            await owned.work.drain(task, deadline)
            return
        if owned.work is not None:
            owned.work.end()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
            if owned.partition in self._pool.partitions:
                # The task had just got as far as `add` when it was cancelled.
                await self._pool.remove(owned.partition)

    def _forget(self, owned: Owned) -> None:
        if self._owned.get(owned.partition) is owned:
            del self._owned[owned.partition]
        if owned.work is not None:
            self._starts.remember(owned.partition, owned.session_id, owned.committed, owned.work.position)

    # -- commits

    async def commit_all(self) -> None:
        """Write every position that moved since it was last written, or that the store may forget.

        Failures are logged; the next commit repeats.
        """
        await self._commit(list(self._owned.values()))

    async def commit_now(self) -> dict[TopicPartition, int]:
        """As `commit_all`, but raises ZooKeeperError. What ZooKeeper holds now of each owned partition, if anything."""
        owned = list(self._owned.values())
        await self._write(owned)
        return {each.partition: each.committed for each in owned if each.committed is not None}

    async def _commit(self, owned: list[Owned]) -> bool:
        """Whether there is nothing to repeat at once: only Kafka's first refusal tells who coordinates by now."""
        try:
            await self._write(owned)
        except OffsetsUnavailableError as error:
            log.warning("commit_postponed", partitions=len(owned), error=str(error))
            return False
        except (NotConnected, ConnectionLost, SessionChanged) as error:
            log.warning("commit_postponed", partitions=len(owned), error=str(error))
        except ConsumerdError as error:
            self._failed(error)
        return True

    async def _write(self, owned: list[Owned]) -> None:
        async with self._committing:
            now = self._clock.monotonic()
            due = [each for each in owned if each.is_due(now, self._store.keeps_for)]
            if not due:
                return
            # Of a session that is over nothing can be written: what a handler holds of it keeps no others back.
            session_id = due[-1].session_id
            moved = {each.partition: each for each in due if each.session_id == session_id}
            positions = {tp: each.work.position for tp, each in moved.items() if each.work is not None}
            try:
                result = await self._store.commit(positions, session_id=session_id)
            except (ZooKeeperError, BrokerError):
                self._stats.failed_commits += len(positions)
                raise
            for partition in result.committed:
                moved[partition].committed = positions[partition]
                moved[partition].written_at = now
            self._stats.commits += len(result.committed)
        for partition in result.lost:
            if self._owned.get(partition) is not moved[partition]:
                continue  # it was lost before we heard of it here, and may be ours anew
            log.warning("ownership_lost", partition=str(partition))
            self._stats.lost_partitions += 1
            self._lost(partition)

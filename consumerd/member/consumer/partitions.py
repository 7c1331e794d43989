"""The partitions that this member owns: starting, draining and abandoning their flow of messages.

Strategy: one task per partition finds its start, then delivers (`PartitionWork`). Each action of the membership machine
on the flow is a method here for a set of partitions, answered in parts as handlers end: `drain` when no handler holds
anything and what was handled is committed, `abandon` when no handler holds anything and no commit of the partition is
under way. Commits are grouped (`consumerd.member.consumer.commits`); the last one of a drain is repeated while the
coordinator moves, since nothing repeats it later. Unchanged positions are written again to a store that deletes old
offsets, and after another process wrote to it. Hooks are called before the first fetch of a new partition, before the
release of a drained one, and before a lost one can come back. `starts` finds the start; an offset that the next owner
would not find again (the end of a log, a reset) is committed before the first fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple, Protocol

import structlog

from consumerd.base.budget import ByteBudget
from consumerd.base.errors import BrokerError, ConsumerdError, ZooKeeperError, reason_of
from consumerd.base.partition import TopicPartition
from consumerd.base.turns import TurnLimit
from consumerd.handlers import PartitionTakenError
from consumerd.member.consumer.commits import POSTPONING, Commits
from consumerd.member.consumer.listeners import Announcer
from consumerd.member.consumer.owned_partition import OwnedPartition, OwnedView
from consumerd.member.consumer.partition_work import BatchInHand, PartitionWork, WorkOwner
from consumerd.member.consumer.sinks import PartitionedHandler
from consumerd.member.consumer.start_offsets import REFUSED_PAUSE, RETRY_PAUSE, StartFinder
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.offsets.errors import OffsetsUnavailableError
from consumerd.member.offsets.store import OffsetStore

#: Called with partitions that have ended.
Ended = Callable[[frozenset[TopicPartition]], None]

log = structlog.get_logger(__name__)

#: Seconds that a drain has for its last commit after the handler ended, at least. It waits for the commit under way,
#: and either may be refused, read again and repeated: a dozen round trips, of 0.4 s each to a ZooKeeper far away.
COMMIT_GRACE: Final = 5.0
#: Seconds between attempts of a drain's last commit.
_COMMIT_PAUSE: Final = 0.1
#: Seconds for which partitions that end at the same time are gathered, to be committed and reported together.
_GATHER: Final = 0.01
#: A task that does not end when it is cancelled is cancelled again after this many seconds: a handler may swallow it.
_CANCEL_AGAIN: Final = 1.0
#: Partitions that one line of the log names.
_SHOWN: Final = 20
#: Partitions that begin in one turn of the event loop, some 10 ms of a core.
_BEGIN_TOGETHER: Final = 128


class FlowOwner(WorkOwner, Protocol):
    """The member that owns partitions."""

    hooks: Announcer

    def request_stop(self, failure: ConsumerdError | None = None) -> None:
        """Leave the group because of an error."""
        ...


class _Interrupted(NamedTuple):
    """An owned partition whose flow is to begin again."""

    stream: int
    session_id: int
    paused: bool


class OwnedPartitions:
    """The flow of messages of all owned partitions. Calls `lost` with those whose owner node is no longer ours."""

    def __init__(
        self,
        owner: FlowOwner,
        handler: PartitionedHandler,
        pool: FetchPool,
        budget: ByteBudget,
        store: OffsetStore,
        lost: Callable[[frozenset[TopicPartition]], None],
    ) -> None:
        self._owner = owner
        self._handler = handler
        self._pool = pool
        self._budget = budget
        self._lost = lost
        self._settings, self._clock, self._fence = settings, clock, fence = owner.settings, owner.clock, owner.fence
        self._owned: dict[TopicPartition, OwnedPartition] = {}
        #: While all flows are interrupted: the owned partitions that do not flow.
        self._interrupted: dict[TopicPartition, _Interrupted] | None = None
        self.starts = StartFinder(settings, pool, store, handler, fence, clock)
        self._turns = TurnLimit(_BEGIN_TOGETHER)
        #: The partitions that began, with their offsets, until a line of the log names them.
        self._started: dict[TopicPartition, int] = {}
        self._commits = Commits(store, fence, clock, owner.stats, self._report_lost, pool.counters)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that flow, or are about to."""
        return frozenset(self._owned) | (self._interrupted or {}).keys()

    def views(self) -> list[OwnedView]:
        """The present state of each of them, sorted."""
        return [self._owned[partition].view() for partition in sorted(self._owned)]

    def in_hand(self) -> dict[TopicPartition, BatchInHand]:
        """The batches that handlers have now, by partition. With thousands of idle partitions, cheaper than `views`."""
        found = {}
        for partition, owned in self._owned.items():
            work = owned.work
            if work is not None and (batch := work.in_hand) is not None:
                found[partition] = batch
        return found

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

    def start(self, streams: Mapping[TopicPartition, int], session_id: int, group: asyncio.TaskGroup) -> None:
        """Begin the flow of partitions that were claimed on `session_id`; their tasks belong to `group`."""
        self._pool.expect(streams)
        for partition, stream in streams.items():
            if self._interrupted is not None:
                self._interrupted[partition] = _Interrupted(stream, session_id, paused=False)
                continue
            self._begin(OwnedPartition(partition, stream, session_id), group)

    def _begin(self, owned: OwnedPartition, group: asyncio.TaskGroup) -> None:
        self._owned[owned.partition] = owned
        owned.task = group.create_task(self._flow(owned), name=f"consume {owned.partition}")

    async def _flow(self, owned: OwnedPartition) -> None:
        partition = owned.partition
        try:
            await self._turns.wait()
            found = await self.starts.find(partition, owned.session_id)
            await self._turns.wait()  # those of which the offsets were read together are as many
            if owned.closed:  # the handler was asked for its position, and swallowed the cancellation
                return
            start = owned.start = found.offset
            owned.committed, owned.end = found.committed, found.end
            if owned.end is not None and start > owned.end:
                owned.beyond = start
            lane = Lane(partition, self._budget, max_bytes=self._settings.fetch.partition_budget)
            owned.lane = lane
            owned.work = PartitionWork(
                partition,
                owned.session_id,
                start,
                lane,
                self._handler.for_partition(partition, owned.stream, lambda: self._fence.allows(owned.session_id)),
                self._owner,
                found.log,
            )
            owned.begins_at_end, owned.passing = found.at_end, found.passing
            if found.passing:
                await self._write_down(owned)
            await self._owner.hooks.assigned(partition)
            if lane.closed:  # it was drained meanwhile
                return
            start = owned.work.position  # hooks may seek
            self._note_started(partition, start)
            self._pool.add(partition, start, lane, owned.work.log)
            if owned.paused:
                self._pool.pause(partition)
            self._owner.check_end()
            await owned.work.run()
        except PartitionTakenError as error:
            # The sink noticed the loss before our watch did. Read the owner again; if it is us, the partition is
            # claimed again.
            log.warning("partition_taken", partition=str(partition), reason=reason_of(error))
            self._lost(frozenset([partition]))
        except ConsumerdError as error:
            self._owner.request_stop(error)

    def _note_started(self, partition: TopicPartition, offset: int) -> None:
        """Log that a partition begins, in one line with those that begin in the same or in successive turns."""
        self._started[partition] = offset
        if len(self._started) == 1:
            asyncio.get_running_loop().call_soon(self._log_started, 1)

    def _log_started(self, known: int) -> None:
        if len(self._started) > known:  # the next turn may bring more
            asyncio.get_running_loop().call_soon(self._log_started, len(self._started))
            return
        started, self._started = self._started, {}
        offsets = {str(partition): offset for partition, offset in islice(started.items(), _SHOWN)}
        if len(started) == 1:
            ((partition, offset),) = offsets.items()
            log.info("partition_started", partition=partition, offset=offset)
        else:
            log.info("partition_started", partitions=len(started), offsets=offsets)

    async def _write_down(self, owned: OwnedPartition) -> None:
        """Commit the offset at which the partition continues, which is known only now; repeat until it succeeds."""
        if not self._settings.auto_commit:
            return
        pause = RETRY_PAUSE
        while not owned.closed:
            await self._commit([owned])
            assert owned.work is not None
            if owned.committed == owned.work.position:
                return
            await self._clock.sleep(pause)
            if owned.refusal is not None:
                pause = min(2 * pause, REFUSED_PAUSE)

    async def reset(self, partition: TopicPartition) -> None:
        """Return when the position of a reset is committed; a batch in the lane carries it."""
        owned = self._owned[partition]
        assert owned.lane is not None  # it is being fetched
        await owned.lane.wait_drained()  # what was fetched before is handled first
        await self._write_down(owned)

    def pause(self, partition: TopicPartition, paused: bool) -> bool:
        """Stop fetching and delivering a partition, or continue it; return False if it does not flow."""
        owned = self._owned.get(partition)
        if owned is None or owned.work is None:
            return False
        owned.paused = paused
        owned.work.hold(paused)
        if partition in self._pool.partitions:
            (self._pool.pause if paused else self._pool.resume)(partition)
        return True

    def seek(self, partition: TopicPartition, offset: int) -> bool:
        """Continue at `offset` and drop what was fetched; return False if the partition does not flow."""
        owned = self._owned.get(partition)
        if owned is None or owned.work is None:
            return False
        owned.work.seek(offset)
        if partition in self._pool.partitions:
            self._pool.seek(partition, offset)
        return True

    # -- the end of flows

    async def drain(self, partitions: Collection[TopicPartition], deadline: float, drained: Ended) -> None:
        """Stop fetching, let handlers end until `deadline`, commit what was handled; `drained` is called in parts.

        Nothing is reported of partitions that are abandoned meanwhile.
        """

        async def finish(part: list[OwnedPartition]) -> None:
            leaving = [owned for owned in part if not owned.abandoned]
            if self._settings.auto_commit:
                await self._commit_last(leaving, deadline)
            await asyncio.gather(*(self._owner.hooks.revoked(owned.partition) for owned in leaving))
            drained(self._forget(owned for owned in leaving if not owned.abandoned))

        leaving = self._find(partitions)
        for owned in leaving:
            owned.leaving = True
        if held := self._take_interrupted(partitions):
            drained(held)
        await self._end_in_parts(leaving, deadline, finish)

    async def abandon(self, partitions: Collection[TopicPartition], abandoned: Ended) -> None:
        """Stop at once and commit nothing. Handled positions are remembered, in case the partitions are still ours."""
        leaving = self._find(partitions)
        for owned in leaving:
            owned.abandoned = owned.leaving = True
            owned.close()

        async def finish(part: list[OwnedPartition]) -> None:
            await self._commits.wait_for(part)  # else the next owner could read the offset before it is written
            self._log_uncommitted(part)
            self._owner.stats.lost_partitions += len(part)
            gone = self._forget(part)
            await asyncio.gather(*(self._owner.hooks.lost(owned.partition) for owned in part))
            abandoned(gone)

        if held := self._take_interrupted(partitions):
            abandoned(held)
        await self._end_in_parts(leaving, None, finish)

    async def interrupt(self, deadline: float) -> None:
        """End all flows as a drain does, and keep the partitions: nothing flows until `resume` is called.

        Partitions may come and go meanwhile.
        """
        interrupted: dict[TopicPartition, _Interrupted] = {}
        self._interrupted = interrupted

        async def finish(part: list[OwnedPartition]) -> None:
            staying = [owned for owned in part if not owned.leaving]
            if self._settings.auto_commit:
                await self._commit_last(staying, deadline)
            await asyncio.gather(*(self._owner.hooks.revoked(owned.partition) for owned in staying))
            for owned in staying:
                if not owned.leaving:
                    self._forget([owned])
                    interrupted[owned.partition] = _Interrupted(owned.stream, owned.session_id, owned.paused)

        await self._end_in_parts(list(self._owned.values()), deadline, finish)

    def resume(self, group: asyncio.TaskGroup) -> None:
        """Begin the flows that `interrupt` ended, and those of partitions assigned since."""
        held, self._interrupted = self._interrupted or {}, None
        for partition, (stream, session_id, paused) in held.items():
            owned = OwnedPartition(partition, stream, session_id)
            owned.paused = paused
            self._begin(owned, group)

    def _take_interrupted(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Return those of `partitions` that are interrupted: nothing of them is held, and all is committed."""
        interrupted = self._interrupted or {}
        return frozenset(each for each in partitions if interrupted.pop(each, None) is not None)

    async def end_all(self) -> None:
        """The member is cancelled: deliver nothing more, and return when the handlers have ended."""
        leaving = list(self._owned.values())
        for owned in leaving:
            owned.abandoned = True
            owned.close()
        self._log_uncommitted(leaving)
        await asyncio.gather(*(_cancel(owned.task) for owned in leaving))

    def _find(self, partitions: Iterable[TopicPartition]) -> list[OwnedPartition]:
        return [self._owned[partition] for partition in sorted(partitions) if partition in self._owned]

    async def _end_in_parts(
        self,
        leaving: list[OwnedPartition],
        deadline: float | None,
        finish: Callable[[list[OwnedPartition]], Awaitable[None]],
    ) -> None:
        """End flows; `finish` is called with those that ended at about the same time together."""
        async with asyncio.TaskGroup() as group:
            pending = {group.create_task(self._end(owned, deadline)): owned for owned in leaving}
            while pending:
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait(pending, timeout=_GATHER)
                await finish([pending.pop(task) for task in list(pending) if task.done()])

    async def _end(self, owned: OwnedPartition, deadline: float | None) -> None:
        """End fetching and the task. Without a deadline, or without work yet, the task is cancelled."""
        if owned.partition in self._pool.partitions:
            await self._pool.remove(owned.partition)
        if owned.work is not None and deadline is not None:
            await owned.work.drain(owned.task, deadline)
        else:
            owned.close()  # from now on the task adds nothing to the pool
        await _cancel(owned.task)

    def _forget(self, ended: Iterable[OwnedPartition]) -> frozenset[TopicPartition]:
        forgotten = []
        for owned in ended:
            forgotten.append(owned.partition)
            if self._owned.get(owned.partition) is owned:
                del self._owned[owned.partition]
            if owned.work is not None:
                work = owned.work
                self.starts.remember(owned.partition, owned.session_id, owned.committed, work.position, work.log)
        return frozenset(forgotten)

    # -- commits

    async def commit_all(self) -> None:
        """Write every position that moved since it was last written, or that the store may forget.

        The first failure of an outage is logged (`Commits`); the next commit repeats.
        """
        await self._commit(list(self._owned.values()))

    async def commit_now(self) -> dict[TopicPartition, int]:
        """As `commit_all`, but raises ZooKeeperError, BrokerError. Returns the owned partitions' committed offsets."""
        owned = list(self._owned.values())
        await self._commits.commit(owned)
        if (refusal := next((each.refusal for each in owned if each.refusal is not None), None)) is not None:
            raise refusal
        return {each.partition: each.committed for each in owned if each.committed is not None}

    async def check_committed(self) -> None:
        """Check whether others wrote our offsets, and write ours again; those of idle partitions, too."""
        try:
            overwritten = await self._commits.check(self._owned.values())
        except (ZooKeeperError, BrokerError) as error:
            log.info("committed_offsets_check_failed", reason=reason_of(error))
            return
        if overwritten:
            await self.commit_all()

    async def _commit(self, owned: list[OwnedPartition]) -> bool:
        """Commit; return False to repeat at once: only Kafka's refusal shows that the group's coordinator has moved."""
        try:
            await self._commits.commit(owned)
        except POSTPONING as error:
            return not isinstance(error, OffsetsUnavailableError)
        except ConsumerdError as error:
            self._owner.request_stop(error)
        return True

    async def _commit_last(self, leaving: list[OwnedPartition], deadline: float) -> None:
        try:
            async with asyncio.timeout(max(deadline - self._clock.monotonic(), COMMIT_GRACE)):
                while not await self._commit(leaving):
                    await self._clock.sleep(_COMMIT_PAUSE)
        except TimeoutError:
            log.warning("last_commit_timed_out", partitions=len(leaving))
        self._log_uncommitted(leaving)

    def _log_uncommitted(self, leaving: Iterable[OwnedPartition]) -> None:
        """Log the positions that no later commit writes: messages handled since the last one are delivered again."""
        behind = {
            str(owned.partition): owned.work.position
            for owned in leaving
            if owned.work is not None and owned.work.position != owned.committed
        }
        if behind and self._settings.auto_commit:
            shown = dict(list(behind.items())[:_SHOWN])
            log.warning("positions_not_committed", partitions=len(behind), positions=shown)

    def _report_lost(self, lost: list[OwnedPartition]) -> None:
        # Some may have been lost before this was reported, and be ours again.
        partitions = frozenset(owned.partition for owned in lost if self._owned.get(owned.partition) is owned)
        if partitions:
            log.warning("ownership_lost", partitions=sorted(map(str, partitions)))
            self._lost(partitions)


async def _cancel(task: asyncio.Task[None]) -> None:
    """Return when the task has ended, cancelling it as often as it takes."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_AGAIN)

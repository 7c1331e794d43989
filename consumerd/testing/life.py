"""One life of a handler under test: the equivalent of a process, from its start to its stop or crash.

Strategy: as in `consumerd.member.consumer.partition_work`, batches of one partition are delivered in turn, and a
`HandledPrefix` says what counts as handled. The logs and the committed offsets are handed in: they outlive the process.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

from consumerd.base.errors import HandlerFailedError
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, Handler, PartitionTakenError
from consumerd.member.offsets.tracker import HandledPrefix
from consumerd.testing.errors import ContractError, HarnessError
from consumerd.testing.records import Attempt, DeliveredBatch, ObservedHandler, Revocation
from consumerd.wire.v07 import Codec, MessageBatch, decode_batch, encode_message_set, iter_outer


class MemoryPartitionLog:
    """Starts at offset 0 and only grows."""

    def __init__(self) -> None:
        self._data = bytearray()
        #: The starts of outermost messages, and the end of the last one.
        self._boundaries = [0]

    @property
    def end(self) -> int:
        """The offset after the last message."""
        return len(self._data)

    def append(self, payloads: Iterable[bytes], *, codec: Codec = Codec.NONE, magic: int = 1) -> int:
        """Append a message set; returns the offset at which it begins. Raises EncodeError."""
        start = self.end
        data = encode_message_set(payloads, magic=magic, codec=codec)
        self._boundaries += [message.next_offset for message in iter_outer(data, start)]
        self._data += data
        return start

    def is_boundary(self, offset: int) -> bool:
        """Whether `offset` lies between outermost messages (or at an end): only there can a fetch begin."""
        return offset in self._boundaries

    def read(self, start: int, end: int, *, at_most: int | None = None) -> MessageBatch:
        """The messages from `start` to `end`, both boundaries; not more than `at_most` outermost ones."""
        if at_most is not None:
            end = [offset for offset in self._boundaries if start < offset <= end][:at_most][-1]
        return decode_batch(bytes(self._data[start:end]), start)


class Handover:
    """The messages of `partition` from `start_offset` to `next_offset`. Made by `HandlerHarness.begin`."""

    def __init__(
        self,
        partition: TopicPartition,
        start_offset: int,
        next_offset: int,
        work: Callable[[Handover], Coroutine[None, None, DeliveredBatch]],
        *,
        patience: float,
        why_waiting: Callable[[], str],
    ) -> None:
        self.partition = partition
        self.start_offset = start_offset
        self.next_offset = next_offset
        #: The tasks that there were before it.
        self.tasks_before = frozenset(asyncio.all_tasks())
        self._patience = patience
        self._why_waiting = why_waiting
        self._entered = asyncio.Event()
        self.task = asyncio.create_task(work(self), name=f"deliver {partition}")
        self.task.add_done_callback(self._ended)

    @property
    def done(self) -> bool:
        """Whether it has ended, in any way."""
        return self.task.done()

    def note_entered(self) -> None:
        """The handler was called with it."""
        self._entered.set()

    async def entered(self) -> None:
        """Return when the handler was called with it, or it ended before that."""
        await self._entered.wait()

    async def result(self) -> DeliveredBatch:
        """The result. Raises the handler's error, TimeoutError, and HarnessError when it was revoked."""
        try:
            await asyncio.wait({self.task}, timeout=self._patience)
        except asyncio.CancelledError:
            await cancel([self], self._patience)
            raise
        if not self.done:
            reason = self._why_waiting()
            await cancel([self], self._patience)
            raise TimeoutError(f"the handler has not returned from {self} within {self._patience:g} s{reason}")
        if self.task.cancelled():
            raise HarnessError(f"{self} was cancelled: its partition was revoked")
        return self.task.result()

    def __repr__(self) -> str:
        return f"<Handover {self.partition} {self.start_offset}-{self.next_offset}>"

    def _ended(self, task: asyncio.Task[DeliveredBatch]) -> None:
        self._entered.set()
        if not task.cancelled():
            task.exception()  # the caller gets it with the result


async def cancel(handovers: Sequence[Handover], patience: float) -> None:
    """Cancel and await the end. Raises ContractError for a handler that continues for `patience` seconds."""
    tasks = [each.task for each in handovers]
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    _, pending = await asyncio.wait(tasks, timeout=patience)
    if pending:
        names = ", ".join(repr(each) for each in handovers if not each.done)
        raise ContractError(f"{patience:g} s after its cancellation the handler still holds {names}")


#: Turns of the loop that cancelled tasks of a handler get to end in.
_TURNS = 5


class Life:
    """Delivers from `logs` to `handler`, commits to `committed`. `patience` in seconds of real time."""

    def __init__(
        self,
        observed: ObservedHandler,
        wrap: Callable[[Handler], Handler],
        logs: Mapping[TopicPartition, MemoryPartitionLog],
        committed: dict[TopicPartition, int],
        *,
        patience: float,
        why_waiting: Callable[[], str],
    ) -> None:
        observed.entered = self._entered
        self.handler = wrap(observed)
        self.failure: HandlerFailedError | None = None
        self._attempts = observed.attempts
        self._logs = logs
        self._committed = committed
        self._patience = patience
        self._why_waiting = why_waiting
        self._trackers: dict[TopicPartition, HandledPrefix] = {}
        self._in_hand: dict[TopicPartition, tuple[Handover, Batch]] = {}
        self._turns: defaultdict[TopicPartition, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._handovers: list[Handover] = []

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that are claimed, or about to be."""
        return sorted({*self._trackers, *(each.partition for each in self._running())})

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset before which everything counts as handled; None while the partition is not claimed."""
        if (tracker := self._trackers.get(partition)) is None:
            return None
        if partition in self._in_hand:
            _, batch = self._in_hand[partition]
            tracker.done(batch.prefix(batch.handled))
        return tracker.position

    async def claim(self, partition: TopicPartition) -> int:
        """Claim a partition, if it is not yet; return the offset to resume at. Raises ContractError."""
        async with self._turns[partition]:
            return (await self._claimed(partition)).position

    def hand_over(self, partition: TopicPartition, start: int, end: int) -> Handover:
        """Begin to deliver the messages from `start` to `end`, after those before `start`."""
        work = Handover(partition, start, end, self._work, patience=self._patience, why_waiting=self._why_waiting)
        self._handovers = [*self._running(), work]
        return work

    def commit(self, partition: TopicPartition) -> None:
        """Commit the handled offset of a claimed partition."""
        if (position := self.position(partition)) is not None:
            self._committed[partition] = position

    async def revoke(self, partition: TopicPartition, grace: float, *, commit: bool) -> Revocation:
        """Take a partition away. Raises ContractError for a handler that does not obey."""
        running = self._running(partition)
        await cancel([each for each in running if each is not self._held(partition)], self._patience)
        if grace > 0 and (held := self._held(partition)):
            await asyncio.wait([held.task], timeout=grace)
        late = self._held(partition) is not None
        await cancel(self._running(partition), self._patience)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        left: set[asyncio.Task[object]] = set()
        if running:
            known = running[0].tasks_before.union(each.task for each in (*running, *self._handovers))
            left = asyncio.all_tasks() - known - {asyncio.current_task()}
        if commit:
            self.commit(partition)
        position = self.position(partition)
        self._trackers.pop(partition, None)
        return Revocation(partition, late, position, tuple(left))

    async def cancel(self) -> None:
        """Take everything out of the handler's hands at once."""
        await cancel(self._running(), self._patience)

    def _running(self, partition: TopicPartition | None = None) -> list[Handover]:
        return [each for each in self._handovers if not each.done and partition in (None, each.partition)]

    def _held(self, partition: TopicPartition) -> Handover | None:
        """The deliveries that the handler has not finished."""
        return self._in_hand[partition][0] if partition in self._in_hand else None

    def _entered(self, partition: TopicPartition) -> None:
        if held := self._held(partition):
            held.note_entered()

    async def _claimed(self, partition: TopicPartition) -> HandledPrefix:
        if (tracker := self._trackers.get(partition)) is not None:
            return tracker
        own = await self.handler.position(partition)
        log = self._logs[partition]
        if own is not None and not log.is_boundary(own):
            raise ContractError(
                f"the handler's position of {partition} is {own}, where no batch ended (its log goes to {log.end}): "
                "it must be the `next_offset` of a batch that was handled"
            )
        start = self._committed.get(partition, 0) if own is None else own
        tracker = self._trackers[partition] = HandledPrefix(start)
        return tracker

    async def _work(self, handover: Handover) -> DeliveredBatch:
        partition, start = handover.partition, handover.start_offset
        async with self._turns[partition]:
            tracker = await self._claimed(partition)
            if tracker.position < start:
                await self._hand_over(handover, tracker, start)
            before = len(self._attempts)
            if tracker.position < handover.next_offset:
                await self._hand_over(handover, tracker, handover.next_offset)
            batch = self._logs[partition].read(start, handover.next_offset)
            return DeliveredBatch(
                partition, start, handover.next_offset, tuple(batch.payloads), self._attempts_of(partition, before)
            )

    async def _hand_over(self, handover: Handover, tracker: HandledPrefix, end: int) -> None:
        partition = handover.partition
        batch = Batch(partition, self._logs[partition].read(tracker.position, end))
        tracker.begin(batch.start_offset, batch.next_offset)
        self._in_hand[partition] = handover, batch
        try:
            if len(batch):
                await self.handler.handle(batch)
        except BaseException as error:
            tracker.done(batch.prefix(batch.handled))
            tracker.reset(tracker.position)  # unhandled messages may come again
            if isinstance(error, PartitionTakenError):
                self._trackers.pop(partition)
            elif isinstance(error, HandlerFailedError):
                self.failure = error
            raise
        finally:
            del self._in_hand[partition]
        tracker.done(batch.next_offset)

    def _attempts_of(self, partition: TopicPartition, first: int) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self._attempts[first:] if attempt.partition == partition)

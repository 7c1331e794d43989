"""The work on one owned partition: from its lane to its sink, with progress noted in the tracker.

Strategy: one task per partition, so batches are delivered in order, one at a time. A batch waits for its rate; then the
fence is checked, without an await between that and the delivery. If other batch sizes are configured, fetched batches
are joined or cut (`consumerd.handlers.batching`), and each part is delivered by itself.

A drain closes the lane and waits for the current batch until the deadline; then it cancels the task and awaits its
end: only after that may the partition be released. What the handler marks in the current batch counts at once, so a
slow batch does not hold back its partition's position.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

import structlog

from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.base.ports import Clock
from consumerd.handlers import Batch
from consumerd.handlers.batching import cut, has_size, is_full, join, joinable
from consumerd.handlers.contents import Content
from consumerd.handlers.rate import RateLimiter
from consumerd.member.consumer.fence import Fence
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.consumer.sinks import HandedBackError, Sink
from consumerd.member.consumer.stats import ConsumerStats
from consumerd.member.fetch.errors import LaneClosedError
from consumerd.member.fetch.event import Flag
from consumerd.member.fetch.lane import Fetched, Lane
from consumerd.member.offsets.tracker import HandledPrefix
from consumerd.wire.v08.records import RecordSet

log = structlog.get_logger(__name__)


class BatchInHand(NamedTuple):
    """The batch that a sink holds, at one moment."""

    #: Time of its delivery, on the member's clock.
    since: float
    start_offset: int
    #: Number of its messages that the handler has marked as handled, and of all its messages.
    handled: int
    messages: int


class WorkOwner(Protocol):
    """The member that works on partitions."""

    settings: ConsumerSettings
    clock: Clock
    fence: Fence
    stats: ConsumerStats
    #: Limits how many messages are delivered in a second, of all partitions.
    rate: RateLimiter

    def check_end(self) -> None:
        """Check whether anything is left to do, after a batch was handled or a partition ended."""


class PartitionWork:
    """Delivers the batches of `lane` to `sink`, under the owner's fence, for the session that claimed the partition."""

    __slots__ = (
        "_batching",
        "_began",
        "_clock",
        "_counts",
        "_fence",
        "_in_hand",
        "_lane",
        "_next",
        "_owner",
        "_rate",
        "_resumed",
        "_seeks",
        "_sink",
        "_taken",
        "_tracker",
        "_waiting",
        "log",
        "partition",
        "session_id",
    )

    def __init__(
        self,
        partition: TopicPartition,
        session_id: int,
        start: int,
        lane: Lane,
        sink: Sink,
        owner: WorkOwner,
        log: LogId = UNKNOWN_LOG,
    ) -> None:
        self.partition = partition
        #: The log that the position is of, as far as it is known.
        self.log = log
        self.session_id = session_id
        self._lane = lane
        self._sink = sink
        self._owner = owner
        self._fence, self._clock, self._batching = owner.fence, owner.clock, owner.settings.handler
        self._rate = owner.rate
        #: While a batch waits for its rate: expires when it is not to be delivered any more.
        self._waiting: asyncio.Timeout | None = None
        self._counts = owner.stats.of(partition)
        self._tracker = HandledPrefix(start)
        #: The current batch, with the number of seeks when it was begun: after another seek it has no effect.
        self._in_hand: tuple[int, Batch] | None = None
        self._began = 0.0
        self._seeks = 0
        #: The parts of the current batch, from when they are taken from the lane until they are done.
        self._taken: list[Fetched] = []
        #: A batch from the lane that could not be joined to the current one.
        self._next: Fetched | None = None
        #: Cleared while the partition is paused.
        self._resumed = Flag(is_set=True)

    @property
    def position(self) -> int:
        """The offset to commit: everything before it was handled."""
        if self._in_hand is not None:
            seeks, batch = self._in_hand
            self._sink.settle()
            if seeks == self._seeks:
                self._tracker.done(batch.prefix(batch.handled))
        return self._tracker.position

    @property
    def in_hand(self) -> BatchInHand | None:
        """The batch that the sink holds now, if any."""
        if self._in_hand is None:
            return None
        _, batch = self._in_hand
        self._sink.settle()
        return BatchInHand(self._began, batch.start_offset, batch.handled, len(batch))

    @property
    def next_timestamp(self) -> int | None:
        """The timestamp of the message at the position, in milliseconds; None where it has none, or is not here."""
        position, head = self.position, self._next or self._lane.head
        for messages in (*self._taken, *(() if head is None else (head,))):
            if messages.start_offset <= position < messages.next_offset:
                return messages.timestamp_from(position) if isinstance(messages, RecordSet) else None
        return None

    def seek(self, offset: int) -> None:
        """Count from `offset` on. The current batch may end, but has no effect; the caller empties the lane."""
        self._tracker.reset(offset)
        self.log = self.log.without_epoch()
        self._seeks += 1
        self._end_wait()
        if self._next is not None:
            self._lane.finished(self._next)
            self._next = None
        self._sink.discard()

    def hold(self, held: bool) -> None:
        """Deliver nothing while `held`, and have the sink deliver nothing."""
        if held:
            self._resumed.clear()
        else:
            self._resumed.set()
        self._sink.hold(held)

    async def run(self) -> None:
        """Deliver until the lane is closed. Raises HandlerFailedError when the handler's policy says to stop."""
        lane, batching = self._lane, self._batching
        cuts = has_size(batching)
        while True:
            try:
                if batching.linger:
                    fetched = await self._gather()
                else:
                    self._taken = fetched = [await lane.get()]
            except LaneClosedError:
                return
            content = fetched[0] if len(fetched) == 1 else join(fetched)
            whole = Batch(self.partition, content)
            try:
                if cuts:
                    await self._hand_over_parts(whole)
                else:
                    await self._hand_over(whole, content, self._seeks)
            except HandedBackError:
                pass  # after a seek, or because the lane is closed: nothing overtakes what was given back
            finally:
                self._finished(fetched)
            # The memory of a handled batch counts as free while the next one is awaited.
            del fetched, content, whole

    async def _gather(self) -> list[Fetched]:
        """Return the parts of the next batch, for which it waits, none from before a seek.

        Raises LaneClosedError, with nothing held.
        """
        while True:
            first = self._next or await self._lane.get()
            fetched, self._next, seeks = [first], None, self._seeks
            self._taken = fetched
            try:
                async with asyncio.timeout(self._batching.linger):
                    await self._join_more(fetched, seeks)
            except TimeoutError:
                pass
            except BaseException:
                self._finished(fetched)
                raise
            if self._seeks == seeks:
                return fetched
            self._finished(fetched)

    async def _join_more(self, fetched: list[Fetched], seeks: int) -> None:
        """Add arriving parts to `fetched`, until the batch is full or one cannot be joined to it."""
        while not is_full(fetched, self._batching):
            more = await self._lane.get()
            if self._seeks != seeks or not joinable(fetched[-1], more):
                self._next = more
                return
            fetched.append(more)

    def _finished(self, fetched: list[Fetched]) -> None:
        self._taken = []
        for messages in fetched:
            self._lane.finished(messages)

    async def _hand_over_parts(self, whole: Batch) -> None:
        seeks = self._seeks
        for batch in cut(whole, self._batching) if len(whole) else [whole]:
            await self._hand_over(batch, batch, seeks)

    async def _hand_over(self, batch: Batch, span: Batch | Content, seeks: int) -> None:
        """Deliver a batch that was fetched after seek number `seeks`; not after a later one, nor from a closed lane.

        `span`: the batch, or what all of it was made of.
        """
        if not self._resumed.state:
            await self._resumed.wait()
        if seeks != self._seeks or self._lane.closed:
            return
        start = span.start_offset
        if start < self._tracker.position:
            # A reset went backwards (out of range, earliest): the log itself begins again here.
            self._tracker.reset(start)
        self._tracker.begin(start, span.next_offset)
        # The log that has the batch has all before it, too.
        self.log = span.log
        length = len(batch)
        if not length:  # an empty compressed message only moves the position
            self._done(seeks, batch, 0, span.next_offset, start)
            return
        # As `_admit` has it: nothing was awaited since the seeks and the lane were looked at.
        if self._rate.unlimited and self._fence.allows(self.session_id):
            await self._handle(batch, span, seeks, length)
            return
        handled = 0
        while handled < length:
            rest = batch.rest(handled)
            count = await self._admit(rest, seeks)
            if not count:
                return
            part = rest if handled + count == length else rest.part(0, count)
            await self._handle(part, part, seeks, count)
            handled += count

    async def _admit(self, batch: Batch, seeks: int) -> int:
        """Wait until messages of `batch` may be delivered, at this very moment; return their number.

        0 after another seek, and once the lane is closed.
        """
        while True:
            if not self._resumed.state:
                await self._resumed.wait()
            if not self._fence.allows(self.session_id):
                await self._fence.wait(self.session_id)
            allowed = True  # nothing is awaited between that and the delivery, unless there is a rate
            if not (count := self._rate.take_now(batch)):
                count = await self._wait_for_rate(batch)
                allowed = self._fence.allows(self.session_id)
            if seeks != self._seeks or self._lane.closed:
                self._rate.give_back(count)
                return 0
            if count and allowed and self._resumed.state:
                return count
            self._rate.give_back(count)

    async def _wait_for_rate(self, batch: Batch) -> int:
        """As `RateLimiter.take`; 0 if `_end_wait` was called meanwhile."""
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await self._rate.take(batch)
        except TimeoutError:
            return 0
        finally:
            self._waiting = None

    def _end_wait(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.reschedule(asyncio.get_running_loop().time())

    async def _handle(self, batch: Batch, span: Batch | Content, seeks: int, length: int) -> None:
        """Call the handler now. `span`: as in `_hand_over`; `length`: the number of messages."""
        self._began = self._clock.monotonic()
        self._in_hand = seeks, batch
        self._fence.hold()
        try:
            await self._sink.handle(batch)
        except BaseException:
            # Cancelled at the drain's deadline, handed back or failed: what was marked as done stays done.
            handled = batch.handled
            self._done(seeks, batch, handled, batch.prefix(handled), batch.start_offset)
            raise
        finally:
            self._in_hand = None
            self._fence.release()
        self._done(seeks, batch, length, span.next_offset, span.start_offset)

    def _done(self, seeks: int, batch: Batch, count: int, end: int, start: int) -> None:
        """Note that the first `count` messages are handled, which are those from `start` to `end`."""
        if seeks != self._seeks:
            return
        self._tracker.done(end)
        if count:
            self._counts.handled(count, end - start, self._began, self._clock.monotonic())
            if batch.keyed:
                first = last = batch.timestamp(0)
                if count > 1:
                    last = batch.timestamp(count - 1)
                if first is not None and last is not None:
                    now = self._clock.wall()
                    self._counts.topic.aged(count, now - first / 1000, now - last / 1000)
        self._owner.check_end()

    def end(self) -> None:
        """Deliver nothing new, and release the memory of waiting batches.

        This holds even if a handler swallows the cancellation that follows.
        """
        self._lane.close()
        self._resumed.set()
        self._end_wait()

    async def drain(self, task: asyncio.Task[None], deadline: float) -> None:
        """Deliver nothing new; return when `task` (which runs `run`) has ended, at `deadline` (monotonic) at last."""
        self.end()
        self._sink.wind_down()
        await asyncio.wait([task], timeout=max(0.0, deadline - self._clock.monotonic()))
        if not task.done():
            log.warning("drain_deadline_passed", partition=str(self.partition), position=self.position)

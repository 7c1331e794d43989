"""The work on one owned partition: from its lane to its sink, and what came of it into the tracker.

Strategy: one task per partition, so batches are handed over in order, one at a time. Right before each hand-over the
fence is asked, with no await in between. A drain closes the lane and lets the batch in hand end until the deadline;
whoever drains cancels the task then, and awaits its end: only after that may the partition be released. What the
handler marks in the batch in hand counts at once, so a slow batch does not hold its partition's position back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from consumerd.consumer.sinks import HandedBackError
from consumerd.fetch import LaneClosedError
from consumerd.handlers import Batch
from consumerd.offsets import HandledPrefix

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.consumer.fence import Fence
    from consumerd.consumer.sinks import Sink
    from consumerd.consumer.stats import ConsumerStats
    from consumerd.fetch import Lane
    from consumerd.fetch.lane import Fetched
    from consumerd.offsets.tracker import Range
    from consumerd.partition import TopicPartition
    from consumerd.ports import Clock

log = structlog.get_logger(__name__)


class PartitionWork:
    """Hands the batches of `lane` to `sink`, under `fence`, for the session that claimed the partition."""

    def __init__(
        self,
        partition: TopicPartition,
        session_id: int,
        start: int,
        lane: Lane,
        sink: Sink,
        fence: Fence,
        clock: Clock,
        stats: ConsumerStats,
        progressed: Callable[[], None],
    ) -> None:
        self.partition = partition
        self.session_id = session_id
        self._lane = lane
        self._sink = sink
        self._fence = fence
        self._clock = clock
        self._stats = stats
        self._progressed = progressed
        self._tracker = HandledPrefix(start)
        self._in_hand: tuple[Range, Batch] | None = None
        self._seeks = 0

    @property
    def position(self) -> int:
        """The offset to commit: everything before it was handled."""
        if self._in_hand is not None:
            token, batch = self._in_hand
            self._sink.settle()
            self._tracker.done(token, batch.prefix(batch.handled))
        return self._tracker.position

    def seek(self, offset: int) -> None:
        """Count from `offset` on. What was begun before may end, but counts for nothing; the lane is the caller's."""
        self._tracker.reset(offset)
        self._seeks += 1
        self._sink.discard()

    def hold(self, held: bool) -> None:
        """Have the sink hand out nothing while `held`."""
        self._sink.hold(held)

    async def run(self) -> None:
        """Hand over until the lane is closed. Raises HandlerFailedError when the handler's policy says to stop."""
        while True:
            try:
                messages = await self._lane.get()
            except LaneClosedError:
                return
            try:
                await self._hand_over(messages)
            except HandedBackError:
                continue
            finally:
                self._lane.finished(messages)

    async def _hand_over(self, messages: Fetched) -> None:
        batch = Batch(self.partition, messages)
        if messages.start_offset < self._tracker.position:
            # A reset went backwards (out of range, earliest): the log itself begins anew here.
            self._tracker.reset(messages.start_offset)
        token = self._tracker.begin(batch.start_offset, batch.next_offset)
        seeks = self._seeks
        try:
            # A range without messages (an empty compressed one) only moves the position.
            if len(batch):
                await self._fence.wait(self.session_id)
                if self._seeks != seeks:
                    return
                self._in_hand = token, batch
                await self._sink.handle(batch)
        except BaseException:
            # Cancelled at the drain's deadline, handed back or failed: what was marked as done stays done.
            self._done(token, batch, batch.handled)
            raise
        finally:
            self._in_hand = None
        self._done(token, batch, len(batch))

    def _done(self, token: Range, batch: Batch, count: int) -> None:
        """The first `count` messages are handled, all of the range if that is all of them."""
        if self._tracker.done(token, None if count == len(batch) else batch.prefix(count)):
            if count:
                self._stats.handled(self.partition, count, batch.prefix(count) - batch.start_offset)
            self._progressed()

    def end(self) -> None:
        """Hand over nothing new, and give the memory of what waits back.

        Whatever becomes of the cancellation that comes now: a handler may swallow it.
        """
        self._lane.close()

    async def drain(self, task: asyncio.Task[None], deadline: float) -> None:
        """Hand over nothing new; return when `task` (which runs `run`) has ended, at `deadline` (monotonic) at last."""
        self._lane.close()
        self._sink.wind_down()
        await asyncio.wait([task], timeout=max(0.0, deadline - self._clock.monotonic()))
        if not task.done():
            log.warning("drain_deadline_passed", partition=str(self.partition), position=self.position)

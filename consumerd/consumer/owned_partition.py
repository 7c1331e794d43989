"""The record of one owned partition, for `consumerd.consumer.partitions`.

Strategy: a record; `PartitionWork` does the work. The position to commit follows from what was handled, and from the
last commit and its time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import asyncio

    from consumerd.consumer.work import BatchInHand, PartitionWork
    from consumerd.fetch import Lane
    from consumerd.partition import TopicPartition


class OwnedView(NamedTuple):
    """An owned partition as it is at one moment. Without a position, its start is still looked for."""

    partition: TopicPartition
    stream: int
    position: int | None
    committed: int | None
    paused: bool
    #: Batches that wait for the handler, and bytes of these and of what is being handled.
    queued: int
    held_bytes: int
    in_hand: BatchInHand | None


class OwnedPartition:
    """One owned partition. `work` is there from the moment its position is known."""

    def __init__(self, partition: TopicPartition, stream: int, session_id: int) -> None:
        self.partition = partition
        self.stream = stream
        self.session_id = session_id
        self.work: PartitionWork | None = None
        self.lane: Lane | None = None
        self.task: asyncio.Task[None] | None = None
        self.committed: int | None = None
        #: When we last wrote that, on the clock: what was there before us may be old.
        self.written_at = -math.inf
        #: Where the partition ended when it was claimed; only asked for when the member stops at the end.
        self.end: int | None = None
        #: The position that it was to begin at, where the log had ended before that: nothing is handled by being there.
        self.beyond: int | None = None
        self.paused = False
        #: Nothing more is delivered; and, if abandoned, nothing more is committed and nobody waits for a drain.
        self.closed = False
        self.abandoned = False
        #: It is drained or abandoned, and not only interrupted.
        self.leaving = False

    def close(self) -> None:
        """Deliver nothing new from now on, whatever a handler does with its cancellation."""
        self.closed = True
        if self.work is not None:
            self.work.end()

    def view(self) -> OwnedView:
        """As it is now."""
        work, lane = self.work, self.lane
        return OwnedView(
            self.partition,
            self.stream,
            None if work is None else work.position,
            self.committed,
            self.paused,
            0 if lane is None else len(lane),
            0 if lane is None else lane.budget.used,
            None if work is None else work.in_hand,
        )

    @property
    def at_end(self) -> bool:
        """Whether all is handled that was there when it was claimed."""
        if self.work is None or self.end is None:
            return False
        return self.work.position >= self.end and self.work.position != self.beyond

    def is_due(self, now: float, kept: float | None) -> bool:
        """Whether the position is to be written: it moved, or the store forgets after `kept` seconds (None: never)."""
        if self.work is None:
            return False
        return self.work.position != self.committed or (kept is not None and now - self.written_at >= kept / 2)

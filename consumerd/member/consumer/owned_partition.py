"""The record of one owned partition, for `consumerd.member.consumer.partitions`.

Strategy: plain data; `PartitionWork` does the work. The position to commit follows from what was handled, and from the
last commit and its time.
"""

from __future__ import annotations

import asyncio
import math
from typing import NamedTuple

from consumerd.base.errors import BrokerError, ZooKeeperError
from consumerd.base.partition import TopicPartition
from consumerd.member.consumer.partition_work import BatchInHand, PartitionWork
from consumerd.member.fetch.lane import Lane


class OwnedView(NamedTuple):
    """An owned partition at one moment. Without a position, its start is not known yet."""

    partition: TopicPartition
    stream: int
    position: int | None
    committed: int | None
    paused: bool
    #: Batches that wait for the handler, and bytes of these and of what is being handled.
    queued: int
    held_bytes: int
    in_hand: BatchInHand | None
    #: The timestamp of the message at the position, in milliseconds since 1970, where it has one and was fetched.
    next_timestamp: int | None = None


class OwnedPartition:
    """One owned partition. `work` is set as soon as its position is known."""

    __slots__ = (
        "abandoned",
        "begins_at_end",
        "beyond",
        "closed",
        "committed",
        "end",
        "lane",
        "leaving",
        "partition",
        "passing",
        "paused",
        "refusal",
        "session_id",
        "start",
        "stream",
        "task",
        "work",
        "written_at",
    )

    #: Set when the flow begins.
    task: asyncio.Task[None]

    def __init__(self, partition: TopicPartition, stream: int, session_id: int) -> None:
        self.partition = partition
        self.stream = stream
        self.session_id = session_id
        self.work: PartitionWork | None = None
        self.lane: Lane | None = None
        self.committed: int | None = None
        #: The start position, once it is known.
        self.start: int | None = None
        #: Whether that is the end of the log, where the group begins.
        self.begins_at_end = False
        #: Whether the start is still to be committed before the first fetch: the next owner would not find it again.
        self.passing = False
        #: Why the store did not let us write its offset the last time.
        self.refusal: BrokerError | ZooKeeperError | None = None
        #: Time of our last write of it, on the clock: an offset from before us may be old.
        self.written_at = -math.inf
        #: The end offset at the time of the claim; only read when the member stops at the end.
        self.end: int | None = None
        #: The start position if it lies beyond the end of the log: being there does not count as handled.
        self.beyond: int | None = None
        self.paused = False
        #: Nothing more is delivered; and, if abandoned, nothing more is committed and no drain is waited for.
        self.closed = False
        self.abandoned = False
        #: It is drained or abandoned, and not only interrupted.
        self.leaving = False

    def close(self) -> None:
        """Deliver nothing new from now on, even if a handler swallows its cancellation."""
        self.closed = True
        if self.work is not None:
            self.work.end()

    def view(self) -> OwnedView:
        """Return its present state."""
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
            None if work is None else work.next_timestamp,
        )

    @property
    def moved(self) -> bool:
        """Whether the position is no longer that of the start."""
        return self.work is not None and self.work.position != self.start

    @property
    def at_end(self) -> bool:
        """Whether all messages that it had when it was claimed are handled."""
        if self.work is None or self.end is None:
            return False
        return self.work.position >= self.end and self.work.position != self.beyond

    def is_due(self, now: float, kept: float | None) -> bool:
        """Whether the position is to be written: it moved, or the store forgets after `kept` seconds (None: never)."""
        if self.work is None:
            return False
        return self.work.position != self.committed or (kept is not None and now - self.written_at >= kept / 2)

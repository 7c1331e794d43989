"""The bounded queue between the fetcher of a partition and its handler, with the bytes that it holds.

Strategy: batches stay in order; a batch's reservation goes into the lane with it and is given back when the handler
says `finished`, so the budget counts what is queued *and* what is being handled. The fetcher asks for room before it
fetches, hence `put` never waits. `clear` drops the queued batches (seek), `close` drops everything (the partition
is not ours any more, its handler has ended): bytes never leak with a handler that was cancelled.

A batch may be without messages: then it only moves the position, past an empty wrapper, a skipped message or a reset
(backwards if it starts before the former batch ended).
"""

from __future__ import annotations

from typing import TypeAlias

from consumerd.base.budget import ByteBudget, Reservation
from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.errors import LaneClosedError
from consumerd.member.fetch.event import Flag
from consumerd.wire.v07 import MessageBatch
from consumerd.wire.v08.records import RecordSet

#: The decoded messages of one response; both kinds have payloads, a range of offsets, and a size for the budget.
Fetched: TypeAlias = MessageBatch | RecordSet
#: As many chunks as 0.7.2 queues (queuedchunks.max 10).
DEFAULT_BATCHES = 10


class Lane:
    """The lane of one partition. One fetcher puts, one consumer gets.

    `max_bytes` bounds what this partition may hold of `budget`, `max_batches` how many batches may be queued.
    """

    __slots__ = ("_drained", "_filled", "_in_hand", "_max_batches", "_queue", "_room", "budget", "closed", "partition")

    def __init__(
        self,
        partition: TopicPartition,
        budget: ByteBudget,
        *,
        max_bytes: int,
        max_batches: int = DEFAULT_BATCHES,
    ) -> None:
        self.partition = partition
        self.budget = ByteBudget(max_bytes, budget)
        self._max_batches = max_batches
        self._queue: list[tuple[Fetched, Reservation]] = []
        self._in_hand: dict[int, tuple[Fetched, Reservation]] = {}
        #: Whether `close` was called.
        self.closed = False
        self._room = Flag()
        self._filled = Flag()
        self._drained = Flag()
        self._update()

    def __len__(self) -> int:
        """Return the number of queued batches."""
        return len(self._queue)

    @property
    def head(self) -> Fetched | None:
        """The batch that `get` returns next, if it is here."""
        return self._queue[0][0] if self._queue else None

    @property
    def has_room(self) -> bool:
        """Whether a batch may be put now."""
        return self._room.state and not self.closed

    async def wait_for_room(self) -> None:
        """Return when a batch may be put. Raises LaneClosedError."""
        await self._room.wait()
        if self.closed:
            raise LaneClosedError

    def put(self, batch: Fetched, reservation: Reservation) -> None:
        """Queue a batch; its bytes now belong to the lane. Raises LaneClosedError (the bytes stay the caller's)."""
        if self.closed:
            raise LaneClosedError
        queue = self._queue
        queue.append((batch, reservation))
        # As `_update` has it, without a call for each flag.
        self._drained.state = False
        if len(queue) >= self._max_batches:
            self._room.state = False
        if not self._filled.state:
            self._filled.set()

    async def get(self) -> Fetched:
        """Wait for the next batch and return it. Its bytes count until `finished`. Raises LaneClosedError."""
        while not self._queue:  # `clear` may have run before this task woke up
            if self.closed:
                raise LaneClosedError
            await self._filled.wait()
        batch, reservation = self._queue.pop(0)
        self._in_hand[id(batch)] = batch, reservation
        if not self._queue:
            self._filled.state = False
        if not self._room.state:
            self._room.set()
        return batch

    def finished(self, batch: Fetched) -> None:
        """Release the bytes of a batch that the consumer has handled. Unknown batches are ignored."""
        _, reservation = self._in_hand.pop(id(batch), (None, None))
        if reservation is not None:
            reservation.resize(0)
            if not self._in_hand and not self._queue and not self._drained.state:
                self._drained.set()

    async def wait_drained(self) -> None:
        """Return when nothing is queued and the consumer holds nothing."""
        await self._drained.wait()

    def clear(self) -> None:
        """Drop the queued batches. Those that the consumer holds stay counted until `finished` or `close`."""
        while self._queue:
            self._queue.pop(0)[1].release()
        self._update()

    def close(self) -> None:
        """Drop everything and release all bytes; `get`, `put` and `wait_for_room` raise from now on."""
        self.closed = True
        self.clear()
        while self._in_hand:
            self._in_hand.popitem()[1][1].release()
        self._update()

    def _update(self) -> None:
        queue, closed = self._queue, self.closed
        if (room := closed or len(queue) < self._max_batches) != self._room.state:
            self._room.change(room)
        if (filled := closed or bool(queue)) != self._filled.state:
            self._filled.change(filled)
        if (drained := not queue and not self._in_hand) != self._drained.state:
            self._drained.change(drained)

"""The queue between callers of `send` and the task that sends: bounded, and emptied in batches.

Strategy: a batch is due when there are enough messages, when the oldest has waited for `queue_time`, or at a
flush or the end. Not every message has its time noted, that would cost more than the rest: a mark says
from which message of the sequence on they are younger than it, so a message may go a little early but never late.
Senders who wait for room stand in a line, and are served in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from consumerd.base.backoff import sleep_unless
from consumerd.base.ports import Clock
from consumerd.producer.errors import ProducerClosedError
from consumerd.producer.v07.events import Event
from consumerd.producer.v07.settings import QueueSettings


class EventQueue:
    """Messages on their way. One task calls `batch`; any number put."""

    def __init__(self, settings: QueueSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._size = settings.queue_size
        #: A full queue is a batch too.
        self._enough = min(settings.batch_size, settings.queue_size)
        self._events: deque[Event] = deque()
        #: (number of an event, when it came at the earliest); the first is of the oldest event in the queue, or before.
        self._marks: deque[tuple[int, float]] = deque()
        self._marks_apart = self._enough // 8
        #: The number of events that were put in, which is that of the last one.
        self.put_count = 0
        self._taken = 0
        #: Events up to this number are sent without waiting for more.
        self._hurry = 0
        self._closed = False
        self._news = asyncio.Event()
        #: The senders that wait for room, in order; the first one's event is set when there is some.
        self._line: deque[asyncio.Event] = deque()

    def __len__(self) -> int:
        return len(self._events)

    # -- those who send

    def offer(self, event: Event) -> bool:
        """Add `event` if there is room and no other sender waits for it. Raises ProducerClosedError."""
        if self._closed:
            raise ProducerClosedError("the producer is closed.")
        if self._line or len(self._events) >= self._size:
            return False
        self._append(event)
        return True

    async def put(self, event: Event, seconds: float | None) -> bool:
        """Put `event` in, waiting for room at most `seconds` (None: as long as it takes); whether it is in.

        A put that is cancelled has not put it in. Raises ProducerClosedError, also when the queue is closed meanwhile.
        """
        if self.offer(event):
            return True
        if seconds is not None and seconds <= 0:
            return False
        turn = asyncio.Event()
        self._line.append(turn)
        try:
            self._serve()
            if seconds is None:
                await turn.wait()
            else:
                await sleep_unless(self._clock, seconds, turn)
            if self._closed:
                raise ProducerClosedError("the producer was closed while a message waited for room in its queue.")
            if not turn.is_set():
                return False
            self._append(event)
            return True
        finally:
            self._line.remove(turn)
            self._serve()

    def _append(self, event: Event) -> None:
        if not self._events:
            self.mark()
        self._events.append(event)
        self.put_count += 1
        if len(self._events) == self._enough:
            self._news.set()

    def _serve(self) -> None:
        """Wake the first waiting sender if there is room. No other sender is served before it."""
        if self._line and len(self._events) < self._size:
            self._line[0].set()

    def mark(self) -> None:
        """Note the time for the events put in from here on. For the first of a row of `offer`s, after every await."""
        if not self._events:
            self._marks.clear()
            self._news.set()  # from here on there is a time to wake up
        elif self.put_count < self._marks[-1][0] + self._marks_apart:
            return
        self._marks.append((self.put_count + 1, self._clock.monotonic()))

    def hurry(self) -> int:
        """Make everything that is queued now due. Returns the number of the last event."""
        self._hurry = self.put_count
        self._news.set()
        return self._hurry

    def close(self) -> None:
        """Accept nothing more; queued events are due at once. Senders that wait for room get an error."""
        self._closed = True
        self.hurry()
        for turn in self._line:
            turn.set()

    # -- the one who takes

    async def batch(self) -> Sequence[Event]:
        """Wait until a batch is due and take it: up to `batch_size` events; none when closed and empty."""
        while (seconds := self._seconds_left()) is None or seconds > 0:
            self._news.clear()
            if seconds is None:
                await self._news.wait()
            else:
                await sleep_unless(self._clock, seconds, self._news)
        events, most = self._events, self._settings.batch_size
        if len(events) <= most:
            taken = list(events)
            events.clear()
        else:
            taken = [events.popleft() for _ in range(most)]
        self._taken += len(taken)
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= self._taken + 1:
            marks.popleft()
        self._serve()
        return taken

    def abandon(self) -> list[Event]:
        """Close, and take all that is left."""
        self.close()
        left = list(self._events)
        self._events.clear()
        return left

    def _seconds_left(self) -> float | None:
        """Return the seconds until a batch is due: 0 or less is now, None is not known yet."""
        if len(self._events) >= self._enough or self._hurry > self._taken or self._closed:
            return 0.0
        if not self._events:
            return None
        return self._marks[0][1] + self._settings.queue_time - self._clock.monotonic()

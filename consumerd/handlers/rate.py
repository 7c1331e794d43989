"""When a handler gets messages: so many in a second (`handler.max_rate`, all partitions of a member together), and none
before it is due (`handler.delay`).

Strategy: a bucket of one second's tokens, of which a message takes one. A token comes back a second after it was taken,
so no second has more messages than the rate, and a busy handler gets all of them. The work on a partition
takes them before it calls the handler: the wait is not the handler's time, and a drain ends it at once.
A batch is cut where the tokens end, between outermost messages. A compressed message that is larger than the bucket
takes a full one, and comes back that much later: the rate holds on average. The bucket is a pure one, with the time as
an argument.

A message is due `delay` seconds after it failed, if it is in a retry topic, else after its timestamp. A batch is cut
before the first one that is not due, which holds back its partition alone.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from consumerd.base.backoff import sleep_unless
from consumerd.base.ports import Clock
from consumerd.handlers.batching import boundary
from consumerd.handlers.contents import known_timestamp
from consumerd.handlers.dead_letters import failure_time
from consumerd.handlers.messages import Batch

#: Tokens that are taken within this time, in seconds, come back together, with the last of them.
_TOGETHER: Final = 0.001
#: Seconds after which the clock is looked at again while a message is not due: it may be set.
_LOOK: Final = 60.0


class _Taken(NamedTuple):
    """Tokens that are out: the time at which they were taken, their number, and how many buckets full they were."""

    at: float
    number: int
    buckets: float


class TokenBucket:
    """Tokens of `rate` messages a second, at least one. Times in seconds."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._out: deque[_Taken] = deque()
        self._missing = 0

    @property
    def size(self) -> int:
        """The number of tokens of a full bucket: whole messages."""
        return math.ceil(self.rate)

    def take(self, least: int, most: int, now: float) -> int:
        """Take up to `most` tokens; 0 if there are less than `least`. A bucket that is full has enough."""
        self._return(now)
        free = self.size - self._missing
        if free < min(least, self.size):
            return 0
        count = max(least, min(most, free))
        self._missing += count
        last = self._out[-1] if self._out else None
        if last is not None and now - last.at < _TOGETHER and count + last.number <= self.size:
            self._out[-1] = _Taken(now, last.number + count, 1.0)
        else:
            self._out.append(_Taken(now, count, max(1.0, count / self.size)))
        return count

    def give_back(self, count: int) -> None:
        """Return tokens of those taken last: nothing was delivered for them."""
        self._missing -= count
        while count:
            last = self._out.pop()
            if last.number > count:
                self._out.append(last._replace(number=last.number - count))
            count -= min(count, last.number)

    def next_return(self) -> float:
        """Return the time at which the next tokens come back. Some must be out."""
        return self._back(self._out[0])

    def change(self, rate: float, now: float) -> None:
        """Set the rate from now on. Tokens that are out come back by it."""
        self._return(now)
        self.rate = rate

    def _return(self, now: float) -> None:
        while self._out and self._back(self._out[0]) <= now:
            self._missing -= self._out.popleft().number

    def _back(self, taken: _Taken) -> float:
        return taken.at + taken.buckets * self.size / self.rate


def due_times(batch: Batch, delay: float) -> Iterator[float]:
    """Yield when each message of `batch` is due, in seconds since 1970; 0 for one without a timestamp."""
    for message in batch.messages():
        since = failure_time(message.headers)
        if since is None and (timestamp := known_timestamp(message.timestamp)) is not None:
            since = timestamp / 1000
        yield 0.0 if since is None else since + delay


class RateLimiter:
    """Tokens for the batches of all partitions of a member, in the order of their requests. None: no limit."""

    #: Whether nothing waits for its rate or its time.
    unlimited: bool

    def __init__(self, rate: float | None, clock: Clock, *, delay: float | None = None) -> None:
        self._clock = clock
        self._delay = delay
        self._bucket: TokenBucket | None = None
        self._turn = asyncio.Lock()
        #: Set when tokens came back or the rate has changed.
        self._changed = asyncio.Event()
        self.change(rate)

    def change(self, rate: float | None) -> None:
        """Limit to `rate` messages a second from now on, for batches that wait already, too."""
        self.unlimited = rate is None and self._delay is None
        if rate is None:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = TokenBucket(rate)
        else:
            self._bucket.change(rate, self._clock.monotonic())
        self._changed.set()

    def take_now(self, batch: Batch) -> int:
        """Return for how many messages from the front of `batch` there is no limit now: all, or 0."""
        return len(batch) if self.unlimited else 0

    async def take(self, batch: Batch) -> int:
        """Wait for tokens; return for how many messages from the front of `batch` they are, at least one."""
        least = 1
        if self._delay is not None:
            batch = batch.part(0, await self._due(batch, self._delay))
        async with self._turn:
            while (bucket := self._bucket) is not None:
                now = self._clock.monotonic()
                if count := bucket.take(least, len(batch), now):
                    end = boundary(batch, 0, count)
                    bucket.give_back(count - min(count, end))
                    if end <= count:
                        return end
                    bucket.give_back(count)  # a compressed message needs more
                    least = end
                    continue
                self._changed.clear()
                await sleep_unless(self._clock, bucket.next_return() - now, self._changed)
        return len(batch)

    async def _due(self, batch: Batch, delay: float) -> int:
        """Wait until the first message of `batch` is due; return for how many from the front that is so."""
        while True:
            now = self._clock.wall()
            early = next(((number, at) for number, at in enumerate(due_times(batch, delay)) if at > now), None)
            if early is None:
                return len(batch)
            number, at = early
            if number:
                # A compressed message stays whole, and is due with its first one.
                return boundary(batch, 0, number)
            await self._clock.sleep(min(at - now, _LOOK))

    def give_back(self, count: int) -> None:
        """Return tokens that were just taken: their messages are not delivered."""
        if self._bucket is not None:
            self._bucket.give_back(count)
        self._changed.set()

"""Polling the idle partitions of one broker together.

Strategy: Kafka 0.7 has no long poll, so a partition that brought nothing is asked again and again. A fetcher whose
partition is idle waits here; one MULTIFETCH goes out when the first of them is due, and includes every partition that
would be due within half of that one's interval. Each has its own interval, by how often it had messages (`pace`). No
poll goes out because of a partition earlier than half of its interval after the last poll, so that partitions fall into
step, and an interval is a round trip at least, so that a slow broker is not polled without a pause. An entry with data
or an error goes to its fetcher, which then fetches for itself again.

Partitions with the longest interval are in a queue of their own: they are due in the order in which they were polled,
and the polls of those that have messages do not look at them. An entry of the request is packed once for each offset,
and a response without messages is recognised as a whole (`wire.v07`), so that a thousand idle partitions are neither
packed nor decoded again each second.

Memory: a poll reserves all its entries at once, in the common budget only, and asks for less per entry when they are
many. Entries with data keep their part; the rest is released.

If a poll ends the connection, or its response does not parse, one of the partitions may be the cause: then every
fetcher of that poll fetches for itself, which shows which one, and does not affect the others.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from typing import TypeAlias

import structlog

from consumerd.base.backoff import sleep_unless
from consumerd.base.budget import ByteBudget
from consumerd.base.errors import reason_of
from consumerd.member.fetch.fetcher import PartitionResponse
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.policies import FetchServices
from consumerd.member.fetch.v07.link import BrokerLink
from consumerd.member.fetch.v07.pace import Pace
from consumerd.net.errors import ConnectionClosedError
from consumerd.wire import WireError
from consumerd.wire.v07 import FetchRequest, MultiFetchRequest, decode_multifetch_response

log = structlog.get_logger(__name__)

#: The future that an idler waits for, if it waits.
_Awaited: TypeAlias = "asyncio.Future[PartitionResponse | None] | None"

#: Entries per request. The protocol's count is an int16; several thousand make one answer long to wait for.
MAX_ENTRIES = 1000
#: Smallest size of an entry.
MIN_ENTRY_BYTES = 1024
#: Largest part of the common budget, and of its free bytes, that a poll reserves.
BUDGET_SHARE = 16
FREE_SHARE = 2
#: A round trip counts for this part of the mean round trip.
_TRIP_WEIGHT = 1 / 8


class Idler:
    """One idle partition: its next request, and when it is due, in the clock's time, `interval` after the last one."""

    __slots__ = ("_packed", "due", "future", "interval", "lane", "offset", "pace", "paused")

    offset: int
    interval: float
    due: float

    def __init__(self, lane: Lane, pace: Pace) -> None:
        self.lane = lane
        self.pace = pace
        self.paused = False
        self.future: _Awaited = None
        self._packed: tuple[int, int, bytes] | None = None

    def entry(self, size: int) -> bytes:
        """The entry of a MULTIFETCH for `size` bytes: packed once, while neither size nor offset changes."""
        packed = self._packed
        if packed is None or packed[:2] != (self.offset, size):
            partition = self.lane.partition
            entry = FetchRequest(partition.topic, partition.partition, self.offset, size).entry()
            packed = self._packed = self.offset, size, entry
        return packed[2]


class IdlePoller:
    """Polls for one broker. `run` must be running for `wait` to return."""

    def __init__(self, link: BrokerLink, budget: ByteBudget, services: FetchServices) -> None:
        self._link = link
        self._budget = budget
        self._settings = services.settings
        self._clock = services.clock
        self._counters = services.counters
        #: Those that wait and are not paused, in sets that keep their order; `_rare`: with the longest interval.
        self._often: dict[Idler, None] = {}
        self._rare: dict[Idler, None] = {}
        self._nudge = asyncio.Event()
        #: Time at which `run` by itself looks for due partitions again.
        self._wakes = math.inf
        #: Time of the last response.
        self._ended = -math.inf
        #: Mean seconds of a poll; None before the first one.
        self._round_trip: float | None = None

    async def wait(self, idler: Idler, offset: int) -> PartitionResponse | None:
        """Wait until there is data or an error at `offset`. None: the poll failed, and the caller fetches by itself."""
        idler.offset = offset
        future: asyncio.Future[PartitionResponse | None] = asyncio.get_running_loop().create_future()
        idler.future = future
        self._schedule(idler, self._clock.monotonic())
        if self._ready(idler) < self._wakes:  # a thousand that come one by one do not have all be looked at each time
            self._nudge.set()
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled():
                answer = future.result()
                if answer is not None:
                    answer.reservation.release()
            raise
        finally:
            self._remove(idler)
            idler.future = None

    def pause(self, idler: Idler) -> None:
        """Leave the partition out of polls from now on."""
        idler.paused = True
        self._remove(idler)

    def resume(self, idler: Idler) -> None:
        """Continue after `pause`: the partition is due when it was, which may be at once."""
        idler.paused = False
        if idler.future is not None:
            self._often[idler] = None
            self._nudge.set()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            self._nudge.clear()
            first = self._first()
            if first is None:
                self._wakes = math.inf
                await self._nudge.wait()
                continue
            self._wakes = self._ready(first)
            await sleep_unless(self._clock, self._wakes - self._clock.monotonic(), self._nudge)
            if not self._nudge.is_set() or self._wakes <= self._clock.monotonic():
                await self._poll()

    async def _poll(self) -> None:
        connection = await self._link.connection()
        count = len(self._due())
        if not count:
            return
        size = self._entry_size(count)
        bulk = await self._budget.reserve(count * size)
        try:
            idlers = self._due(count)  # everything may have changed while we waited for memory
            if not idlers or connection.closed:
                return
            futures = [idler.future for idler in idlers]
            request = MultiFetchRequest.frame([idler.entry(size) for idler in idlers])
            longest = MultiFetchRequest.longest_response_to(itertools.repeat(size, len(idlers)))
            began = self._clock.monotonic()
            try:
                body = await connection.request(request, max_response=longest)
                answers = decode_multifetch_response(body, len(idlers)).entries
            except ConnectionClosedError as error:
                if error.blamed:
                    self._end_group(idlers, futures)
                return
            except WireError as error:
                log.warning("poll_failed", broker=self._link.broker, reason=reason_of(error))
                connection.abort()
                self._end_group(idlers, futures)
                return
            if not answers:  # an overall error, which real brokers never send
                self._end_group(idlers, futures)
                return
            self._link.worked()
            self._counters.polls += 1
            now = self._ended = self._clock.monotonic()
            self._took(now - began)
            for idler, future, answer in zip(idlers, futures, answers, strict=True):
                if future is None or future.done() or idler.future is not future:
                    continue  # it left, or came again, while the poll was under way
                if answer.error or answer.data:
                    held = idler.lane.budget.charge(len(answer.data))
                    response = PartitionResponse(
                        self._link.broker, answer.error, answer.data, size, held, connection=self._link.connections
                    )
                    self._remove(idler)  # before its fetcher does, which would be after the next look for due ones
                    future.set_result(response)
                else:
                    self._schedule(idler, now)
        finally:
            bulk.release()

    def _entry_size(self, count: int) -> int:
        """Return the bytes to ask for in each of `count` entries.

        The poll must not wait for many bytes, because others wait behind it. A power of two, so that most polls have
        the size of the one before.
        """
        free = self._budget.limit - self._budget.used
        share = min(self._budget.limit // BUDGET_SHARE, free // FREE_SHARE) // count
        return min(self._settings.poll_bytes, 1 << max(MIN_ENTRY_BYTES, share).bit_length() - 1)

    def _first(self) -> Idler | None:
        """Return the partition because of which the next poll goes out."""
        candidates = itertools.chain(self._often, itertools.islice(self._rare, 1))
        return min(candidates, key=self._ready, default=None)

    def _ready(self, idler: Idler) -> float:
        """Return the time from which on a poll may go out because of this partition.

        That is half of its interval after the last response at the earliest: what became due while that poll was under
        way falls into step, and those with long intervals go with the polls of the others.
        """
        return max(idler.due, self._ended + idler.interval / 2)

    def _due(self, most: int = MAX_ENTRIES) -> list[Idler]:
        """Return at most `most` due partitions and those that are nearly due; if there are more, the first of them."""
        first = self._first()
        if first is None:
            return []
        until = self._clock.monotonic() + first.interval / 2
        due = [idler for idler in self._often if idler.due <= until]
        due += itertools.takewhile(lambda idler: idler.due <= until, self._rare)
        return due if len(due) <= most else heapq.nsmallest(most, due, key=lambda idler: idler.due)

    def _schedule(self, idler: Idler, now: float) -> None:
        """Set the time of the partition's next poll, as nothing came."""
        longest = self._settings.idle_backoff
        if idler not in self._rare:  # else the interval stays until there is a message
            smallest = max(self._settings.poll_backoff_min, self._round_trip or 0.0)
            idler.interval = idler.pace.interval(now, smallest=smallest, longest=longest)
        idler.due = now + idler.interval
        if not idler.paused:
            self._remove(idler)
            (self._rare if idler.interval == longest else self._often)[idler] = None

    def _remove(self, idler: Idler) -> None:
        self._often.pop(idler, None)
        self._rare.pop(idler, None)

    def _took(self, seconds: float) -> None:
        """Note the round trip of a poll."""
        mean = self._round_trip
        self._round_trip = seconds if mean is None else mean + (seconds - mean) * _TRIP_WEIGHT

    def _end_group(self, idlers: list[Idler], futures: list[_Awaited]) -> None:
        for idler, future in zip(idlers, futures, strict=True):
            if future is not None and not future.done() and idler.future is future:
                self._remove(idler)
                future.set_result(None)

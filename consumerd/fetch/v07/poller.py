"""Polling the idle partitions of one broker together.

Strategy: Kafka 0.7 has no long poll, so a partition that brought nothing is asked again and again. A fetcher whose
partition is idle waits here; one MULTIFETCH goes out for all whose time has come. Each has its own back-off, doubling
while it brings nothing; a poll includes every partition that would be due within half of its own delay, so that the
partitions fall into step. An entry with data or an error goes to its fetcher, which then fetches for itself again.

While no message comes, polls are alike: request and answer are those of the poll before, so that a thousand idle
partitions are neither packed nor decoded again each second.

Memory: a poll reserves all its entries at once, in the common budget only, and asks for less per entry when they are
many. Entries with data keep their part; the rest is released.

If a poll ends the connection, or its response does not parse, one of the partitions may be the cause: then every
fetcher of that poll fetches for itself, which shows which one, and does not affect the others.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from typing import TYPE_CHECKING, TypeAlias

import structlog

from consumerd.errors import reason_of
from consumerd.fetch.backoff import sleep_unless
from consumerd.fetch.fetcher import PartitionResponse
from consumerd.net import ConnectionClosedError
from consumerd.wire import WireError
from consumerd.wire.v07 import FetchRequest, MultiFetchRequest, decode_multifetch_response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumerd.fetch.budget import ByteBudget
    from consumerd.fetch.lane import Lane
    from consumerd.fetch.policies import FetchServices
    from consumerd.fetch.v07.link import BrokerLink

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
#: Per entry of a response: int32 length, int16 error.
ENTRY_HEADER = 6
#: Header of the response: int16 error.
RESPONSE_HEADER = 2


class Idler:
    """One idle partition: its next request, and the delay before it. `delay` grows until `reset`.

    It is due at `due`, and may be polled together with others from `early` on, in the clock's time.
    """

    __slots__ = ("delay", "due", "early", "future", "lane", "offset", "paused")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.offset = 0
        self.delay = 0.0
        self.due = 0.0
        self.early = 0.0
        self.paused = False
        self.future: _Awaited = None

    def reset(self) -> None:
        """Start with the smallest delay again, as there were messages."""
        self.delay = 0.0


class _LastPoll:
    """The entries of the last poll, its request, and an answer to it without messages, if there was one."""

    __slots__ = ("futures", "nothing", "request", "size")

    def __init__(
        self,
        size: int = 0,
        futures: Sequence[_Awaited] = (),
        request: bytes = b"",
    ) -> None:
        self.size = size
        self.futures = futures
        self.request = request
        self.nothing: bytes | None = None


class IdlePoller:
    """Polls for one broker. `run` must be running for `wait` to return."""

    def __init__(self, link: BrokerLink, budget: ByteBudget, services: FetchServices) -> None:
        self._link = link
        self._budget = budget
        self._settings = services.settings
        self._clock = services.clock
        self._counters = services.counters
        self._idlers: dict[Idler, None] = {}  # a set that keeps its order
        self._nudge = asyncio.Event()
        #: Time at which `run` by itself looks for due partitions again.
        self._wakes = math.inf
        self._last = _LastPoll()

    async def wait(self, idler: Idler, offset: int) -> PartitionResponse | None:
        """Wait until there is data or an error at `offset`. None: the poll failed, and the caller fetches by itself."""
        idler.offset = offset
        future: asyncio.Future[PartitionResponse | None] = asyncio.get_running_loop().create_future()
        idler.future = future
        self._postpone(idler, self._clock.monotonic())
        self._idlers[idler] = None
        if idler.due < self._wakes:  # a thousand that come one by one do not have all be looked at each time
            self.nudge()
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled():
                answer = future.result()
                if answer is not None:
                    answer.reservation.release()
            raise
        finally:
            self._idlers.pop(idler, None)
            idler.future = None

    def nudge(self) -> None:
        """Plan again: a partition is due earlier, or was resumed."""
        self._nudge.set()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            self._nudge.clear()
            self._wakes = min((idler.due for idler in self._idlers if not idler.paused), default=math.inf)
            if self._wakes == math.inf:
                await self._nudge.wait()
                continue
            await sleep_unless(self._clock, self._wakes - self._clock.monotonic(), self._nudge)
            if not self._nudge.is_set() or self._wakes <= self._clock.monotonic():
                await self._poll()

    async def _poll(self) -> None:
        connection = await self._link.connection()
        count = min(len(self._idlers), MAX_ENTRIES)
        size = min(self._settings.poll_bytes, max(self._share() // max(count, 1), MIN_ENTRY_BYTES))
        bulk = await self._budget.reserve(count * size)
        try:
            # Everything may have changed while we waited for memory.
            idlers = self._due(count)
            if not idlers or connection.closed:
                return
            futures = [idler.future for idler in idlers]
            request = self._encoded(idlers, futures, size)
            longest = RESPONSE_HEADER + len(idlers) * (ENTRY_HEADER + size)
            try:
                body = await connection.request(request, max_response=longest)
                answers = () if body == self._last.nothing else decode_multifetch_response(body, len(idlers)).entries
            except ConnectionClosedError as error:
                if error.blamed:
                    self._dissolve(futures)
                return
            except WireError as error:
                log.warning("poll_failed", broker=self._link.broker, reason=reason_of(error))
                connection.abort()
                self._dissolve(futures)
                return
            if not answers and body != self._last.nothing:  # an overall error, which real brokers never send
                self._dissolve(futures)
                return
            self._link.worked()
            self._counters.polls += 1
            if not any(answer.error or answer.data for answer in answers):
                self._last.nothing = body
                self._postpone_all(idlers, futures)
                return
            self._last = _LastPoll()  # its futures are about to hold data
            now = self._clock.monotonic()
            for idler, future, answer in zip(idlers, futures, answers, strict=True):
                if future is None or future.done() or idler.future is not future:
                    continue  # it left while the poll was under way
                if answer.error or answer.data:
                    held = idler.lane.budget.charge(len(answer.data))
                    bulk.resize(max(0, bulk.amount - len(answer.data)))
                    response = PartitionResponse(
                        self._link.broker, answer.error, answer.data, size, held, connection=self._link.connections
                    )
                    future.set_result(response)
                else:
                    self._postpone(idler, now)
        finally:
            bulk.release()

    def _encoded(self, idlers: list[Idler], futures: list[_Awaited], size: int) -> bytes:
        """Return the request. As long as no message comes, it is the same each time: a future stands for one offset."""
        last = self._last
        if last.size != size or last.futures != futures:
            fetches = (
                FetchRequest(each.lane.partition.topic, each.lane.partition.partition, each.offset, size)
                for each in idlers
            )
            last = self._last = _LastPoll(size, futures, MultiFetchRequest(tuple(fetches)).encode())
        return last.request

    def _share(self) -> int:
        """Return the bytes of a poll in all: it must not wait for many, because others wait behind it."""
        free = self._budget.limit - self._budget.used
        return min(self._budget.limit // BUDGET_SHARE, free // FREE_SHARE)

    def _due(self, most: int) -> list[Idler]:
        """Return at most `most` due partitions; if there are more, those that are due first."""
        now = self._clock.monotonic()
        due = [idler for idler in self._idlers if idler.early <= now and not idler.paused]
        return due if len(due) <= most else heapq.nsmallest(most, due, key=lambda idler: idler.due)

    def _postpone_all(self, idlers: list[Idler], futures: list[_Awaited]) -> None:
        """As `_postpone`, without computing the same time for each partition with the longest delay."""
        now, largest = self._clock.monotonic(), self._settings.poll_backoff_max
        due, early = now + largest, now + largest / 2
        for idler, future in zip(idlers, futures, strict=True):
            if idler.future is not future:
                continue  # it left, or came again, while the poll was under way
            if idler.delay == largest:
                idler.due, idler.early = due, early
            else:
                self._postpone(idler, now)

    def _postpone(self, idler: Idler, now: float) -> None:
        smallest, largest = self._settings.poll_backoff_min, self._settings.poll_backoff_max
        idler.delay = min(largest, 2 * idler.delay) if idler.delay else smallest
        idler.due, idler.early = now + idler.delay, now + idler.delay / 2

    @staticmethod
    def _dissolve(futures: list[_Awaited]) -> None:
        for future in futures:
            if future is not None and not future.done():
                future.set_result(None)

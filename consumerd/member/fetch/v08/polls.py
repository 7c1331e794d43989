"""Polling the idle partitions of one broker: all in one FETCH, to which it answers when one of them has messages.

Strategy: a request waits here until it is answered. The *poll* names all that wait, and the broker holds it back up to
`max_wait` for `min_bytes` of new messages. The reader of the connection decodes the answer and puts its messages in the
lanes, so that one turn of the loop lies between a response and a handler. Behind the handlers, in the same turn, the
next poll asks for what follows, without a turn of the fetchers unless one has something to decide. Requests whose
answer is empty stay as they are: in a fetch session (`wire.v08.fetch_session`) they cost neither a name in the next
request nor an entry in its answer.

A partition that becomes idle while the poll is under way cannot join it. Such *newcomers* are polled on a connection of
their own, in short polls of `newcomer_wait`, until the poll has ended and names them, too. So a newcomer waits for its
request to be at the broker at most for one short poll of others. When the poll takes them over, a short one may be
under way: the partition is then at the broker twice, and the first answer counts. With `min_bytes` above 1 short polls
would bring less than was asked for: there they are as long as the poll.

Memory: the answer to a poll is bounded by the FETCH, and counted when it is here. Brokers before 0.10.1 bound each
partition alone: each gets its share.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from consumerd.base.errors import BrokerError
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v08.exchange import UNKNOWN, Exchange, Line, PartitionRequest, answer_of, cancel, fail
from consumerd.net.client.channel import Channel
from consumerd.net.client.fetching import FetchedPartition, FetchedPartitions
from consumerd.net.client.metadata import ClusterMetadata
from consumerd.wire import WireError
from consumerd.wire.v08.apis import FETCH
from consumerd.wire.v08.fetch_session import FetchSession, PartitionFetch, Place

#: Seconds for which the broker may hold a poll of newcomers back, and the part of `max_wait`, whichever is longer: at
#: most 50 of them are sent while a poll is under way.
NEWCOMER_WAIT: Final = 0.01
NEWCOMER_SHARE: Final = 50
#: Most bytes of an answer to a poll of newcomers.
NEWCOMER_BYTES: Final = 2 << 20
#: The first version of FETCH that bounds the answer.
_BOUNDED_SINCE: Final = 3
#: Turns of the loop until fetchers have asked again that have to decode, or to find out where to ask.
_TURNS: Final = 2
#: The same of fetchers whose messages are in the lane already.
_TURNS_AFTER_TAKEN: Final = 1
#: Seconds between looks at whether the metadata of what waits are old or stale.
_REVIEW: Final = 5.0
#: Seconds after a response for which the ends that it confirmed are known.
_KNOWN_FOR: Final = 10.0
#: The answer for a partition that the broker left out because there is nothing new.
_NOTHING: Final = FetchedPartition(0, b"", UNKNOWN, ())


def newcomer_wait(settings: FetchSettings) -> float:
    """Seconds for which the broker may hold a poll of newcomers back."""
    if settings.min_bytes > 1:
        return settings.max_wait
    return min(settings.max_wait, max(NEWCOMER_WAIT, settings.max_wait / NEWCOMER_SHARE))


class Polls:
    """The requests that wait at one broker. `run` must be running for `poll` to return."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._clock = exchange.clock
        self._wait, self._short = exchange.settings.max_wait, newcomer_wait(exchange.settings)
        self._most = exchange.settings.max_answer_bytes
        self._line, self._newcomers_line = Line(exchange), Line(exchange)
        self._session = FetchSession()
        self._waiting: dict[Place, PartitionRequest] = {}
        #: The sum of their sizes.
        self._size = 0
        self._filled = asyncio.Event()
        #: Those of them that the poll under way does not name.
        self._newcomers: dict[Place, PartitionRequest] = {}
        self._came = asyncio.Event()
        self._under_way = False
        #: When a poll was answered last with all that is new.
        self._answered_at = -math.inf
        #: Those that the next response answers, even if there is nothing new.
        self._hurried: dict[Place, PartitionRequest] = {}
        #: The metadata by which all that waits may wait, and when their age was looked at.
        self._metadata: ClusterMetadata | None = None
        self._reviewed = 0.0
        #: The channel whose broker is known to bound a response as a whole.
        self._bounded: Channel | None = None

    async def poll(self, request: PartitionRequest) -> FetchedPartition | None:
        """Wait for new messages; None: ask again. Raises BrokerError, WireError."""
        if (former := self._waiting.get(request.place)) is not None:
            former.answer.cancel()  # its fetcher is being replaced
            self._remove(former)
        self._add(request)
        try:
            return await request.answer
        finally:
            self._remove(request)

    def hurry(self, request: PartitionRequest) -> None:
        """Let the response under way answer, even if it has nothing new of the partition."""
        if self._waiting.get(request.place) is request:
            self._hurried[request.place] = request

    def confirms(self, request: PartitionRequest) -> bool:
        """Whether the broker has confirmed lately that there is nothing from the offset of a request on."""
        waits = self._waiting.get(request.place) is request
        return waits and self._clock.monotonic() - self._answered_at <= self._wait + _KNOWN_FOR

    def _add(self, request: PartitionRequest) -> None:
        place = request.place
        if not self._waiting:
            self._filled.set()
        self._waiting[place] = request
        self._size += request.fetch.max_bytes
        self._session.ask(request.fetch)
        if self._under_way:
            self._newcomers[place] = request
            self._came.set()
        if not request.patient:
            self._hurried[place] = request

    def _go_on(self, taken: Iterable[PartitionRequest]) -> int:
        """Let requests whose messages were taken ask for what follows; return the turns that fetchers need for that.

        No poll is under way: the next one names them.
        """
        turns = 0
        for request in taken:
            if request.answer.done():  # cancelled, or in doubt
                continue
            assert request.poller is not None  # it took them
            if request.poller.go_on(request):
                self._session.ask(request.fetch)
            else:
                request.settle(None)
                turns = _TURNS_AFTER_TAKEN
        return turns

    def _remove(self, request: PartitionRequest) -> None:
        if self._waiting.get(request.place) is not request:
            return  # another fetcher of the partition has replaced it
        del self._waiting[request.place]
        self._newcomers.pop(request.place, None)
        self._hurried.pop(request.place, None)
        self._size -= request.fetch.max_bytes
        self._session.drop(request.place)

    async def run(self) -> None:
        """Poll until cancelled, then end the session and close the connections."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._repeat(self._poll, self._filled, self._waiting, self._wait))
                group.create_task(self._repeat(self._poll_newcomers, self._came, self._newcomers, self._short))
        finally:
            # The tasks that wait here end as well; their responses will not come.
            cancel(self._waiting.values())
            if (last := self._session.last_request()) is not None:
                await self._exchange.end_session(last)
            for line in (self._line, self._newcomers_line):
                await line.close()

    async def _repeat(
        self,
        poll: Callable[[], Awaitable[int | None]],
        filled: asyncio.Event,
        requests: Mapping[Place, PartitionRequest],
        wait: float,
    ) -> None:
        """Poll while there are requests. `poll` returns turns of the loop until the next one; None: nothing came."""
        while True:
            if not requests:
                filled.clear()
                await filled.wait()
            if self._exchange.silent_until > (began := self._clock.monotonic()):
                await self._exchange.wait_out_quota()
                began = self._clock.monotonic()
            if (turns := await poll()) is not None:
                for _ in range(turns):
                    await asyncio.sleep(0)
            elif self._clock.monotonic() - began < wait / 2:
                # An answer without anything that the broker did not wait with: it counts what it does not return.
                await self._clock.sleep(self._short)

    async def _poll(self) -> int | None:
        """Send a poll; return as `_hand_out`.

        A call of its own, so that nothing refers to the response while the next one is awaited.
        """
        try:
            channel = self._line.ready() or await self._line.channel()
            request = self._session.request()
            self._newcomers.clear()
            self._under_way = True
            named = request.named if channel is self._bounded else self._sized(channel, request.named)
            turns: int | None = _TURNS
            taken: list[PartitionRequest] = []
            full = request.full

            def received(fetched: FetchedPartitions) -> None:
                nonlocal turns
                if fetched.silence:
                    self._exchange.obey(fetched)
                self._under_way = False  # who asks again from now on is in the next poll
                if not self._session.answered(fetched.error, fetched.session_id):
                    return  # a new session begins at once
                if full:
                    self._exchange.require_all(fetched, self._named(), channel)
                turns = self._hand_out(fetched, self._waiting, self._newcomers, taken)

            sent = request if named is request.named else request._replace(named=named)
            fetched = await self._exchange.send(channel, sent, self._size, self._wait, received)
            received_bytes = 0
            for part in fetched.partitions.values():
                received_bytes += len(part.data)
            # Else some may have been left out.
            if not (fetched.error or fetched.silence) and 2 * received_bytes <= min(self._size, self._most):
                self._answered_at = self._clock.monotonic()
            return turns if turns is None else max(turns, self._go_on(taken))
        except (BrokerError, WireError) as error:
            self._session.lost()
            self._line.count_lost()
            fail(self._named(), error)
            return _TURNS
        finally:
            self._under_way = False
            self._review()

    def _named(self) -> Iterator[PartitionRequest]:
        return (request for place, request in self._waiting.items() if place not in self._newcomers)

    async def _poll_newcomers(self) -> int | None:
        """Poll those that the poll under way does not name, in the same way."""
        requests = dict(self._newcomers)
        try:
            channel = self._newcomers_line.ready() or await self._newcomers_line.channel()
            asked = {place: request.fetch for place, request in requests.items()}
            named = self._sized(channel, [*asked.values()])
            size = min(sum(each.max_bytes for each in named), NEWCOMER_BYTES)
            fetched = await self._exchange.send(channel, named, size, self._short)
            self._exchange.require_all(fetched, requests.values(), channel)
            # The poll may have had the messages of some already.
            requests = {place: request for place, request in requests.items() if request.fetch is asked[place]}
            taken: list[PartitionRequest] = []
            turns = self._hand_out(fetched, requests, {}, taken)
            for request in taken:
                request.settle(None)
            return turns if turns is None or not taken else max(turns, _TURNS_AFTER_TAKEN)
        except (BrokerError, WireError) as error:
            self._newcomers_line.count_lost()
            fail(requests.values(), error)
            return _TURNS

    def _sized(self, channel: Channel, named: Sequence[PartitionFetch]) -> Sequence[PartitionFetch]:
        """Ask each partition for its share only, of a broker that bounds no response as a whole."""
        if channel.versions.pick(FETCH) >= _BOUNDED_SINCE:
            self._bounded = channel
            return named
        if not named:
            return named
        share = max(1, self._most // len(named))
        return [each._replace(max_bytes=min(each.max_bytes, share)) for each in named]

    def _hand_out(
        self,
        fetched: FetchedPartitions,
        requests: Mapping[Place, PartitionRequest],
        besides: Mapping[Place, PartitionRequest],
        taken: list[PartitionRequest],
    ) -> int | None:
        """Answer those of which a response has something new, or an error, and those that hurry.

        They are among `requests`, without those that are `besides`. Those whose messages were taken are added to
        `taken`, and not settled. Return in how many turns of the loop all others have asked again; None: nothing came.
        """
        answers: list[tuple[PartitionRequest, FetchedPartition]] = []
        parts = fetched.partitions
        if fetched.error:
            parts = {place: part for place in self._waiting if (part := answer_of(fetched, place)) is not None}
        for place, part in parts.items():
            request = requests.get(place)
            if request is None or place in besides:
                continue
            if part.data or part.error or part.diverged or part.preferred >= 0:
                answers.append((request, part))
        turns = 0 if answers else None
        others: list[tuple[PartitionRequest, FetchedPartition]] = []
        # First all handlers have their messages; then fetchers go on.
        for answer in answers:
            request, part = answer
            if request.deliver(part):
                taken.append(request)
                self._hurried.pop(request.place, None)
            else:
                others.append(answer)
                turns = _TURNS
        for request, part in others:
            request.settle(part)
        if fetched.silence:
            turns = _TURNS
        for place in self._hurried:
            request = None if place in besides else requests.get(place)
            if request is not None and not request.answer.done():
                turns = _TURNS
                request.settle(None if fetched.throttled else fetched.partitions.get(place, _NOTHING))
        return turns

    def _review(self) -> None:
        """Have those ask again whose leader or topic may be another one by now, as the metadata say."""
        metadata, now = self._exchange.metadata, self._clock.monotonic()
        former, self._metadata = self._metadata, metadata
        if metadata is former or metadata == former:
            if now - self._reviewed < _REVIEW:
                return
            self._reviewed = now
            if not self._exchange.leased and all(map(self._exchange.is_fresh, {topic for topic, _ in self._waiting})):
                return
        for request in self._waiting.values():
            if request.patient and request.poller is not None and not request.poller.stays():
                request.settle(None)

"""The fetcher of one partition: fetch, decode, put in the lane, again.

Strategy: one task, one request in flight, one position. The position only moves to boundaries that were decoded, so
after any failure the same bytes are asked for again and every message reaches the lane once and in order. The task
waits, in this order: to be unpaused, for room in the lane, for the connection, for memory, for the answer, for
memory to decode into. What takes long to decode is decoded in steps, in turns with everything else. It puts nothing
after it was cancelled, because between the last wait and `put` there is none.

A partition without news waits in the `IdlePoller`; news or an error wakes it. What a response means is decided in
`response`, and what to do about bad messages and lost offsets in `policies`. Failures of the broker or the connection
are retried for ever and logged once until they end. When this partition's fetch is to blame for a broken connection
(the broker hangs, hangs up or sends garbage over it), it backs off and tries alone, over a connection for one request,
until it got an answer: the others have the common connection to themselves.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from consumerd.errors import BrokerError, reason_of
from consumerd.fetch.base_fetcher import BaseFetcher
from consumerd.fetch.errors import LaneClosedError
from consumerd.fetch.policies import FetchingOverError
from consumerd.fetch.response import FetchDecision, FetchOutcome, classify
from consumerd.fetch.v07.poller import Answer, IdlePoller, Idler
from consumerd.net import ConnectionClosedError
from consumerd.turns import in_turns
from consumerd.wire import WireError
from consumerd.wire.v07 import ErrorCode, FetchRequest, MessageBatch, decode_fetch_response, decode_steps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from consumerd.fetch.budget import Reservation
    from consumerd.fetch.lane import Lane
    from consumerd.fetch.policies import Services
    from consumerd.fetch.v07.link import BrokerLink
    from consumerd.net import Connection
    from consumerd.partition import TopicPartition

#: A FETCH answer's error code.
ANSWER_HEADER = 2


class PartitionFetcher(BaseFetcher):
    """Feeds `lane` from `offset` on. `run` is its task; `offset` the position of the next fetch."""

    def __init__(
        self,
        partition: TopicPartition,
        offset: int,
        lane: Lane,
        link: BrokerLink,
        poller: IdlePoller,
        services: Services,
    ) -> None:
        super().__init__(partition, offset, lane, services)
        self._link = link
        self._poller = poller
        #: Our last fetch ended the connection: the next one goes over a connection of its own.
        self._suspect = False
        self._idler = Idler(lane)

    def pause(self) -> None:
        """Send no new fetch. The answer to one under way still goes to the lane."""
        super().pause()
        self._idler.paused = True

    def resume(self) -> None:
        """Go on after `pause`."""
        super().resume()
        self._idler.paused = False
        self._poller.nudge()

    async def run(self) -> None:
        """Fetch until cancelled, until the lane is closed, or until a policy ends it."""
        while True:
            try:
                await self._resumed.wait()
                await self._lane.wait_for_room()
                answer = await (self._poller.wait(self._idler, self.offset) if self._idle else self._fetch())
                self._idle = False
                if answer is not None:
                    await self._digest(answer)
            except ConnectionClosedError as error:
                if error.blamed:  # the bystanders go on as soon as the connection is back
                    self._suspect = True
                    await self._retreat("fetch_failed", reason_of(error))
            except (BrokerError, WireError) as error:
                await self._retreat("fetch_failed", reason_of(error))
            except (LaneClosedError, FetchingOverError):
                return

    async def _fetch(self) -> Answer:
        size = self._size
        connection, reservation = await self._prepare(size)
        try:
            request = FetchRequest(self.partition.topic, self.partition.partition, self.offset, size)
            body = await connection.request(request.encode(), max_response=ANSWER_HEADER + size)
            response = decode_fetch_response(body)
        except BaseException:
            reservation.release()
            raise
        finally:
            if self._suspect:
                await connection.close()
        if not self._suspect:
            self._link.worked()
        self._suspect = False
        self._services.counters.fetches += 1
        return Answer(response.error, response.data, size, reservation)

    async def _prepare(self, size: int) -> tuple[Connection, Reservation]:
        """A connection and memory, in this order: a broker that is away must not hold memory.

        A connection that ends meanwhile refuses the request without blame, and `run` asks for the next one.
        """
        connection = await (self._link.private_connection() if self._suspect else self._link.connection())
        try:
            return connection, await self._lane.budget.reserve(size)
        except BaseException:
            if self._suspect:
                await connection.close()
            raise

    async def _digest(self, answer: Answer) -> None:
        if answer.error:
            answer.reservation.release()
            self._services.counters.errors[answer.error] += 1
            if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._reset()
            else:
                await self._retreat("fetch_refused", f"the broker answered with error {answer.error}")
            return
        batch = await self._decode(answer)
        decision = classify(
            batch,
            received=len(answer.data),
            asked=answer.asked,
            fetch_bytes=self._settings.fetch_bytes,
            max_fetch_bytes=self._settings.max_fetch_bytes,
        )
        await self._act(decision)

    async def _decode(self, answer: Answer) -> MessageBatch:
        """Decode when memory allows, put in the lane what there is, and move on."""
        try:
            if answer.data:
                await self._lane.budget.solvent(answer.reservation)
            steps = decode_steps(answer.data, self.offset, limits=self._settings.limits)
            batch = await in_turns(steps, self._decoding(answer.reservation))
            self._keep(batch, len(answer.data), answer.reservation)
        except BaseException:
            answer.reservation.release()
            raise
        return batch

    @contextlib.asynccontextmanager
    async def _decoding(self, reservation: Reservation) -> AsyncIterator[None]:
        """Large answers are decoded one after the other, each when memory still allows it."""
        async with self._services.decoding:
            await self._lane.budget.solvent(reservation)
            yield

    async def _act(self, decision: FetchDecision) -> None:
        match decision.outcome:
            case FetchOutcome.PROGRESS:
                self._well()
                self._idler.reset()
                self._size = self._settings.fetch_bytes
            case FetchOutcome.EMPTY:
                self._well()
                self._idle = True
            case FetchOutcome.CUT:
                assert decision.size is not None
                self._size = decision.size
                self._services.counters.grown += 1
            case FetchOutcome.TORN:
                self._go_on_at(await self._policies.torn(self.offset, decision))
            case FetchOutcome.OVERSIZE:
                self._go_on_at(await self._policies.oversize(self.offset, decision))
            case FetchOutcome.CORRUPT:
                self._go_on_at(self._policies.corrupt(self.offset, decision))

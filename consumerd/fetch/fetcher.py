"""The fetcher of one partition: fetch, decode, put in the lane, again.

Strategy: one task, one request in flight, one position. The position only moves to boundaries that were decoded, so
after any failure the same bytes are asked for again and every message reaches the lane once and in order. The task
waits, in this order: to be unpaused, for room in the lane, for the connection, for memory, for the answer, for
memory to decode into. It puts nothing after it was cancelled, because between the last wait and `put` there is none.

A partition without news waits in the `IdlePoller`; news or an error wakes it. What an answer means is decided in
`judge`; the policies for bad messages and lost offsets are carried out here. Failures of the broker or the connection
are retried for ever, with a back-off of this partition's own when it is to blame, and logged once until they end.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from consumerd.errors import BrokerError
from consumerd.fetch.backoff import Backoff
from consumerd.fetch.errors import (
    CorruptPartitionError,
    LaneClosedError,
    MessageTooLargeError,
    OffsetRefusedError,
)
from consumerd.fetch.judge import Finding, Verdict, judge
from consumerd.fetch.poller import Answer, IdlePoller, Idler
from consumerd.fetch.settings import BadMessagePolicy, ResetPolicy
from consumerd.net import ConnectionClosedError
from consumerd.wire import WireError
from consumerd.wire.v07 import EARLIEST, LATEST, ErrorCode, FetchRequest, decode_batch, decode_fetch_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from consumerd.errors import ConsumerdError
    from consumerd.fetch.lane import Lane
    from consumerd.fetch.link import BrokerLink
    from consumerd.fetch.listener import FetchCounters, FetchListener
    from consumerd.fetch.settings import FetchSettings
    from consumerd.partition import TopicPartition
    from consumerd.ports import Clock
    from consumerd.wire.v07 import MessageBatch

log = structlog.get_logger(__name__)

#: A FETCH answer's error code.
ANSWER_HEADER = 2
#: Seconds between looks whether a torn message is at the end of the log or in the middle.
TORN_CHECK_INTERVAL = 10.0


@dataclass(frozen=True, slots=True)
class Services:
    """What all fetchers share."""

    settings: FetchSettings
    clock: Clock
    rng: Random
    listener: FetchListener
    counters: FetchCounters
    #: (partition, time) -> offsets, on a connection of its own.
    list_offsets: Callable[[TopicPartition, int], Awaitable[tuple[int, ...]]]


class _OverError(Exception):
    """Fetching this partition is over: failed or parked, and reported."""


class PartitionFetcher:
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
        self.partition = partition
        self.offset = offset
        self._lane = lane
        self._link = link
        self._poller = poller
        self._services = services
        self._settings = settings = services.settings
        self._size = settings.fetch_bytes
        self._idle = False
        self._idler = Idler(lane)
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._trouble = Backoff(settings.retry_backoff_min, settings.retry_backoff_max, services.rng)
        self._torn: tuple[int, int, int, float] | None = None
        self._log = log.bind(partition=str(partition))

    @property
    def paused(self) -> bool:
        """Whether no new fetch is sent."""
        return not self._resumed.is_set()

    def pause(self) -> None:
        """Send no new fetch. The answer to one under way still goes to the lane."""
        self._resumed.clear()
        self._idler.paused = True

    def resume(self) -> None:
        """Go on after `pause`."""
        self._resumed.set()
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
                    await self._retreat("fetch_failed", str(error))
            except (BrokerError, WireError) as error:
                await self._retreat("fetch_failed", str(error))
            except (LaneClosedError, _OverError):
                return

    async def _fetch(self) -> Answer:
        size = self._size
        while True:
            connection = await self._link.connection()
            reservation = await self._lane.budget.reserve(size)
            if not connection.closed:
                break
            reservation.release()
        try:
            request = FetchRequest(self.partition.topic, self.partition.partition, self.offset, size)
            body = await connection.request(request.encode(), max_response=ANSWER_HEADER + size)
            response = decode_fetch_response(body)
        except BaseException:
            reservation.release()
            raise
        self._link.worked()
        self._services.counters.fetches += 1
        return Answer(response.error, response.data, size, reservation)

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
        verdict = judge(
            batch,
            received=len(answer.data),
            asked=answer.asked,
            fetch_bytes=self._settings.fetch_bytes,
            max_fetch_bytes=self._settings.max_fetch_bytes,
        )
        await self._act(verdict)

    async def _decode(self, answer: Answer) -> MessageBatch:
        """Decode when memory allows, put in the lane what there is, and move on."""
        counters = self._services.counters
        kept = False
        try:
            if answer.data:
                await self._lane.budget.solvent(answer.reservation)
            batch = decode_batch(answer.data, self.offset, limits=self._settings.limits)
            counters.received_bytes += len(answer.data)
            if batch.payloads:
                answer.reservation.resize(batch.memory_bytes)
                self._lane.put(batch, answer.reservation)
                kept = True
                counters.batches += 1
                counters.messages += len(batch)
            self.offset = batch.next_offset
        finally:
            if not kept:
                answer.reservation.release()
        return batch

    async def _act(self, verdict: Verdict) -> None:
        match verdict.finding:
            case Finding.PROGRESS:
                self._well()
                self._idler.reset()
                self._size = self._settings.fetch_bytes
            case Finding.EMPTY:
                self._well()
                self._idle = True
            case Finding.CUT:
                assert verdict.size is not None
                self._size = verdict.size
                self._services.counters.grown += 1
            case Finding.TORN:
                await self._torn_message(verdict)
            case Finding.OVERSIZE:
                await self._oversize(verdict)
            case Finding.CORRUPT:
                self._corrupt(verdict)

    # Bad messages.

    def _corrupt(self, verdict: Verdict) -> None:
        policy = self._settings.on_corrupt
        if policy is BadMessagePolicy.FAIL:
            self._fail(CorruptPartitionError(self.partition, self.offset, verdict.reason))
        if policy is BadMessagePolicy.PARK or verdict.next_offset is None:
            self._park(f"corrupt at offset {self.offset}: {verdict.reason}")
        assert verdict.next_offset is not None
        self._skip(verdict.next_offset, verdict.reason)

    async def _oversize(self, verdict: Verdict) -> None:
        policy = self._settings.on_oversize
        if policy is BadMessagePolicy.FAIL:
            needed = None if verdict.next_offset is None else verdict.next_offset - self.offset
            self._fail(MessageTooLargeError(self.partition, self.offset, needed, self._settings.max_fetch_bytes))
        if policy is BadMessagePolicy.PARK or verdict.next_offset is None:
            self._park(f"oversize at offset {self.offset}: {verdict.reason}")
        assert verdict.next_offset is not None
        # A length that reaches beyond the log is no length; going there would be out of range and start a reset.
        if verdict.next_offset > await self._latest():
            self._corrupt(Verdict(Finding.CORRUPT, reason=f"{verdict.reason}, which is more than the log holds"))
        else:
            self._skip(verdict.next_offset, verdict.reason)

    async def _torn_message(self, verdict: Verdict) -> None:
        """At the end of the log: wait for the rest. In the middle (the end of an old segment): corrupt.

        The middle is believed when the log's end was beyond this point before the bytes were fetched again.
        """
        assert verdict.next_offset is not None
        now = self._services.clock.monotonic()
        if self._torn is not None and self._torn[:2] == (self.offset, verdict.next_offset):
            _, end, latest, looked = self._torn
            if latest > end:
                self._torn = None
                self._corrupt(Verdict(Finding.CORRUPT, next_offset=end, reason=verdict.reason))
                return
            if now - looked < TORN_CHECK_INTERVAL:
                self._idle = True
                return
        else:
            self._log.warning("message_cut_off", offset=self.offset, reason=verdict.reason)
        self._torn = self.offset, verdict.next_offset, await self._latest(), now
        self._idle = True

    async def _latest(self) -> int:
        offsets = await self._services.list_offsets(self.partition, LATEST)
        return offsets[0] if offsets else 0

    def _skip(self, next_offset: int, reason: str) -> None:
        self._log.warning("message_skipped", offset=self.offset, next_offset=next_offset, reason=reason)
        self._services.counters.skipped += 1
        skipped, self.offset = self.offset, next_offset
        self._size = self._settings.fetch_bytes
        self._services.listener.skipped(self.partition, skipped, next_offset, reason)

    def _park(self, reason: str) -> None:
        self._log.warning("partition_parked", offset=self.offset, reason=reason)
        self._services.counters.parked += 1
        self._services.listener.parked(self.partition, reason)
        raise _OverError

    def _fail(self, error: ConsumerdError) -> None:
        self._log.error("partition_failed", offset=self.offset, error=str(error))
        self._services.counters.failed += 1
        self._services.listener.failed(self.partition, error)
        raise _OverError

    # Troubles that may pass.

    async def _reset(self) -> None:
        old, policy = self.offset, self._settings.on_out_of_range
        if policy is ResetPolicy.FAIL:
            self._fail(OffsetRefusedError(self.partition, old))
        if self._trouble.attempts:  # not the first refusal in a row: resetting did not help
            await self._services.clock.sleep(self._trouble.next())
        offsets = await self._services.list_offsets(
            self.partition, EARLIEST if policy is ResetPolicy.EARLIEST else LATEST
        )
        if not offsets or offsets[0] == old:
            await self._retreat("fetch_refused", f"offset {old} out of range, and the broker names no other")
            return
        self._trouble.next()
        self.offset = offsets[0]
        self._size = self._settings.fetch_bytes
        self._services.counters.resets += 1
        self._log.warning("offset_reset", old=old, new=self.offset, policy=policy.value)
        self._services.listener.reset(self.partition, old, self.offset)

    async def _retreat(self, event: str, reason: str) -> None:
        if not self._trouble.attempts:
            self._log.warning(event, offset=self.offset, reason=reason)
        await self._services.clock.sleep(self._trouble.next())

    def _well(self) -> None:
        if self._trouble.attempts:
            self._trouble.reset()
            self._log.info("fetch_recovered", offset=self.offset)

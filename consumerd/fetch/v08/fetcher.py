"""The fetcher of one partition of 0.8 or later: find its leader, fetch, decode, put in the lane, again.

Strategy: as `consumerd.fetch.v07.fetcher`, with the same promises: one task, one position that only moves by what was
decoded, nothing put after a cancellation. What differs: the leader changes, so it is looked up before every request
(in memory, unless it proved wrong); brokers wait for news themselves; and answers of many partitions come together, so
the sending is left to `BrokerSource`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from consumerd.client import error_of
from consumerd.errors import BrokerError, reason_of
from consumerd.fetch.base_fetcher import BaseFetcher
from consumerd.fetch.errors import LaneClosedError
from consumerd.fetch.policies import FetchingOverError
from consumerd.fetch.response import FetchDecision, FetchOutcome, classify_records
from consumerd.fetch.v08.broker_source import PartitionRequest
from consumerd.wire import WireError
from consumerd.wire.v08.error_codes import ErrorCode, error_info
from consumerd.wire.v08.records import decode_records

if TYPE_CHECKING:
    from consumerd.client import FetchedPartition
    from consumerd.fetch.budget import Reservation
    from consumerd.fetch.lane import Lane
    from consumerd.fetch.policies import Services
    from consumerd.fetch.v08.broker_source import BrokerSource
    from consumerd.partition import TopicPartition
    from consumerd.wire.v08.records import RecordSet


class Leaders(Protocol):
    """Who leads partitions, and how to ask them."""

    async def leader(self, partition: TopicPartition) -> tuple[BrokerSource, int]:
        """The source of the leader, and the leader's epoch (-1 for unknown). Raises BrokerError."""
        ...

    def wrong(self, partition: TopicPartition) -> None:
        """The broker does not lead the partition, or cannot be reached: look the leader up again."""
        ...


class V08Fetcher(BaseFetcher):
    """Feeds `lane` from `offset` on. `run` is its task; `offset` the position of the next fetch."""

    def __init__(
        self, partition: TopicPartition, offset: int, lane: Lane, leaders: Leaders, services: Services
    ) -> None:
        super().__init__(partition, offset, lane, services)
        self._leaders = leaders
        #: The last answer brought nothing although there was something.
        self._passed_over = False

    async def run(self) -> None:
        """Fetch until cancelled, until the lane is closed, or until a policy ends it."""
        while True:
            try:
                await self._resumed.wait()
                await self._lane.wait_for_room()
                source, epoch = await self._leaders.leader(self.partition)
                self._policies.broker = source.node_id
                await (self._poll(source, epoch) if self._idle else self._fetch(source, epoch))
            except (BrokerError, WireError) as error:
                self._leaders.wrong(self.partition)
                await self._retreat("fetch_failed", reason_of(error))
            except (LaneClosedError, FetchingOverError):
                return

    def _request(self, size: int, epoch: int) -> PartitionRequest:
        return PartitionRequest(self.partition, self.offset, size, epoch, asyncio.get_running_loop().create_future())

    async def _fetch(self, source: BrokerSource, epoch: int) -> None:
        """What there is now, with memory reserved for it."""
        size = self._size
        reservation = await self._lane.budget.reserve(size)
        try:
            answer = await source.fetch(self._request(size, epoch))
        except BaseException:
            reservation.release()
            raise
        await self._digest(answer, size, reservation)

    async def _poll(self, source: BrokerSource, epoch: int) -> None:
        """News, when there is some; its memory is counted when it is here."""
        # Less than `min_bytes` of one partition would never be enough, however much there is of it.
        size = max(self._settings.poll_bytes, self._settings.min_bytes)
        answer = await source.poll(self._request(size, epoch))
        await self._digest(answer, size, self._lane.budget.charge(len(answer.data)))

    async def _digest(self, answer: FetchedPartition, asked: int, reservation: Reservation) -> None:
        if answer.error:
            reservation.release()
            self._services.counters.errors[answer.error] += 1
            await self._refused(answer.error)
            return
        records = await self._decode(answer, reservation)
        decision = classify_records(
            records,
            received=len(answer.data),
            asked=asked,
            fetch_bytes=self._settings.fetch_bytes,
            max_fetch_bytes=self._settings.max_fetch_bytes,
        )
        await self._act(decision, answer)

    async def _decode(self, answer: FetchedPartition, reservation: Reservation) -> RecordSet:
        """Decode when memory allows, put in the lane what there is, and move on."""
        try:
            if answer.data:
                await self._lane.budget.solvent(reservation)
            records = decode_records(answer.data, self.offset, limits=self._settings.limits, aborted=answer.aborted)
            self._keep(records, len(answer.data), reservation)
        except BaseException:
            reservation.release()
            raise
        return records

    async def _refused(self, error: int) -> None:
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._reset()
            return
        if error_info(error).refresh:
            self._leaders.wrong(self.partition)
        await self._retreat("fetch_refused", str(error_of(error, f"a fetch of {self.partition}")))

    async def _act(self, decision: FetchDecision, answer: FetchedPartition) -> None:
        match decision.outcome:
            case FetchOutcome.PROGRESS:
                self._well()
                self._idle = self._passed_over = False
                self._size = self._settings.fetch_bytes
            case FetchOutcome.EMPTY:
                self._well()
                # An answer may be full of other partitions: then we ask again at once, but only once.
                self._idle = self._passed_over or answer.readable_end <= self.offset
                self._passed_over = not self._idle
            case FetchOutcome.CUT:
                assert decision.size is not None
                self._size = decision.size
                self._idle = False
                self._services.counters.grown += 1
            case FetchOutcome.OVERSIZE:
                self._go_on_at(await self._policies.oversize(self.offset, decision))
            case FetchOutcome.CORRUPT:
                self._go_on_at(self._policies.corrupt(self.offset, decision))
            case FetchOutcome.TORN:
                raise AssertionError("brokers that check messages have no torn ones")

"""Policies for offsets out of range and for bad messages, carried out and reported.

Strategy: each policy is given the offset in question and returns the offset to continue at, or None to wait for the
log to grow, or ends the fetching of the partition by `FetchingOverError`. Each decision is counted and
reported to the listener, which logs it. Where messages are passed over, a batch without messages goes into the lane: it
moves the committed position even if nothing ever follows, so that a restart does not do it all again (0.7.2, too,
stores a reset offset at once: golden notes, 6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

import structlog

from consumerd.base.errors import BrokerError, ConsumerdError, reason_of
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.base.ports import Clock
from consumerd.base.settings.processing import OutOfRangePolicy
from consumerd.member.fetch.errors import (
    CorruptPartitionError,
    LogChangedError,
    MessageTooLargeError,
    OffsetBeyondError,
    OffsetRefusedError,
)
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.listener import FetchCounters, FetchListener
from consumerd.member.fetch.log_changes import LogChange, LogChangeKind
from consumerd.member.fetch.response import FetchDecision, FetchOutcome
from consumerd.member.fetch.settings import FetchSettings
from consumerd.wire.registry.values import MAX_OFFSET
from consumerd.wire.v07 import EARLIEST, LATEST, MessageBatch

log = structlog.get_logger(__name__)

#: Seconds between checks of whether a torn message is at the end of the log or in the middle.
TORN_CHECK_INTERVAL = 10.0


@dataclass(slots=True)
class _Burst:
    """Failures for one reason, or their ends: the partitions, and those that are not logged yet, with their offsets."""

    seen: set[TopicPartition] = field(default_factory=set)
    new: list[tuple[TopicPartition, int | None]] = field(default_factory=list)


class PartitionFailures:
    """Logs failures of partitions, and their ends: at once for all of one turn of the event loop with the same reason.

    Others that follow within `window` seconds are one more line: where each connects on its own, each fails on its own.
    So are partitions that can be read again: an outage of a broker ends for all that it leads.
    """

    __slots__ = ("_bursts", "_window")

    def __init__(self, window: float = 1.0) -> None:
        self._window = window
        self._bursts: dict[tuple[str, str], _Burst] = {}

    def add(self, partition: TopicPartition, offset: int | None, reason: str, *, refused: bool = False) -> None:
        """Log a failed or `refused` fetch in the next turn, when the other partitions of the request have failed, too.

        `offset`: None where it was to be looked up, and that failed.
        """
        self._add("lookup" if offset is None else "refusal" if refused else "fetch", reason, partition, offset)

    def recovered(self, partition: TopicPartition, offset: int) -> None:
        """Log that a partition can be read again."""
        self._add("recovery", "", partition, offset)

    def _add(self, what: str, reason: str, partition: TopicPartition, offset: int | None) -> None:
        burst = self._bursts.get((what, reason))
        if burst is None or partition in burst.seen:
            if burst is not None:
                self._write(what, reason, burst)
            burst = self._bursts[what, reason] = _Burst()
            asyncio.get_running_loop().call_soon(self._begin, what, reason, burst)
        burst.seen.add(partition)
        burst.new.append((partition, offset))

    def _begin(self, what: str, reason: str, burst: _Burst) -> None:
        self._write(what, reason, burst)
        asyncio.get_running_loop().call_later(self._window, self._end, what, reason, burst)

    def _end(self, what: str, reason: str, burst: _Burst) -> None:
        self._write(what, reason, burst)
        if self._bursts.get((what, reason)) is burst:
            del self._bursts[what, reason]

    @staticmethod
    def _write(what: str, reason: str, burst: _Burst) -> None:
        if not burst.new:
            return
        partition, offset = burst.new[0]
        others = {"more": len(burst.new) - 1} if len(burst.new) > 1 else {}
        if what == "recovery":
            log.info("fetch_recovered", partition=str(partition), offset=offset, **others)
        elif what == "lookup":
            log.warning("position_lookup_failed", partition=str(partition), **others, reason=reason)
        else:
            log.warning(
                "fetch_refused" if what == "refusal" else "fetch_failed",
                partition=str(partition),
                offset=offset,
                **others,
                reason=reason,
            )
        burst.new.clear()


@dataclass(frozen=True, slots=True)
class FetchServices:
    """The services that all fetchers share."""

    settings: FetchSettings
    clock: Clock
    rng: Random
    listener: FetchListener
    #: (partition, time) -> offsets, on a connection of its own.
    list_offsets: Callable[[TopicPartition, int], Awaitable[tuple[int, ...]]]
    counters: FetchCounters = field(default_factory=FetchCounters)
    #: Held while an answer is decoded that takes more than one step: one at a time, as each may become large.
    decoding: asyncio.Lock = field(default_factory=asyncio.Lock)
    failures: PartitionFailures = field(default_factory=PartitionFailures)


class FetchingOverError(Exception):
    """Fetching this partition is over: failed or parked, and reported. Control flow between policy and fetcher."""


@dataclass(frozen=True, slots=True)
class _Torn:
    """A message cut off at `end`, and the end of the log at the time `looked` (seconds)."""

    offset: int
    end: int
    latest: int
    looked: float


class FetchPolicies:
    """The policies of one partition. All may raise FetchingOverError, LaneClosedError, and BrokerError where async."""

    __slots__ = ("_lane", "_partition", "_services", "_settings", "_torn", "broker", "log")

    def __init__(self, partition: TopicPartition, lane: Lane, services: FetchServices) -> None:
        #: The broker whose responses are classified.
        self.broker = partition.broker
        #: The log that the messages before the offset in question are of.
        self.log = UNKNOWN_LOG
        self._partition = partition
        self._lane = lane
        self._services = services
        self._settings = services.settings
        self._torn: _Torn | None = None

    def require_possible(self, offset: int, next_offset: int) -> None:
        """Fail if the message at `offset` ends at a `next_offset` that no log can reach and no store can hold."""
        if next_offset > MAX_OFFSET:
            raise self._fail(offset, OffsetBeyondError(self._partition, self.broker, offset, next_offset))

    def corrupt(self, offset: int, decision: FetchDecision) -> int:
        """Handle bytes that are not a message."""
        policy = self._settings.corrupt
        if policy == "fail":
            raise self._fail(offset, CorruptPartitionError(self._partition, offset, decision.reason))
        if policy == "park" or decision.next_offset is None:
            raise self._park(f"corrupt at offset {offset}: {decision.reason}")
        return self._skip(offset, decision.next_offset, decision.reason)

    async def oversize(self, offset: int, decision: FetchDecision) -> int:
        """Handle a message larger than any fetch may be."""
        policy = self._settings.oversize
        if policy == "fail":
            limit = self._settings.max_size
            raise self._fail(offset, MessageTooLargeError(self._partition, offset, decision.size, limit))
        if policy == "park" or decision.next_offset is None:
            raise self._park(f"oversize at offset {offset}: {decision.reason}")
        # A length that reaches beyond the log is invalid; its end would be out of range and start a reset.
        if decision.next_offset > await self._latest():
            return self.corrupt(
                offset,
                FetchDecision(FetchOutcome.CORRUPT, reason=f"{decision.reason}, which is more than the log holds"),
            )
        return self._skip(offset, decision.next_offset, decision.reason)

    async def torn(self, offset: int, decision: FetchDecision) -> int | None:
        """Handle a cut-off message. At the log's end: wait for the rest. In the middle (an old segment's end): corrupt.

        It is in the middle if the log reached beyond this point before the same bytes were fetched again.
        """
        assert decision.next_offset is not None
        now = self._services.clock.monotonic()
        torn = self._torn
        if torn is None or (torn.offset, torn.end) != (offset, decision.next_offset):
            log.warning("message_cut_off", partition=str(self._partition), offset=offset, reason=decision.reason)
        elif torn.latest > torn.end:
            self._torn = None
            return self.corrupt(offset, decision)
        elif now - torn.looked < TORN_CHECK_INTERVAL:
            return None
        self._torn = _Torn(offset, decision.next_offset, await self._latest(), now)
        return None

    async def out_of_range(self, offset: int) -> int:
        """Handle an offset that the broker does not have. Return `offset` itself if the broker names no other one."""
        policy = self._settings.out_of_range
        if policy == "fail":
            raise self._fail(offset, OffsetRefusedError(self._partition, offset))
        new = await self._target(policy, offset)
        if new is None or new == offset:
            return offset
        self._services.counters.resets += 1
        self._pass_over(min(offset, new), new, self.log.without_epoch())
        written_down = self._services.listener.reset(self._partition, offset, new)
        if written_down is not None:
            await written_down
        return new

    async def _target(self, policy: OutOfRangePolicy, offset: int) -> int | None:
        """Return the offset that a policy names for one that is out of range; None: the broker names none.

        The nearest one is `offset` itself where the log has it by now, as after an election.
        """
        if policy == "latest":
            return await self._listed(LATEST)
        earliest = await self._listed(EARLIEST)
        if policy == "earliest" or earliest is None:
            return earliest
        latest = await self._listed(LATEST)
        return None if latest is None else max(earliest, min(offset, latest))

    async def log_changed(self, change: LogChange) -> int:
        """Handle a log that is another one than that of the position: return the offset to continue at."""
        policy = self._settings.log_changed
        if policy == "stop":
            raise self._fail(change.offset, LogChangedError(self._partition, change))
        if policy == "park":
            raise self._park(f"its log {change}")
        new = change.divergence
        if new is None and (new := await self._listed(EARLIEST)) is None:
            raise BrokerError(f"no broker returned the first offset of {self._partition} yet")
        counters = self._services.counters
        if change.kind is LogChangeKind.TRUNCATED:
            counters.truncated_logs += 1
        else:
            counters.replaced_logs += 1
        self._pass_over(new, new, change.now)
        written_down = self._services.listener.log_changed(self._partition, change, new)
        if written_down is not None:
            await written_down
        return new

    async def _listed(self, time: int) -> int | None:
        offsets = await self._services.list_offsets(self._partition, time)
        return offsets[0] if offsets else None

    async def _latest(self) -> int:
        return await self._listed(LATEST) or 0

    def _skip(self, offset: int, next_offset: int, reason: str) -> int:
        self.require_possible(offset, next_offset)
        self._services.counters.skipped += 1
        self._pass_over(offset, next_offset, self.log)
        self._services.listener.skipped(self._partition, offset, next_offset, reason)
        return next_offset

    def _pass_over(self, start: int, next_offset: int, log: LogId) -> None:
        batch = MessageBatch([], (), start, next_offset, 0)
        batch.log = log
        self._lane.put(batch, self._lane.budget.charge(0))

    def _park(self, reason: str) -> FetchingOverError:
        self._services.counters.parked += 1
        self._services.listener.parked(self._partition, reason)
        return FetchingOverError()

    def _fail(self, offset: int, error: ConsumerdError) -> FetchingOverError:
        log.error("partition_failed", partition=str(self._partition), offset=offset, reason=reason_of(error))
        self._services.counters.failed += 1
        self._services.listener.failed(self._partition, error)
        return FetchingOverError()

"""The fetcher of one partition: ask its source, decode, put in the lane, again.

Strategy: one task, one request in flight, one position. The position only moves to boundaries that were decoded, so
after any failure the same bytes are requested again and every message reaches the lane once and in order. The task
waits, in this order: to be resumed, for room in the lane, for the source (the connection, memory, the response), for
memory to decode into. It puts nothing after it was cancelled, because between the last wait and `put` there is none.

A position is an offset and the log that it was read from. Before the first fetch, and whenever the source has doubts,
it is compared with the log at the broker (`log_changes`); the policy for changed logs says where to continue.

The requests for a partition, and the meaning of errors, differ by dialect and are up to its `PartitionSource`: in 0.7
idle partitions of a broker are polled together (`v07.brokers`), since 0.8 a leader, which may change, holds its
response back until there are new messages (`v08.brokers`). `response` classifies responses, and `policies` handles bad
messages and offsets out of range. Failures of the broker or the connection are retried for ever and logged once until
they end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

import structlog

from consumerd.base.backoff import Backoff
from consumerd.base.budget import Reservation
from consumerd.base.errors import BrokerError, reason_of
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.member.fetch.errors import LaneClosedError
from consumerd.member.fetch.event import Flag
from consumerd.member.fetch.lane import Fetched, Lane
from consumerd.member.fetch.log_changes import LogChange, LogChangeKind
from consumerd.member.fetch.policies import FetchingOverError, FetchPolicies, FetchServices
from consumerd.member.fetch.response import FetchDecision, FetchOutcome, classify
from consumerd.wire import WireError
from consumerd.wire.registry.values import MAX_OFFSET

log = structlog.get_logger(__name__)

#: Seconds between log events of a partition that stays out of range: the first, and at most.
REPORT_PAUSES: Final = (10.0, 3600.0)
#: The same of a failure that comes and goes: it is logged again when it lasts, or after this time.
FLAP_PAUSES: Final = (5.0, 60.0)
#: Reasons that are logged at once while others come and go: a reason with a number in it is a new one each time.
FLAP_REASONS: Final = 4
#: Nothing was logged as yet: one object for all partitions.
_NO_SILENCE: Final[tuple[frozenset[str], float, float]] = (frozenset(), 0.0, 0.0)
#: Leader epochs that are remembered, besides the last one.
_MOST_EPOCHS: Final = 15
#: Of a response that moved the position.
_PROGRESS: Final = FetchDecision(FetchOutcome.PROGRESS)
#: What is found at an offset where no message begins.
_UNREADABLE = (FetchOutcome.TORN, FetchOutcome.CORRUPT, FetchOutcome.OVERSIZE)  # a set has a hash computed in Python


class PartitionResponse(NamedTuple):
    """A broker's response for one partition; the receiver releases the reservation.

    `error`: its code, 0 for none. `asked`: bytes. The rest is that of `FetchedPartition`.
    """

    broker: int
    error: int
    data: bytes | memoryview
    asked: int
    reservation: Reservation
    readable_end: int = -1
    aborted: tuple[tuple[int, int], ...] = ()
    diverged: bool = False
    #: The number of the connection, for logs that only their messages tell apart.
    connection: int = 0
    #: Its messages, if they are in the lane already.
    fetched: Fetched | None = None


#: A response of its fields, without a call of Python code.
made_response: Final = partial(tuple.__new__, PartitionResponse)
#: Puts the messages of a response in the lane. Returns whether the source may wait for those that follow as it waited
#: for these while the lane has room: nothing is left for the fetcher to do. Raises FetchingOverError.
Put: TypeAlias = Callable[[PartitionResponse, Fetched], bool]


class PartitionSource(Protocol):
    """The source of one partition's messages, used by one fetcher, one request at a time."""

    #: Whether the next request waits until there are new messages.
    idle: bool

    async def ask(self, offset: int, size: int, log: LogId, put: Put) -> PartitionResponse | None:
        """Request about `size` bytes from `offset` of `log` on, or wait for new messages at `offset` if `idle`.

        A source whose decoder does not wait may `put` the messages before this returns, so that the handler has them
        turns of the loop earlier; the lane must be open, and its budget solvent. If that allows it, it may also wait
        for what follows them, and do what it does in `classified`. None: ask again, after a comparison if there are
        doubts. Raises LaneClosedError, BrokerError and WireError.
        """
        ...

    #: Whether `compare` may tell that a position is of another log, whatever stands at it.
    identifies: bool

    def is_doubtful(self) -> bool:
        """Whether the log may have become another one, so that the position has to be compared before it is used."""
        ...

    async def compare(self, offset: int, log: LogId) -> tuple[LogId, LogChange | None]:
        """Compare a position with the log at the broker: what is known of its log now, and the change, if there is one.

        Raises BrokerError and WireError.
        """
        ...

    async def decode(self, response: PartitionResponse, offset: int) -> Fetched:
        """Return the messages of a response, which may be damaged. Raises WireError."""
        ...

    def classified(self, outcome: FetchOutcome, response: PartitionResponse, offset: int) -> None:
        """Set `idle` by the kind of a response and the offset of the next request."""
        ...

    def refusal(self, error: int) -> str | None:
        """Return the reason in words for a response with an error; None for an offset out of range."""
        ...

    def failed(self, error: BrokerError | WireError) -> bool:
        """Note a missing or invalid response; return whether to back off before the next request."""
        ...

    def pause(self) -> None:
        """Send nothing for the partition from now on, even if it is idle."""
        ...

    def resume(self) -> None:
        """Continue after `pause`."""
        ...


class Fetcher:
    """Feeds `lane` from `offset` of the log `log_id` on. `run` is its task; `offset` the position of the next fetch."""

    __slots__ = (
        "_connection",
        "_end",
        "_epochs",
        "_failures",
        "_lane",
        "_policies",
        "_proven",
        "_report_at",
        "_report_pauses",
        "_reported",
        "_resumed",
        "_services",
        "_settings",
        "_silence",
        "_size",
        "_source",
        "_torn",
        "log",
        "offset",
        "partition",
    )

    def __init__(
        self,
        partition: TopicPartition,
        offset: int,
        lane: Lane,
        source: PartitionSource,
        services: FetchServices,
        log_id: LogId = UNKNOWN_LOG,
    ) -> None:
        self.partition = partition
        self.offset = offset
        #: The log that the messages before `offset` are of, as far as it is known.
        self.log = log_id
        #: Whether the log is known to have a message at `offset`, or its end.
        self._proven = False
        self._connection = 0
        #: A message that was cut off: its offset, and the bytes that there were of it and behind it.
        self._torn: tuple[int, int] | None = None
        #: The leader epochs of what was read, and where each began at the latest, as far as this fetcher saw it.
        self._epochs: tuple[tuple[int, int], ...] = ()
        if log_id.leader_epoch is not None:
            self._epochs = ((log_id.leader_epoch, offset if log_id.epoch_start is None else log_id.epoch_start),)
        #: The end of the log when it was seen last, in logs whose topic id is known; None: never.
        self._end: int | None = None
        self._lane = lane
        self._source = source
        self._services = services
        self._settings = settings = services.settings
        self._size = settings.size
        self._resumed = Flag(is_set=True)
        self._failures = Backoff(settings.retry_backoff_min, settings.retry_backoff_max, services.rng)
        #: When to log again that the offset stays out of range (the clock's seconds), and the pauses between.
        self._report_at, self._report_pauses = 0.0, Backoff(*REPORT_PAUSES, services.rng)
        #: Whether the failure that goes on is logged; the reasons that were, one after the other, until when they are
        #: not logged again, and that pause.
        self._reported = False
        self._silence = _NO_SILENCE
        self._policies = FetchPolicies(partition, lane, services)

    @property
    def paused(self) -> bool:
        """Whether no new fetch is sent."""
        return not self._resumed.is_set()

    def pause(self) -> None:
        """Send no new fetch. The response to one under way still goes to the lane."""
        self._resumed.clear()
        self._source.pause()

    def resume(self) -> None:
        """Continue after `pause`."""
        self._resumed.set()
        self._source.resume()

    async def run(self) -> None:
        """Fetch until cancelled, until the lane is closed, or until a policy ends it."""
        while True:
            response = None  # nothing refers to the last one while the next one is awaited, which may take long
            try:
                if not self._resumed.state:
                    await self._resumed.wait()
                if not self._lane.has_room:
                    await self._lane.wait_for_room()
                if self._source.is_doubtful():
                    await self._compare()
                    continue
                response = await self._source.ask(self.offset, self._size, self.log, self._put)
                if response is not None:
                    await self._process(response)
            except (BrokerError, WireError) as error:
                if self._source.failed(error):
                    await self._back_off(reason_of(error))
            except (LaneClosedError, FetchingOverError):
                return

    async def _process(self, response: PartitionResponse) -> None:
        # Doubtful since the request was sent: the messages may be those of another log.
        if response.fetched is None and self._source.is_doubtful():
            response.reservation.release()
            return
        self._policies.broker, self._policies.log = response.broker, self.log
        if response.connection != self._connection:  # the broker may have come back with another log
            self._connection, self._proven = response.connection, False
        if response.error:
            response.reservation.release()
            self._services.counters.errors[response.error] += 1
            reason = self._source.refusal(response.error)
            await (self._reset() if reason is None else self._back_off(reason, refused=True))
            return
        if response.diverged:
            response.reservation.release()
            if not await self._compare():
                await self._back_off("the broker reports a diverging log, and an epoch that agrees", refused=True)
            return
        fetched = response.fetched
        if fetched is None:
            fetched = await self._decode(response)
            if len(fetched):
                await asyncio.sleep(0)  # the handler has the messages before this fetcher continues
        settings = self._settings
        if fetched.next_offset > fetched.start_offset:  # as `classify` has it, without a call for each message
            decision = _PROGRESS
        else:
            decision = classify(
                fetched,
                received=len(response.data),
                asked=response.asked,
                size=settings.size,
                max_size=settings.max_size,
            )
        self._source.classified(decision.outcome, response, self.offset)
        self._services.counters.answered.add(self.partition)
        if decision is _PROGRESS:
            self._torn = None
            self._progressed()
            return
        unreadable = decision.outcome in _UNREADABLE
        if self._is_suspect(decision.outcome, len(response.data)) or (unreadable and self._source.is_doubtful()):
            await self._compare()  # that shows whether there is something to be read, and it is damaged
        else:
            await self._act(decision)

    def _is_suspect(self, outcome: FetchOutcome, received: int) -> bool:
        """Whether what cannot be read may be of another log: nothing was read of this one, or a torn message grew."""
        before = self._torn
        self._torn = (self.offset, received) if outcome is FetchOutcome.TORN else None
        grown = self._torn is not None and before is not None and before < self._torn and before[0] == self.offset
        return outcome in _UNREADABLE and (grown or not self._proven)

    async def _compare(self) -> bool:
        """Compare the position with the log at the broker, and follow the policy if it is another one."""
        now, change = await self._source.compare(self.offset, self.log)
        if change is not None:
            change = self._completed(change)
        offset = self.offset if change is None else await self._policies.log_changed(change)
        self.log, self._proven = now, True
        if change is not None:
            self._end = None
            truncated = change.kind is LogChangeKind.TRUNCATED
            self._epochs = tuple(each for each in self._epochs if truncated and each[1] < offset)
            self._continue_at(offset)
        return change is not None

    def _completed(self, change: LogChange) -> LogChange:
        """Return the change with what this fetcher knows of the former log.

        A leader that has no message of the position's epoch may have those of a lower one up to the position and behind
        it, as after a second unclean election: the logs part where the first epoch began that the leader does not have.
        """
        if change.kind is LogChangeKind.REPLACED:
            return change._replace(former_end=self._end)
        kept = change.now.leader_epoch
        if kept is None or change.divergence is None:
            return change
        began = (start for epoch, start in self._epochs if epoch > kept)
        return change._replace(divergence=min([change.divergence, *began]))

    async def _decode(self, response: PartitionResponse) -> Fetched:
        """Decode when memory allows, and put the messages in the lane."""
        reservation = response.reservation
        try:
            if response.data:
                await self._lane.budget.solvent(reservation)
            fetched = await self._source.decode(response, self.offset)
            self._put(response, fetched)
        except BaseException:
            reservation.release()
            raise
        return fetched

    def _put(self, response: PartitionResponse, fetched: Fetched) -> bool:
        """Put the messages of a response in the lane if there are any, and move on. Returns as `Put` says."""
        reservation, end = response.reservation, fetched.next_offset
        try:
            self._policies.broker = response.broker
            if end > MAX_OFFSET:
                self._policies.require_possible(fetched.start_offset, end)
            counters = self._services.counters
            counters.received_bytes += len(response.data)
            at_end = 0 <= response.readable_end <= end
            if response.readable_end >= 0 and self.log.topic_id is not None:
                self._end = response.readable_end
            if progress := end > fetched.start_offset:
                # The log has the end of what was read from it; what comes after a wait may be another log's.
                self._proven = not at_end
                topic_id, epoch, zxid, _ = self.log
                if (read := fetched.log.leader_epoch) != epoch:
                    # Of the first epoch that is read it is not known where it began.
                    start = None if epoch is None or read is None else fetched.start_offset
                    self.log = LogId(topic_id, read, zxid, start)
                    if read is not None:
                        self._epochs = (*self._epochs[-_MOST_EPOCHS:], (read, fetched.start_offset))
                fetched.log = self.log
                if reservation.amount != fetched.memory_bytes:
                    reservation.resize(fetched.memory_bytes)
                self._lane.put(fetched, reservation)
                counters.batches += 1
                counters.messages += len(fetched)
            else:
                reservation.release()
        except BaseException:
            reservation.release()
            raise
        self.offset = end
        # What `_process` does in a turn of its own is done, or would change nothing.
        usual = not self._failures.attempts and self._torn is None and self._size == self._settings.size
        return progress and at_end and usual and self._resumed.state

    async def _act(self, decision: FetchDecision) -> None:
        match decision.outcome:
            case FetchOutcome.PROGRESS:
                self._progressed()
            case FetchOutcome.EMPTY:
                self._proven = False  # what comes next may be another log's
                self._recovered()
            case FetchOutcome.CUT:
                assert decision.size is not None
                self._size = decision.size
                self._services.counters.grown += 1
            case FetchOutcome.TORN:
                self._continue_at(await self._policies.torn(self.offset, decision))
            case FetchOutcome.OVERSIZE:
                self._continue_at(await self._policies.oversize(self.offset, decision))
            case FetchOutcome.CORRUPT:
                self._continue_at(self._policies.corrupt(self.offset, decision))

    def _progressed(self) -> None:
        if self._failures.attempts:
            self._recovered()
        self._size = self._settings.size
        self._proven = not self._source.idle  # what comes after a wait may be another log's

    def _continue_at(self, offset: int | None) -> None:
        """Continue at the offset that a policy chose; None: wait for the log to grow."""
        if offset is None:
            self._source.idle = True
        else:
            self.offset = offset
            self._size = self._settings.size

    async def _reset(self) -> None:
        """Continue where the log is another one than before; else where the policy for offsets out of range says."""
        former = self.log
        if self._source.identifies and (await self._compare() or self.log != former):
            return
        if self._failures.attempts:  # not the first refusal in a row: resetting did not help
            await self._services.clock.sleep(self._failures.next())
        offset = await self._policies.out_of_range(self.offset)
        if offset == self.offset:
            now = self._services.clock.monotonic()
            if now >= self._report_at:
                reason = f"offset {offset} is out of range, and the broker returned no other"
                log.warning("fetch_refused", partition=str(self.partition), offset=offset, reason=reason)
                self._report_at = now + self._report_pauses.next()
                self._reported = True
            await self._services.clock.sleep(self._failures.next())
        else:
            self._failures.next()
            self._continue_at(offset)

    async def _back_off(self, reason: str, *, refused: bool = False) -> None:
        if not self._reported and self._is_worth_reporting(reason):
            self._reported = True
            self._services.failures.add(self.partition, self.offset, reason, refused=refused)
        await self._services.clock.sleep(self._failures.next())

    def _is_worth_reporting(self, reason: str) -> bool:
        """Whether a failure is logged: not one that comes and goes, unless the pause is over or the reason is new.

        Reasons that take turns share one pause.
        """
        now = self._services.clock.monotonic()
        reasons, until, pause = self._silence
        if now >= until + pause:
            reasons, until, pause = frozenset(), now + FLAP_PAUSES[0], FLAP_PAUSES[0]
        elif now >= until:
            pause = min(2 * pause, FLAP_PAUSES[1])
            until = now + pause
        elif reason in reasons or len(reasons) >= FLAP_REASONS:
            return False
        self._silence = reasons | {reason}, until, pause
        return True

    def _recovered(self) -> None:
        if self._failures.attempts:
            self._failures.reset()
            self._report_pauses.reset()
            self._report_at = 0.0
            if self._reported:
                self._services.failures.recovered(self.partition, self.offset)
            self._reported = False

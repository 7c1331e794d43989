"""The lag of the owned partitions.

Strategy: ends are requested from the brokers now and then, a few at a time, and kept; the lag of any moment is the kept
end less the position of that moment. Those that fetches of idle partitions have just confirmed are not requested. Where
the last request for an end failed, the lag is unknown until one succeeds: a former end would hide that the log grows.
Partitions that failed before are asked last, and those that are not asked in time keep what is known of them, so that a
broker that does not answer hides no other one. Of those without a position yet, only whether the request fails is kept.
Messages behind an open transaction are lag, too, although `read_committed` holds them back: how many these are is kept
beside it.

The lag in seconds is the age of the next message, by its timestamp. Where it has none (before 0.10), or was not fetched
yet, it came after the log was last seen to end before it; what is older than the first look cannot be dated.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, NamedTuple

import structlog

from consumerd.base.errors import ConsumerdError, reason_of
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.member.consumer.owned_partition import OwnedView
from consumerd.member.consumer.running_member import RunningMember
from consumerd.member.offsets.end_times import EndTimes, age_of_next

log = structlog.get_logger(__name__)

#: Ends that are looked up at once: for brokers of 0.8 and later one request to each of them.
_AT_ONCE: Final = 128
#: Seconds for all answers of one look.
_PATIENCE: Final = 10.0


class Lag(NamedTuple):
    """The lag of a partition: bytes of the log (0.7) or messages, and seconds.

    `age`: of the next message, the first that is not handled; 0 without one, None where it is not known.
    `since_handled`: since a message was handled, or the start, while there is lag; else 0. `held_back`: how much of the
    amount is behind an open transaction.
    """

    amount: int
    age: float | None
    since_handled: float
    held_back: int = 0


class _Ends(NamedTuple):
    """The end of a log, and the end of what may be read of it now."""

    log: int
    readable: int


class LagWatch:
    """Knows where the partitions of a member ended at the last `look`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.monotonic()
        self._ends: dict[TopicPartition, _Ends] = {}
        self._end_times: dict[TopicPartition, EndTimes] = {}
        #: The partitions whose end could not be looked up the last time, with the time of the first failure in a row.
        self._failing: dict[TopicPartition, float] = {}

    async def look(self, member: RunningMember[Any]) -> None:
        """Ask the brokers. A failure is logged once, until all requests succeed again."""
        began = self._clock.monotonic()
        before = self._failing
        positions = {view.partition: view.position for view in member.views()}
        wanted = sorted(positions, key=before.__contains__)
        asked: set[TopicPartition] = set()
        limit = asyncio.Semaphore(_AT_ONCE)
        ends: dict[TopicPartition, _Ends] = {}
        controls, committed_only = member.controls, member.settings.fetch.read_committed
        failures: list[ConsumerdError] = []

        def note(partition: TopicPartition, end: int, readable: int) -> None:
            ends[partition] = _Ends(end, readable)
            if (position := positions[partition]) is not None:
                times = self._end_times.setdefault(partition, EndTimes())
                times.note(end, self._clock.monotonic(), position)

        async def ask(partition: TopicPartition) -> None:
            async with limit:
                asked.add(partition)
                try:
                    end = readable = await controls.log_end(partition)
                    if committed_only:
                        readable = (await controls.end_offsets(partition))[partition]
                    note(partition, end, readable)
                except ConsumerdError as error:
                    failures.append(error)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE), asyncio.TaskGroup() as group:
                for partition in wanted:
                    if (known := controls.known_end(partition)) is None:
                        group.create_task(ask(partition))
                    else:
                        note(partition, known, known)
        failed = [each for each in wanted if each not in ends and (each in asked or each in before)]
        self._end_times = {each: times for each, times in self._end_times.items() if each in positions}
        kept = {each: self._ends[each] for each in wanted if each not in asked and each in self._ends}
        self._ends, self._failing = {**kept, **ends}, {each: before.get(each, began) for each in failed}
        if self._failing and not before:
            reason = reason_of(failures[0]) if failures else f"no answer within {_PATIENCE:g} s"
            log.warning("lag_unknown", partitions=len(self._failing), reason=reason)
        elif before and not self._failing:
            log.info("lag_known", partitions=len(ends))

    def failing(self, seconds: float) -> list[TopicPartition]:
        """The partitions of the last look whose end each request has failed to tell for `seconds` and longer."""
        since = self._clock.monotonic() - seconds
        return sorted(partition for partition, began in self._failing.items() if began <= since)

    def of(self, view: OwnedView, handled_at: float | None) -> Lag | None:
        """The lag of an owned partition now; None where its end or its position is not known."""
        ends = self._ends.get(view.partition)
        if ends is None or view.position is None:
            return None
        amount = max(0, ends.log - view.position)
        held_back = min(amount, max(0, ends.log - ends.readable))
        since = self._clock.monotonic() - (self._started if handled_at is None else handled_at)
        return Lag(amount, self._age(view, amount), max(0.0, since) if amount else 0.0, held_back)

    def _age(self, view: OwnedView, amount: int) -> float | None:
        """Seconds since the next message came, by its timestamp, or since the log was seen to end before it."""
        assert view.position is not None
        wall, now = self._clock.wall(), self._clock.monotonic()
        times = self._end_times.get(view.partition) if amount else None
        age = age_of_next(view.next_timestamp, times, view.position, wall=wall, now=now)
        return age if amount or age is not None else 0.0

"""The lag of the owned partitions.

Strategy: ends are requested from the brokers now and then, a few at a time, and kept; the lag of any moment is the kept
end less the position of that moment. Where the last request for an end failed, the lag is unknown until one succeeds: a
former end would hide that the log grows. Partitions that failed before are asked last, and those that are not asked in
time keep what is known of them, so that a broker that does not answer hides no other one. Messages behind an open
transaction are lag, too, although `read_committed` holds them back: how many these are is kept beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from consumerd.errors import ConsumerdError, reason_of

if TYPE_CHECKING:
    from consumerd.consumer.owned_partition import OwnedView
    from consumerd.consumer.running import RunningMember
    from consumerd.partition import TopicPartition
    from consumerd.ports import Clock

log = structlog.get_logger(__name__)

#: Requests for ends under way at once.
_AT_ONCE: Final = 16
#: Seconds for all answers of one look.
_PATIENCE: Final = 10.0


class Lag(NamedTuple):
    """The lag of a partition: bytes of the log (0.7) or messages, and seconds since a message of it was handled.

    `held_back`: how much of the amount is behind an open transaction.
    """

    amount: int
    seconds: float
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
        #: The partitions whose end could not be looked up the last time, with the time of the first failure in a row.
        self._failing: dict[TopicPartition, float] = {}

    async def look(self, member: RunningMember[Any]) -> None:
        """Ask the brokers. A failure is logged once, until all requests succeed again."""
        began = self._clock.monotonic()
        before = self._failing
        wanted = [view.partition for view in member.views() if view.position is not None]
        wanted.sort(key=before.__contains__)
        asked: set[TopicPartition] = set()
        limit = asyncio.Semaphore(_AT_ONCE)
        ends: dict[TopicPartition, _Ends] = {}
        controls, committed_only = member.controls, member.settings.fetch.read_committed
        failures: list[ConsumerdError] = []

        async def ask(partition: TopicPartition) -> None:
            async with limit:
                asked.add(partition)
                try:
                    end = readable = await controls.log_end(partition)
                    if committed_only:
                        readable = (await controls.end_offsets(partition))[partition]
                    ends[partition] = _Ends(end, readable)
                except ConsumerdError as error:
                    failures.append(error)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE), asyncio.TaskGroup() as group:
                for partition in wanted:
                    group.create_task(ask(partition))
        failed = [each for each in wanted if each not in ends and (each in asked or each in before)]
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
        since = self._started if handled_at is None else handled_at
        return Lag(amount, max(0.0, self._clock.monotonic() - since) if amount else 0.0, held_back)

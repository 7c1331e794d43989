"""The lag of the owned partitions.

Strategy: ends are requested from the brokers now and then, a few at a time, and kept; the lag of any moment is the kept
end less the position of that moment. A partition whose broker does not answer in time keeps its last end: an old answer
is a lower bound. Messages behind an open transaction are lag, too, although `read_committed` holds them back: how many
these are is kept beside it.
"""

from __future__ import annotations

import asyncio
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
        self._failing = False

    async def look(self, member: RunningMember[Any]) -> None:
        """Ask the brokers. What fails is logged once, until it goes well again."""
        wanted = [view.partition for view in member.views() if view.position is not None]
        limit = asyncio.Semaphore(_AT_ONCE)
        ends: dict[TopicPartition, _Ends] = {}
        controls, committed_only = member.controls, member.settings.fetch.read_committed
        failures: list[ConsumerdError] = []

        async def ask(partition: TopicPartition) -> None:
            async with limit:
                try:
                    end = readable = await controls.log_end(partition)
                    if committed_only:
                        readable = (await controls.end_offsets(partition))[partition]
                    ends[partition] = _Ends(end, readable)
                except ConsumerdError as error:
                    failures.append(error)

        try:
            async with asyncio.timeout(_PATIENCE), asyncio.TaskGroup() as group:
                for partition in wanted:
                    group.create_task(ask(partition))
        except TimeoutError:
            self._note(len(wanted) - len(ends), "no answer in time")
        else:
            self._note(len(failures), reason_of(failures[0]) if failures else "")
        known = {partition: self._ends[partition] for partition in wanted if partition in self._ends}
        self._ends = {**known, **ends}

    def of(self, view: OwnedView, handled_at: float | None) -> Lag | None:
        """The lag of an owned partition now; None where its end or its position is not known."""
        ends = self._ends.get(view.partition)
        if ends is None or view.position is None:
            return None
        amount = max(0, ends.log - view.position)
        held_back = min(amount, max(0, ends.log - ends.readable))
        since = self._started if handled_at is None else handled_at
        return Lag(amount, max(0.0, self._clock.monotonic() - since) if amount else 0.0, held_back)

    def _note(self, failed: int, reason: str) -> None:
        if failed and not self._failing:
            log.warning("lag_unknown", partitions=failed, reason=reason)
        self._failing = bool(failed)

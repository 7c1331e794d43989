"""The lag of the owned partitions.

Strategy: ends are requested from the brokers now and then, a few at a time, and kept; the lag of any moment is the kept
end less the position of that moment. A partition whose broker does not answer in time keeps its last end: an old answer
is a lower bound.
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
    """The lag of a partition: bytes of the log (0.7) or messages, and seconds since a message of it was handled."""

    amount: int
    seconds: float


class LagWatch:
    """Knows where the partitions of a member ended at the last `look`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.monotonic()
        self._ends: dict[TopicPartition, int] = {}
        self._failing = False

    async def look(self, member: RunningMember[Any]) -> None:
        """Ask the brokers. What fails is logged once, until it goes well again."""
        wanted = [view.partition for view in member.views() if view.position is not None]
        limit = asyncio.Semaphore(_AT_ONCE)
        ends: dict[TopicPartition, int] = {}
        failures: list[ConsumerdError] = []

        async def ask(partition: TopicPartition) -> None:
            async with limit:
                try:
                    ends.update(await member.controls.end_offsets(partition))
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
        end = self._ends.get(view.partition)
        if end is None or view.position is None:
            return None
        amount = max(0, end - view.position)
        since = self._started if handled_at is None else handled_at
        return Lag(amount, max(0.0, self._clock.monotonic() - since) if amount else 0.0)

    def _note(self, failed: int, reason: str) -> None:
        if failed and not self._failing:
            log.warning("lag_unknown", partitions=failed, reason=reason)
        self._failing = bool(failed)

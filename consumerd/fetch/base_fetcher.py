"""What fetchers of both dialects have in common: pausing, backing off, and applying policies.

Strategy: a base class with the state of one partition's fetching; how answers come, and what is in them, is said by the
subclasses (`v07.fetcher`, `v08.fetcher`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import structlog

from consumerd.fetch.backoff import Backoff
from consumerd.fetch.policies import FetchPolicies

if TYPE_CHECKING:
    from consumerd.fetch.budget import Reservation
    from consumerd.fetch.lane import Fetched, Lane
    from consumerd.fetch.policies import Services
    from consumerd.partition import TopicPartition

log = structlog.get_logger(__name__)


class BaseFetcher(ABC):
    """Feeds `lane` from `offset` on; `offset` is the position of the next fetch."""

    def __init__(self, partition: TopicPartition, offset: int, lane: Lane, services: Services) -> None:
        self.partition = partition
        self.offset = offset
        self._lane = lane
        self._services = services
        self._settings = settings = services.settings
        self._size = settings.fetch_bytes
        self._idle = False
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._trouble = Backoff(settings.retry_backoff_min, settings.retry_backoff_max, services.rng)
        self._policies = FetchPolicies(partition, lane, services)
        self._log = log.bind(partition=str(partition))

    @abstractmethod
    async def run(self) -> None:
        """Fetch until cancelled, until the lane is closed, or until a policy ends it."""

    @property
    def paused(self) -> bool:
        """Whether no new fetch is sent."""
        return not self._resumed.is_set()

    def pause(self) -> None:
        """Send no new fetch. The answer to one under way still goes to the lane."""
        self._resumed.clear()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._resumed.set()

    def _keep(self, fetched: Fetched, received: int, reservation: Reservation) -> None:
        """Put in the lane what there is and move on; gives the reservation back where there is nothing."""
        self._policies.require_possible(fetched.start_offset, fetched.next_offset)
        counters = self._services.counters
        counters.received_bytes += received
        if fetched.next_offset > fetched.start_offset:
            reservation.resize(fetched.memory_bytes)
            self._lane.put(fetched, reservation)
            counters.batches += 1
            counters.messages += len(fetched)
        else:
            reservation.release()
        self.offset = fetched.next_offset

    def _go_on_at(self, offset: int | None) -> None:
        """What a policy decided; None is to wait for the log to grow."""
        if offset is None:
            self._idle = True
        else:
            self.offset = offset
            self._size = self._settings.fetch_bytes

    async def _reset(self) -> None:
        if self._trouble.attempts:  # not the first refusal in a row: resetting did not help
            await self._services.clock.sleep(self._trouble.next())
        offset = await self._policies.out_of_range(self.offset)
        if offset == self.offset:
            await self._retreat("fetch_refused", f"offset {offset} is out of range, and the broker returned no other")
        else:
            self._trouble.next()
            self._go_on_at(offset)

    async def _retreat(self, event: str, reason: str) -> None:
        if not self._trouble.attempts:
            self._log.warning(event, offset=self.offset, reason=reason)
        await self._services.clock.sleep(self._trouble.next())

    def _well(self) -> None:
        if self._trouble.attempts:
            self._trouble.reset()
            self._log.info("fetch_recovered", offset=self.offset)

"""Writing the positions of owned partitions to the offset store.

Strategy: group commit (`consumerd.base.rounds`). Commits never overlap, so an older position is never
written over a newer one, and each writes all positions that are due for all callers. Only positions of the present
session are written. The store checks ownership; partitions that it reports as lost are passed on. One that it does not
let us write is reported once, and written again with each later commit, until it is allowed. So is a store that cannot
be reached: the first failure and the end of an outage are logged, not each attempt. The start of a partition
is not written before a fetch of it was answered: we may have no permission to read it, and then none to commit.
Exceptions: a start that the next owner would not find again, and an empty partition of a member that stops at the end,
which has no time for a fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from consumerd.base.errors import BrokerError, ZooKeeperError, reason_of
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.base.rounds import Rounds
from consumerd.member.consumer.fence import Fence
from consumerd.member.consumer.owned_partition import OwnedPartition
from consumerd.member.consumer.stats import ConsumerStats
from consumerd.member.fetch.listener import FetchCounters
from consumerd.member.offsets.errors import OffsetsUnavailableError
from consumerd.member.offsets.metadata import OffsetNotes
from consumerd.member.offsets.store import OffsetStore
from consumerd.net.zk.errors import ConnectionLost, NotConnected, SessionChanged

log = structlog.get_logger(__name__)

#: The errors after which the next commit may succeed.
POSTPONING: Final = (OffsetsUnavailableError, NotConnected, ConnectionLost, SessionChanged)


@dataclass(slots=True)
class _Outage:
    """Commits that failed in a row: the times of the first and the last one, and their number."""

    began: float
    last: float
    attempts: int = 0


class Commits:
    """Commits to `store`. `lost` is called with partitions that are not ours any more."""

    def __init__(
        self,
        store: OffsetStore,
        fence: Fence,
        clock: Clock,
        stats: ConsumerStats,
        lost: Callable[[list[OwnedPartition]], None],
        fetched: FetchCounters,
    ) -> None:
        self._store = store
        self._fence = fence
        self._clock = clock
        self._stats = stats
        self._lost = lost
        self._fetched = fetched
        self._rounds: Rounds[OwnedPartition, None] = Rounds(self._write)
        self._outage: _Outage | None = None

    async def commit(self, owned: Iterable[OwnedPartition]) -> None:
        """Write the due positions of these, along with those of other callers. Raises what the store raises."""
        await self._rounds.take_part(owned)

    async def wait_for(self, owned: Iterable[OwnedPartition]) -> None:
        """Return when no commit that contains any of these is under way."""
        await self._rounds.wait_for(owned)

    async def check(self, owned: Iterable[OwnedPartition]) -> bool:
        """Check whether others have written the offset of any of these: those are due again."""
        by_partition = {each.partition: each for each in owned if each.work is not None}
        written = await self._store.changed(by_partition)
        for partition in written:
            by_partition[partition].committed = None
        return bool(written)

    async def _write(self, owned: list[OwnedPartition]) -> None:
        now = self._clock.monotonic()
        session_id = self._fence.session_id
        due = {
            each.partition: each
            for each in owned
            if each.session_id == session_id
            and each.is_due(now, self._store.keeps_for)
            and (each.moved or each.passing or self._is_readable(each))
        }
        positions: dict[TopicPartition, int] = {
            partition: each.work.position for partition, each in due.items() if each.work is not None
        }
        if not positions:
            return
        notes = {
            partition: OffsetNotes(each.work.log, start=each.begins_at_end and each.committed is None)
            for partition, each in due.items()
            if each.work is not None
        }
        try:
            result = await self._store.commit(positions, session_id=session_id, notes=notes)
        except (ZooKeeperError, BrokerError) as error:
            self._stats.commit_failed(now, self._clock.monotonic(), len(positions), error)
            if isinstance(error, POSTPONING):
                self._postpone(now, len(positions), error)
            raise
        self._resume()
        for partition in result.committed:
            due[partition].committed = positions[partition]
            due[partition].written_at = now
            due[partition].refusal = None
            due[partition].passing = False
        ended = self._clock.monotonic()
        self._stats.committed(now, ended, committed=len(result.committed), lost=len(result.lost))
        if result.refused:
            self._report_refused(now, ended, {due[partition]: error for partition, error in result.refused.items()})
        if result.lost:
            self._lost([due[partition] for partition in sorted(result.lost)])

    def _postpone(self, now: float, partitions: int, error: Exception) -> None:
        if self._outage is None:
            log.warning("commit_postponed", partitions=partitions, reason=reason_of(error))
            self._outage = _Outage(now, now)
        self._outage.last = now
        self._outage.attempts += 1

    def _resume(self) -> None:
        if (outage := self._outage) is not None:
            self._outage = None
            log.info("commit_resumed", attempts=outage.attempts, seconds=round(outage.last - outage.began, 1))

    def _is_readable(self, owned: OwnedPartition) -> bool:
        answered = owned.at_end or owned.partition in self._fetched.answered
        return answered and owned.partition not in self._fetched.denied

    def _report_refused(
        self, began: float, ended: float, refused: Mapping[OwnedPartition, BrokerError | ZooKeeperError]
    ) -> None:
        self._stats.commit_failed(began, ended, len(refused), next(iter(refused.values())))
        for owned, error in refused.items():
            if owned.refusal is None:
                log.warning("commit_refused", partition=str(owned.partition), reason=reason_of(error))
            owned.refusal = error

"""The start offset of an owned partition.

Strategy: the start is the first of these that exists: the sink's own (`Handler.position`), what this process handled
before (a partition that was abandoned and is ours again), the committed offset, the initial policy. A remembered
position is valid only while nobody else has committed: where the store can tell (`OffsetStore.trace`), on any session,
and also if the stored offset is one that we sent and had no reply to; elsewhere only on the same session, while the
store has the same offset as then. Requests to a broker or store that does not answer are repeated for as long as the
caller waits; final errors are raised.

A sink takes the partition over when it returns its position, so each call is fenced like a delivery: a
process that was suspended since its claim would take over partitions that others own by now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from consumerd.client import BrokerRefusedError, UnsupportedApiError
from consumerd.consumer.rounds import Rounds
from consumerd.errors import BrokerError, reason_of
from consumerd.wire import WireError
from consumerd.wire.v07 import EARLIEST, LATEST
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.zk.errors import ConnectionLost, NotConnected

if TYPE_CHECKING:
    from consumerd.consumer.fence import Fence
    from consumerd.consumer.protocols import PartitionPool
    from consumerd.consumer.settings import ConsumerSettings
    from consumerd.consumer.sinks import PartitionedHandler
    from consumerd.offsets import OffsetStore, Trace
    from consumerd.partition import TopicPartition
    from consumerd.ports import Clock

log = structlog.get_logger(__name__)

#: Permanent refusals; the version of a request may come from `commit.version`.
_FINAL: Final = frozenset({ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION})
#: Most different reasons that are logged while one flow's position is not found.
_MOST_REASONS = 20
#: Seconds between attempts to find the position of a partition whose broker or store does not answer.
RETRY_PAUSE = 0.5
#: Attempts to read the end while the position lies beyond it: a new leader learns late how far its log is committed.
_LOOKS: Final = 6


def _is_final(error: Exception) -> bool:
    return isinstance(error, UnsupportedApiError) or (isinstance(error, BrokerRefusedError) and error.code in _FINAL)


class Start(NamedTuple):
    """The start of a flow."""

    offset: int
    #: The committed offset.
    committed: int | None
    #: The end of the log, if it was requested.
    end: int | None
    #: The next owner would not find this offset again: it has to be committed before the first fetch.
    passing: bool = False


class _Former(NamedTuple):
    """The record of an ended flow: its session, the committed offset at its end, and the handled position."""

    session_id: int
    committed: int | None
    position: int
    #: What the store knew of its offset then.
    trace: Trace | None

    def holds(self, session_id: int, committed: int | None, trace: Trace | None) -> bool:
        """Whether nobody else has consumed the partition since, as far as what is committed now can show."""
        if self.trace is not None and trace is not None:
            return self.trace.leads_to(trace)
        return (self.session_id, self.committed) == (session_id, committed)


class StartFinder:
    """Finds starts, and remembers the positions of flows that ended."""

    def __init__(
        self,
        settings: ConsumerSettings,
        pool: PartitionPool,
        store: OffsetStore,
        handler: PartitionedHandler,
        fence: Fence,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._store = store
        self._pool = pool
        self._handler = handler
        self._fence = fence
        self._clock = clock
        self._former: dict[TopicPartition, _Former] = {}
        #: Committed offsets are read together, for all partitions that begin together.
        self._loads: Rounds[TopicPartition, dict[TopicPartition, int]] = Rounds(self._load)

    async def _load(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._store.load(partitions)

    def remember(self, partition: TopicPartition, session_id: int, committed: int | None, position: int) -> None:
        """Remember that a flow on `session_id` ended at `position`, when the store held `committed`."""
        self._former[partition] = _Former(session_id, committed, position, self._store.trace(partition))

    async def find(self, partition: TopicPartition, session_id: int) -> Start:
        """Return the start of a flow on `session_id`; retry until it is found.

        Raises the errors of the handler and of a closed store, and the permanent ones of brokers.
        """
        logged: set[str] = set()
        while True:
            try:
                offset, committed, passing = await self._position(partition, session_id)
                end = await self._end(partition, offset) if self._settings.stop_at_end else None
            except (BrokerError, WireError, NotConnected, ConnectionLost) as error:
                if _is_final(error):
                    raise
                reason = reason_of(error)
                if reason not in logged and len(logged) < _MOST_REASONS:  # each once: this may take hours
                    log.warning("position_lookup_failed", partition=str(partition), reason=reason)
                logged.add(reason)
                await self._clock.sleep(RETRY_PAUSE)
            else:
                return Start(offset, committed, end, passing)

    async def _position(self, partition: TopicPartition, session_id: int) -> tuple[int, int | None, bool]:
        """Return the start, the committed offset, and whether a later look-up would find another start."""
        await self._fence.wait(session_id)
        own = await self._handler.position(partition)
        committed = (await self._loads.take_part([partition])).get(partition)
        if own is not None:
            return own, committed, False
        former = self._former.get(partition)
        if former is not None and former.holds(session_id, committed, self._store.trace(partition)):
            return former.position, committed, False
        if committed is not None:
            return committed, committed, False
        if self._settings.initial == "earliest":
            return await self._listed(partition, EARLIEST), None, False
        return await self._listed(partition, LATEST), None, True

    async def _end(self, partition: TopicPartition, offset: int) -> int:
        """Return the end of the log; one before `offset` only if it stays there, as that of a recreated topic does."""
        end = await self._listed(partition, LATEST)
        for _ in range(_LOOKS):
            if offset <= end:
                break
            await self._clock.sleep(RETRY_PAUSE)
            end = await self._listed(partition, LATEST)
        return end

    async def _listed(self, partition: TopicPartition, time: int) -> int:
        offsets = await self._pool.list_offsets(partition, time)
        if not offsets:  # Jafka's answer for a topic that it does not know
            raise BrokerError(f"broker {partition.broker} returned no offset of {partition} yet.")
        return offsets[0]

"""The start offset of an owned partition.

Strategy: the start is the first of these that exists: the sink's own (`Handler.position`), what this process handled
before (a partition that was abandoned and is ours again), the committed offset, the initial policy. A partition that is
new to the group begins at its beginning, whatever that policy says. A remembered position is valid only while nobody
else has committed: where the store can tell (`OffsetStore.trace`), on any session, and also if the stored offset is one
that we sent and had no reply to; elsewhere only on the same session, while the store has the same offset as then.
Requests to a broker or store that does not answer are repeated for as long as the caller waits; final errors are
raised. An offset that may not be read, or is not a number, holds back its partition alone, until that is mended: the
next owner would not fare better. A member that stops at the end has no time for that.

A sink's position is of the log that the sink stored with it (`SinkPosition`), or else of that of the committed offset;
the fetcher compares it with the present one.

A sink takes the partition over when it returns its position, so each call is fenced like a delivery: a
process that was suspended since its claim would take over partitions that others own by now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple, TypeVar

import structlog

from consumerd.base.errors import BrokerError, ConsumerdError, reason_of
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.base.ports import Clock
from consumerd.base.rounds import Rounds
from consumerd.base.settings.moments import start_of
from consumerd.handlers import SinkPosition
from consumerd.member.consumer.fence import Fence
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.consumer.sinks import PartitionedHandler
from consumerd.member.fetch.policies import PartitionFailures
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.offsets.store import OffsetStore, Trace
from consumerd.net.client.errors import BrokerRefusedError
from consumerd.net.zk.errors import ConnectionLost, NoAuth, NotConnected
from consumerd.wire import WireError
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.v07 import EARLIEST, LATEST
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.errors import UnsupportedApiError

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

#: Permanent refusals; the version of a request may come from `commit.version`.
_FINAL: Final = frozenset({ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION})
#: Most different reasons that are logged while one flow's position is not found.
_MOST_REASONS = 20
#: Seconds between attempts to find the position of a partition whose broker or store does not answer.
RETRY_PAUSE = 0.5
#: The same while a permission is missing, at most: the pauses double.
REFUSED_PAUSE: Final = 10.0
#: Attempts to read the end while the position lies beyond it: a new leader learns late how far its log is committed.
_LOOKS: Final = 6


def _is_final(error: Exception) -> bool:
    return isinstance(error, UnsupportedApiError) or (isinstance(error, BrokerRefusedError) and error.code in _FINAL)


def _is_denied(error: Exception) -> bool:
    return isinstance(error, BrokerRefusedError) and error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


#: The errors of one offset in ZooKeeper: its node's ACL, or what it contains.
_OF_ONE: Final = (NoAuth, RegistryError)


class Start(NamedTuple):
    """The start of a flow."""

    offset: int
    #: The committed offset.
    committed: int | None = None
    #: The end of the log, if it was requested.
    end: int | None = None
    #: The next owner would not find this offset again: it has to be committed before the first fetch.
    passing: bool = False
    #: The log that the offset is of; the fetcher compares it with the present one.
    log: LogId = UNKNOWN_LOG
    #: It is where the group begins by a policy that another member would not repeat: the end of the log, or a time.
    at_end: bool = False


class _Former(NamedTuple):
    """The record of an ended flow: its session, the committed offset at its end, and the handled position."""

    session_id: int
    committed: int | None
    position: int
    log: LogId
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
        pool: FetchPool,
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
        self._failures = PartitionFailures()
        #: By partition, why its start is not found yet.
        self.waiting: dict[TopicPartition, str] = {}
        #: By topic, the partitions that it had when the member saw it first.
        self._existing: dict[str, frozenset[TopicPartition]] = {}
        #: Topics that were gone at some time since.
        self._gone: set[str] = set()
        self._former: dict[TopicPartition, _Former] = {}
        #: Committed offsets are read together, for all partitions that begin together.
        self._loads: Rounds[TopicPartition, dict[TopicPartition, int | ConsumerdError]] = Rounds(self._load)

    async def _load(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int | ConsumerdError]:
        """Load the committed offsets; where one cannot be read, its error. It concerns its topic alone, or itself."""
        found: dict[TopicPartition, int | ConsumerdError] = {}
        try:
            found.update(await self._store.load(partitions))
        except _OF_ONE as error:
            if len(partitions) == 1:
                return {partitions[0]: error}
            middle = len(partitions) // 2  # so that one of a thousand is found by twenty loads
            return await self._load(partitions[:middle]) | await self._load(partitions[middle:])
        except BrokerRefusedError as error:
            if not _is_denied(error):
                raise
            by_topic: defaultdict[str, list[TopicPartition]] = defaultdict(list)
            for partition in partitions:
                by_topic[partition.topic].append(partition)
            if len(by_topic) == 1:
                return dict.fromkeys(partitions, error)
            for each in by_topic.values():
                found.update(await self._load(each))
        return found

    def remember(
        self,
        partition: TopicPartition,
        session_id: int,
        committed: int | None,
        position: int,
        log_id: LogId = UNKNOWN_LOG,
    ) -> None:
        """Remember that a flow on `session_id` ended at `position` of a log, when the store held `committed`."""
        self._former[partition] = _Former(session_id, committed, position, log_id, self._store.trace(partition))

    async def find(self, partition: TopicPartition, session_id: int) -> Start:
        """Return the start of a flow on `session_id`; retry until it is found.

        Raises the errors of the handler and of a closed store, and the permanent ones of brokers.
        """

        async def attempt() -> Start:
            found = await self._position(partition, session_id)
            end = await self._end(partition, found.offset) if self._settings.stop_at_end else None
            return found._replace(end=end)

        return await self._until_answered(partition, attempt)

    async def committed(self, partition: TopicPartition) -> int | None:
        """Return the committed offset; retry until it is known. Raises as `find`."""
        return await self._until_answered(partition, lambda: self._committed(partition))

    async def _committed(self, partition: TopicPartition) -> int | None:
        committed = (await self._loads.take_part([partition])).get(partition)
        if isinstance(committed, ConsumerdError):
            raise committed
        return committed

    async def _until_answered(self, partition: TopicPartition, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of `attempt`, which is made again after errors that may pass."""
        logged: set[str] = set()
        pause = RETRY_PAUSE
        try:
            while True:
                try:
                    return await attempt()
                except (BrokerError, WireError, NotConnected, ConnectionLost, *_OF_ONE) as error:
                    lasts = isinstance(error, _OF_ONE)
                    if _is_final(error) or (lasts and self._settings.stop_at_end):
                        raise
                    self.waiting[partition] = reason = reason_of(error)
                    if reason not in logged and len(logged) < _MOST_REASONS:  # each once: this may take hours
                        self._failures.add(partition, None, reason)
                    logged.add(reason)
                    await self._clock.sleep(pause)
                    pause = min(2 * pause, REFUSED_PAUSE) if lasts or _is_denied(error) else RETRY_PAUSE
        finally:
            self.waiting.pop(partition, None)

    async def _position(self, partition: TopicPartition, session_id: int) -> Start:
        """Return the start, without the end of the log."""
        await self._fence.wait(session_id)
        own = await self._handler.position(partition)
        committed = await self._committed(partition)
        if own is not None:
            return await self._position_of_sink(partition, own, committed)
        former = self._former.get(partition)
        if former is not None and former.holds(session_id, committed, self._store.trace(partition)):
            return Start(former.position, committed, log=former.log)
        if committed is not None:
            return Start(committed, committed, log=self._store.log(partition))
        fetch = self._settings.fetch
        initial = (fetch.initial_by_topic or {}).get(partition.topic, fetch.initial)
        if initial == "earliest":
            return Start(await self._listed(partition, EARLIEST))
        # All are committed: another member may not know that the partition is new, or looks later.
        if await self._is_new(partition):
            return Start(await self._listed(partition, EARLIEST), passing=True)
        if initial == "latest":
            return Start(await self._listed(partition, LATEST), passing=True, at_end=True)
        return Start(
            await self._pool.offset_at(partition, start_of(initial, self._clock.wall())), passing=True, at_end=True
        )

    async def _position_of_sink(self, partition: TopicPartition, own: int, committed: int | None) -> Start:
        """Continue where the sink says, unless that is of a topic that was deleted while this process ran.

        Brokers drop committed offsets with their topic. Where nothing else tells the two topics apart, the sink gets
        the new one from its beginning, and has to say that it does not know it: nothing is passed over.
        """
        log_id = self._log_of(partition, own, committed)
        if committed is None and log_id.topic_id is None and partition.topic in self._gone:
            log.warning("sink_position_of_former_topic", partition=str(partition), position=int(own), start="earliest")
            return Start(await self._listed(partition, EARLIEST))
        return Start(int(own), committed, log=log_id)

    def _log_of(self, partition: TopicPartition, own: int, committed: int | None) -> LogId:
        """The log of a sink's own position: what the sink says, else what is known of the committed offset's.

        Commits come after what the sink stores, so they are of its log, or of a former one; but the epoch of another
        offset than its own says nothing of where the log parts.
        """
        reported = own.log if isinstance(own, SinkPosition) else UNKNOWN_LOG
        if reported.topic_id is not None or committed is None:
            return reported
        known = self._store.log(partition)
        if own == committed and reported.leader_epoch is None:
            return known
        return LogId(known.topic_id, reported.leader_epoch, known.zxid)

    def exist(self, partitions: Iterable[TopicPartition]) -> None:
        """Note the partitions that there are; those of a topic that were there the first time are not new later.

        Of a topic that is gone none is left: it is another one when it comes back.
        """
        by_topic: defaultdict[str, set[TopicPartition]] = defaultdict(set)
        for partition in partitions:
            by_topic[partition.topic].add(partition)
        for topic in self._existing.keys() - by_topic.keys():
            self._existing[topic] = frozenset()
            self._gone.add(topic)
        for topic, found in by_topic.items():
            self._existing.setdefault(topic, frozenset(found))

    async def _is_new(self, partition: TopicPartition) -> bool:
        """Whether the partition came after the group had begun with its topic: then it is read from its beginning."""
        existing = self._existing.get(partition.topic)
        new = (existing is not None and partition not in existing) or await self._store.is_new(partition)
        if new:
            log.info("new_partition", partition=str(partition), start="earliest")
        return new

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

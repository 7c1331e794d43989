"""Fetching from brokers of 0.8 and later: each partition from its leader or a follower, over shared connections.

Strategy: leaders change, so the leader is looked up before every request, in the client's metadata, which a broker's
NOT_LEADER error marks as stale and the next look-up refreshes, once for all partitions. Brokers wait for new messages
themselves, and responses hold many partitions, so requests are left to one `BrokerSource` per broker. It lives as long
as the pool: leaders come back.

With `rack` a leader may name a follower to read from (`read_replica`), which any error of it ends: only the leader's
answers have consequences for the position.

A position is compared with the leader's log (`fetch.log_changes`) before the first fetch from a leader, when leader,
epoch or the topic's identity changed, and after an error that may mean so. The FETCH names the log of the
position, not the one that the metadata name by now: brokers that know topic ids and epochs refuse what is of another
log. The others cannot, so a topic that is created again there is noticed by its node in ZooKeeper, if there is one.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

import structlog

from consumerd.base.budget import Reservation
from consumerd.base.errors import BrokerError, reason_of
from consumerd.base.partition import LogId, TopicPartition
from consumerd.base.ports import Clock
from consumerd.base.rounds import Rounds
from consumerd.member.fetch.fetcher import PartitionResponse, Put, made_response
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.listener import FetchListener
from consumerd.member.fetch.log_changes import LogChange, find_change
from consumerd.member.fetch.policies import FetchServices
from consumerd.member.fetch.response import FetchOutcome
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v08.broker_source import BrokerSource
from consumerd.member.fetch.v08.exchange import UNKNOWN, Exchange, PartitionRequest
from consumerd.member.fetch.v08.read_replica import ReadReplica
from consumerd.net.client.channel import Channel
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.epochs import EpochEnd, epoch_ends
from consumerd.net.client.errors import topic_error
from consumerd.net.client.fetching import FetchedPartition
from consumerd.net.client.offsets import ListedOffsets, list_offsets
from consumerd.wire import WireError
from consumerd.wire.v07 import EARLIEST, LATEST
from consumerd.wire.v08.error_codes import ErrorCode, error_info
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.fetch_session import Place, made_fetch
from consumerd.wire.v08.records import RecordSet, decode_records
from consumerd.wire.v08.schema import NO_UUID

log = structlog.get_logger(__name__)

#: A broker's answer for one partition.
_Part = TypeVar("_Part", "EpochEnd", "ListedOffsets")


class _Leadership(NamedTuple):
    """The leader of a partition, its epoch (-1 for unknown), and the id of the topic that it leads it of."""

    source: BrokerSource
    epoch: int
    topic_id: bytes | None


#: One of its fields, without a call of Python code.
_made_leadership: Final = functools.partial(tuple.__new__, _Leadership)


class TopicZxids(Protocol):
    """The topics' nodes in ZooKeeper: when each was created. See `consumerd.net.cluster.topic_nodes.TopicNodes`."""

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with a topic whose node may be another one than before."""
        ...

    async def zxid(self, topic: str) -> int:
        """Return the transaction that created the topic's node. Raises BrokerError while that cannot be read."""
        ...

    def refresh(self, topic: str) -> None:
        """Read the node again at the next call."""
        ...


class V08Source:
    """One partition at its leader; see `PartitionSource`, and `Poller`."""

    __slots__ = (
        "_at_end", "_brokers", "_compared", "_lane", "_partition", "_passed_over", "_polled", "_put", "_replica",
        "_settings", "_sound", "_taken", "idle",
    )  # fmt: skip
    identifies = True

    def __init__(self, partition: TopicPartition, lane: Lane, brokers: V08Brokers) -> None:
        self.idle = False
        self._partition = partition
        self._lane = lane
        self._brokers = brokers
        self._settings = brokers.services.settings
        #: The last response was empty although there was something to read.
        self._passed_over = False
        #: Whether the last response had the end of the log in it, or before it.
        self._at_end = False
        #: The state of leader and topic in which the position was compared.
        self._compared: _Leadership | None = None
        #: The request that is polled, and where; what puts its messages in the lane; and the answer whose messages are.
        self._polled: tuple[BrokerSource, PartitionRequest] | None = None
        self._put: Put
        self._taken: PartitionResponse | None = None
        #: Whether the last response was without an error: then an empty one says nothing new.
        self._sound = False
        #: Where it is read, once a leader has named a follower.
        self._replica: ReadReplica | None = None

    def is_doubtful(self) -> bool:
        """Whether leader or topic may be others than when the position was compared."""
        return self._compared is None

    def doubt(self) -> None:
        """Compare before the next request, which replaces one that is polled."""
        self._compared = None
        if self._replica is not None and not self._replica.paused(self._now()):
            self._replica.forget()
        if self._polled is not None:
            self._polled[1].settle(None)

    def _now(self) -> float:
        return self._brokers.services.clock.monotonic()

    def stays(self) -> bool:
        """Whether leader and topic are known to be those of the last comparison."""
        return (
            self._compared is not None
            and (self._replica is None or self._replica.stays(self._now()))
            and self._brokers.known_leadership(self._partition) == self._compared
        )

    async def ask(self, offset: int, size: int, log: LogId, put: Put) -> PartitionResponse | None:
        """Fetch with memory reserved for it, or wait for new messages, whose memory is counted when they are here.

        None if the leader or the topic is another one than when the position was compared, if another replica is to be
        asked, and because of a quota of the broker, which is waited out in the next call.
        """
        brokers = self._brokers
        leadership = brokers.known_leadership(self._partition) or await brokers.leadership(self._partition)
        if leadership != self._compared:
            self.doubt()
            return None
        leadership = self._compared  # the equal one that is kept anyway
        source = leadership.source if self._replica is None else self._reader(leadership.source)
        if source.silent_until > 0:
            await source.wait_out_quota()
        if self.idle:
            # Less than `min_bytes` of one partition would never be enough, however much there is of it.
            size = max(self._settings.poll_bytes, self._settings.min_bytes)
        request = self._request(offset, size, log, leadership.epoch)
        reservation: Reservation | None = None
        try:
            if self.idle:
                request.poller, request.patient = self, self._sound
                self._polled, self._put = (source, request), put
                try:
                    fetched = await source.poll(request)
                finally:
                    self._polled = None
                    done, self._taken = self._taken, None
                if done is not None:
                    return done
                if fetched is None:
                    return None
                reservation = self._lane.budget.charge(len(fetched.data))
            else:
                reservation = await self._lane.budget.reserve(size)
                fetched = await source.fetch(request)
        except BaseException as error:
            if reservation is not None:
                reservation.release()
            if not isinstance(error, BrokerError | WireError) or source.node_id == leadership.source.node_id:
                raise
            self._leave_follower(source.node_id, reason_of(error))
            return None
        try:
            elsewhere = fetched is None or self._redirected(leadership.source, source, fetched)
        except BaseException:
            reservation.release()
            raise
        if fetched is None or elsewhere:
            reservation.release()
            return None
        return _response(source, fetched, size, reservation)

    def take(self, part: FetchedPartition) -> bool:
        """Put what is usual in the lane, without a turn of the loop; not what may have to wait, or is an error."""
        error, data, readable_end, aborted, diverged, preferred = part
        lane, leadership = self._lane, self._compared
        if error or diverged or not data or lane.closed or leadership is None or self._taken is not None:
            return False
        assert self._polled is not None  # the answer is to its request
        source, request = self._polled
        usual = source is leadership.source  # it is the leader
        if not (usual and preferred == UNKNOWN) and self._redirected(leadership.source, source, part):
            return False
        if lane.budget.overdrawn:
            return False
        fetch, node_id = request.fetch, source.node_id
        if usual:
            fetched = decode_records(data, fetch.offset, limits=self._settings.limits, aborted=aborted)
        else:
            fetched = self._decoded(node_id, data, aborted, fetch.offset)
        reservation = lane.budget.charge(fetched.memory_bytes)
        response = made_response(
            (node_id, 0, data, fetch.max_bytes, reservation, readable_end, aborted, False, 0, fetched)
        )
        try:
            request.patient = self._put(response, fetched)
        except BaseException:
            reservation.release()
            raise
        self._taken = response
        return True

    def go_on(self, request: PartitionRequest) -> bool:
        """Ask for what follows the answer that was taken, if all is as usual; return whether that is so."""
        response = self._taken
        if response is None or not (request.patient and self._lane.has_room):
            return False
        if self._compared is None or self._replica is not None:
            return False
        fetched = response.fetched
        assert fetched is not None  # it was taken
        self._taken = None
        self.classified(FetchOutcome.PROGRESS, response, fetched.next_offset)
        self._brokers.services.counters.answered.add(self._partition)
        epoch = fetched.log.leader_epoch
        topic, number, _, max_bytes, leader_epoch, topic_id, _ = request.fetch
        last_epoch = UNKNOWN if epoch is None else epoch
        request.fetch = made_fetch((topic, number, fetched.next_offset, max_bytes, leader_epoch, topic_id, last_epoch))
        return True

    def _reader(self, leader: BrokerSource) -> BrokerSource:
        """Return where to read: the leader, or the follower that it named unless that is gone, or silent by a quota."""
        if self._replica is None:
            return leader
        now, brokers = self._now(), self._brokers
        if (follower := self._replica.follower(now)) is not None:
            if (reader := brokers.follower(follower)) is None:
                self._leave_follower(follower, "the broker is not part of the cluster now")
                brokers.refresh_leader(self._partition)
            elif reader.silent_until <= now:
                return reader
            else:
                self._replica.pause(reader.silent_until)
        return brokers.without_rack(leader.node_id) if self._replica.paused(now) else leader

    def _redirected(self, leader: BrokerSource, source: BrokerSource, fetched: FetchedPartition) -> bool:
        """Whether another replica is to be asked in place of the one that answered. Raises BrokerError.

        The leader may name a follower. An error of a follower, or another log than ours, is for the leader to confirm:
        it may lag behind, or have deleted what the leader still has.
        """
        if source.node_id == leader.node_id:
            if fetched.error or fetched.preferred in (UNKNOWN, source.node_id):
                return False
            if self._replica is None:
                self._replica = ReadReplica(self._brokers.services.rng)
            now = self._now()
            if self._replica.paused(now):  # it does so although it was not asked by rack
                raise BrokerError(
                    f"broker {source.node_id}, the leader of {self._partition}, names broker {fetched.preferred} to "
                    "read from, which failed"
                )
            self._replica.named(fetched.preferred, now + self._brokers.lease)
            return not fetched.data
        assert self._replica is not None  # it named the follower
        if not fetched.error and not fetched.diverged:
            self._replica.answered()
            return False
        self._leave_follower(
            source.node_id, "its log is another one" if fetched.diverged else str(error_info(fetched.error))
        )
        if error_info(fetched.error).refresh:
            self._brokers.refresh_leader(self._partition)
        return True

    def _leave_follower(self, node_id: int, reason: str) -> None:
        """Read from the leader for some time."""
        assert self._replica is not None  # it named the follower
        if not self._replica.failing:
            log.info("follower_dropped", partition=str(self._partition), broker=node_id, reason=reason)
        self._replica.failed(self._now())

    def _request(self, offset: int, size: int, log: LogId, epoch: int) -> PartitionRequest:
        topic_id, last_epoch = log.topic_id or NO_UUID, UNKNOWN if log.leader_epoch is None else log.leader_epoch
        topic, number = self._partition.topic, self._partition.partition
        fetch = made_fetch((topic, number, offset, size, epoch, topic_id, last_epoch))
        brokers = self._brokers
        if brokers.loop is None:
            brokers.loop = asyncio.get_running_loop()
        return PartitionRequest(fetch, brokers.loop.create_future())

    @property
    def known_end(self) -> int | None:
        """The end of the log, as a poll has lately confirmed it; None where that has to be asked for."""
        if self._polled is None or not self._at_end or self._settings.read_committed:
            return None
        source, request = self._polled
        if self._compared is None or source.node_id != self._compared.source.node_id:
            return None  # a follower may lag behind
        return request.fetch.offset if source.confirms(request) else None

    async def compare(self, offset: int, log: LogId) -> tuple[LogId, LogChange | None]:
        """Compare the topic's identity, and the end of the position's leader epoch in the leader's log."""
        brokers, partition = self._brokers, self._partition
        leadership = await brokers.leadership(partition)
        now = LogId(leadership.topic_id, None, await brokers.created(partition.topic))
        end, epoch = None, leadership.epoch
        if log.leader_epoch is not None and not log.replaced_by(now):
            end = await brokers.epoch_end(partition, epoch, log.leader_epoch)
            if end is not None and epoch < 0 and end.end_offset < offset:
                epoch = await self._reached_epoch(log.leader_epoch)
        self._compared = leadership
        return find_change(offset, log, now, epoch, end)

    async def _reached_epoch(self, epoch: int) -> int:
        """Return `epoch + 1` if the log has an epoch after `epoch`, else `epoch`: metadata before 2.1 name none."""
        after = await self._brokers.epoch_end(self._partition, -1, epoch + 1)
        return epoch + (after is not None and after.end_offset >= 0)

    async def decode(self, response: PartitionResponse, offset: int) -> RecordSet:
        """Decode in one step."""
        return self._decoded(response.broker, response.data, response.aborted, offset)

    def _decoded(
        self, broker: int, data: bytes | memoryview, aborted: Sequence[tuple[int, int]], offset: int
    ) -> RecordSet:
        elsewhere = self._is_follower(broker)
        if elsewhere:
            self._brokers.services.counters.follower_bytes += len(data)
        try:
            return decode_records(data, offset, limits=self._settings.limits, aborted=aborted)
        except WireError as error:
            if elsewhere:
                self._leave_follower(broker, reason_of(error))
            raise

    def _is_follower(self, broker: int) -> bool:
        return self._compared is not None and broker != self._compared.source.node_id

    def classified(self, outcome: FetchOutcome, response: PartitionResponse, offset: int) -> None:
        """Wait at the end of the log. If the response was full of other partitions, ask again at once, one time."""
        self._brokers.services.counters.denied.discard(self._partition)
        if outcome in (FetchOutcome.CORRUPT, FetchOutcome.OVERSIZE) and self._is_follower(response.broker):
            self._leave_follower(response.broker, f"its response is {outcome.value}")  # the leader's may be sound
            self.doubt()
        self._sound = True
        self._at_end = 0 <= response.readable_end <= offset
        if outcome is FetchOutcome.EMPTY:
            self.idle = self._passed_over or response.readable_end <= offset
            self._passed_over = not self.idle
        elif outcome is FetchOutcome.PROGRESS:
            self.idle, self._passed_over = 0 <= response.readable_end <= offset, False
        elif outcome is FetchOutcome.CUT:
            self.idle = False

    def refusal(self, error: int) -> str | None:
        """Return the reason in words for a response with an error; None for an offset out of range."""
        self._sound = False
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        if error_info(error).refresh:
            self.doubt()
            self._brokers.refresh_leader(self._partition)
        if error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self._brokers.services.counters.denied.add(self._partition)
        # Without the partition: all that are refused for one reason are one line in the log.
        return str(topic_error(error, "a fetch was refused", self._partition.topic, "Read"))

    def failed(self, error: BrokerError | WireError) -> bool:
        """Back off, look for another leader, and compare: brokers before 2.1 name no epoch that shows an election."""
        self._sound = False
        self.doubt()
        self._brokers.refresh_leader(self._partition)
        return True

    def pause(self) -> None:
        """Wait for the response under way only, if the partition is polled."""
        if self._polled is not None:
            source, request = self._polled
            request.patient = False
            source.hurry(request)

    def resume(self) -> None:
        """Do nothing: the fetcher asks again."""


def _response(
    source: BrokerSource, fetched: FetchedPartition, asked: int, reservation: Reservation
) -> PartitionResponse:
    error, data, readable_end, aborted, diverged, _ = fetched
    return PartitionResponse(source.node_id, error, data, asked, reservation, readable_end, aborted, diverged)


#: What a request asks of each partition.
_Asked = dict[Place, tuple[int, ...]]


class V08Brokers:
    """The brokers of a cluster of 0.8 or later; see `FetchBrokers`. `client` stays the caller's."""

    def __init__(
        self,
        client: ClusterClient,
        settings: FetchSettings,
        clock: Clock,
        rng: Random,
        listener: FetchListener,
        topics: TopicZxids | None = None,
    ) -> None:
        self.services = FetchServices(settings, clock, rng, listener, self.list_offsets)
        self._client = client
        self._topics = topics
        self._fetched: dict[TopicPartition, V08Source] = {}
        if topics is not None:
            topics.subscribe(self._doubt)
        #: By broker id: those that send our rack, if there is one, and those without it, where a follower failed.
        self._sources: dict[int, BrokerSource] = {}
        self._rackless: dict[int, BrokerSource] = {}
        #: Requests to one broker of one kind, while there are any.
        self._lookups: WeakValueDictionary[tuple[int, Hashable], Rounds[Any, Any]] = WeakValueDictionary()
        self._tasks: asyncio.TaskGroup | None = None
        #: That of all requests, once there was one. To ask for it is a system call in Python 3.11.
        self.loop: asyncio.AbstractEventLoop | None = None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Run the sources of brokers in `tasks`."""
        self._tasks = tasks

    def source(self, partition: TopicPartition, lane: Lane) -> V08Source:
        """Return a new source for one fetcher."""
        source = self._fetched[partition] = V08Source(partition, lane, self)
        return source

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        """Connect to the leaders of partitions whose positions are still looked for; see `FetchBrokers`."""
        places = sorted({(partition.topic, partition.partition) for partition in partitions})
        if places and self._tasks is not None:
            self._tasks.create_task(self._connect(self._tasks, places), name="connect to leaders")

    async def _connect(self, tasks: asyncio.TaskGroup, places: Sequence[Place]) -> None:
        with suppress(BrokerError, WireError):  # the fetches meet the same, and report it
            metadata = await self._client.topics(sorted({topic for topic, _ in places}))
            leaders = {leader.id for place in places if (leader := metadata.leader(*place)) is not None}
            for each in sorted(leaders):
                source = self._source(self._sources, each, self._client.settings.rack)
                tasks.create_task(source.open(), name=f"connect to {each}")

    def release(self, partition: TopicPartition) -> tuple[()]:
        """Return no tasks: brokers stay connected."""
        self._fetched.pop(partition, None)
        self.services.counters.denied.discard(partition)
        return ()

    def _doubt(self, topic: str) -> None:
        """A topic's node changed, or may have changed."""
        for partition, source in self._fetched.items():
            if partition.topic == topic:
                source.doubt()

    async def leadership(self, partition: TopicPartition) -> _Leadership:
        """Return the source of the partition's leader, its epoch, and the topic's id. Raises BrokerError."""
        node = await self._client.leader(partition.topic, partition.partition)
        self._source(self._sources, node.id, self._client.settings.rack)
        return self._leadership_of(node.id, partition)

    def _source(self, sources: dict[int, BrokerSource], node_id: int, rack: str) -> BrokerSource:
        if (source := sources.get(node_id)) is None:
            assert self._tasks is not None  # fetchers run
            services = self.services
            exchange = Exchange(node_id, self._client, services.settings, services.counters, services.clock, rack)
            source = sources[node_id] = BrokerSource(exchange)
            self._tasks.create_task(source.run(), name=f"source {node_id}")
        return source

    @property
    def lease(self) -> float:
        """Seconds for which a follower is read from before the leader is asked again."""
        return self._client.settings.metadata_max_age

    def follower(self, node_id: int) -> BrokerSource | None:
        """Return the source of a follower; None if the metadata have no such broker."""
        alive = node_id in self._client.metadata.nodes
        return self._source(self._sources, node_id, self._client.settings.rack) if alive else None

    def without_rack(self, node_id: int) -> BrokerSource:
        """Return the source of a leader that returns the messages itself."""
        rack = self._client.settings.rack
        return self._source(self._rackless if rack else self._sources, node_id, "")

    def known_leadership(self, partition: TopicPartition) -> _Leadership | None:
        """Return the same as the metadata say it; None where they are old, or name no leader that was asked before."""
        client, metadata = self._client, self._client.metadata
        if not client.is_fresh(partition.topic):
            return None
        # As `ClusterMetadata.leader` and `_leadership_of` have it, without a call of each for each request.
        topic = metadata.topics[partition.topic]
        known = topic.partitions.get(partition.partition)
        if known is None or known.leader is None or known.leader not in metadata.nodes:
            return None
        if (source := self._sources.get(known.leader)) is None:
            return None
        return _made_leadership((source, known.leader_epoch, None if topic.id == NO_UUID else topic.id))

    def _leadership_of(self, node_id: int, partition: TopicPartition) -> _Leadership:
        topic = self._client.metadata.topics[partition.topic]
        topic_id = None if topic.id == NO_UUID else topic.id
        epoch = topic.partitions[partition.partition].leader_epoch
        return _made_leadership((self._sources[node_id], epoch, topic_id))

    async def created(self, topic: str) -> int | None:
        """Return the zxid at which the topic's node in ZooKeeper was created; None without ZooKeeper.

        Raises BrokerError while that cannot be read, and while there is no node.
        """
        return None if self._topics is None else await self._topics.zxid(topic)

    async def epoch_end(self, partition: TopicPartition, current: int, epoch: int) -> EpochEnd | None:
        """Ask the leader, whose epoch is `current`, where `epoch` ends in its log. None if the broker never says.

        One attempt. Brokers before 0.11 have no epochs, and those before 2.3 tell them to other brokers alone where
        there are ACLs. Raises BrokerError, FrameError.
        """

        def ask(channel: Channel, asked: _Asked) -> Awaitable[Mapping[Place, EpochEnd]]:
            return epoch_ends(channel, [(*place, known, wanted) for place, (known, wanted) in asked.items()])

        try:
            node_id, end = await self._look_up(partition, "epochs", (current, epoch), ask)
        except UnsupportedApiError:
            return None
        if end is not None and end.withheld:
            return None
        return self._answered(end, f"broker {node_id} returned no end of epoch {epoch} of {partition}", partition)

    def _answered(self, part: _Part | None, failure: str, partition: TopicPartition) -> _Part:
        """Return `part`, a leader's answer for the partition. Raises BrokerError if it is missing or an error."""
        if part is None:
            raise BrokerError(f"{failure}: the partition is missing from its answer")
        if error := topic_error(part.error, failure, partition.topic):
            if error.info.refresh:
                self.refresh_leader(partition)
            raise error
        return part

    def refresh_leader(self, partition: TopicPartition) -> None:
        """Look leader and topic up again: the broker does not lead the partition, or cannot be reached."""
        self._client.stale([partition.topic])
        if self._topics is not None:
            self._topics.refresh(partition.topic)

    async def list_offsets(self, partition: TopicPartition, time: int, max_number: int = 1) -> tuple[int, ...]:
        """Ask the leader for offsets: `time` is EARLIEST, LATEST or milliseconds since the epoch.

        One attempt. Since 0.10.1 at most one offset, that of the first message at `time` or after; before, up to
        `max_number` starts of segments, newest first. Empty where there is none. Raises BrokerError, FrameError.
        """
        committed = self.services.settings.read_committed
        return (await self._listed(partition, time, max_number, read_committed=committed)).offsets

    async def offset_at(self, partition: TopicPartition, time_ms: int) -> int:
        """Ask the leader for the first message at a time or later; see `FetchBrokers`."""
        committed = self.services.settings.read_committed
        found = await self._listed(partition, time_ms, 1, read_committed=committed)
        if not found.offsets:  # all messages are older, or since the segments are younger
            end = EARLIEST if found.by_segment else LATEST
            found = await self._listed(partition, end, 1, read_committed=committed)
        if not found.offsets:
            raise BrokerError(f"the leader of {partition} returned no offset of it yet")
        return found.offsets[0]

    def known_end(self, partition: TopicPartition) -> int | None:
        """Return the end of the log of an idle partition, if its leader has lately confirmed it."""
        source = self._fetched.get(partition)
        return None if source is None else source.known_end

    async def log_end(self, partition: TopicPartition) -> int:
        """Ask the leader for the high watermark. Raises as `list_offsets`."""
        if not (offsets := (await self._listed(partition, LATEST, 1, read_committed=False)).offsets):
            raise BrokerError(f"the leader of {partition} returned no end of it")
        return offsets[0]

    async def _listed(
        self, partition: TopicPartition, time: int, max_number: int, *, read_committed: bool
    ) -> ListedOffsets:
        ask = functools.partial(list_offsets, time=time, read_committed=read_committed, max_number=max_number)
        node_id, listed = await self._look_up(partition, (time, max_number, read_committed), (), ask)
        return self._answered(listed, f"broker {node_id} returned no offset of {partition}", partition)

    async def _look_up(
        self,
        partition: TopicPartition,
        kind: Hashable,
        asked: tuple[int, ...],
        ask: Callable[[Channel, _Asked], Awaitable[Mapping[Place, _Part]]],
    ) -> tuple[int, _Part | None]:
        """Ask the leader about a partition, together with all for which the same kind of request is to be sent.

        Returns the leader, and what it answers of the partition.
        """
        place = partition.topic, partition.partition
        node_id = (await self._client.leader(*place)).id

        async def send(items: list[tuple[Place, tuple[int, ...]]]) -> Mapping[Place, _Part]:
            # Of a partition that is there twice, the first fetcher has been replaced.
            return await ask(await self._client.node_channel(node_id), dict(items))

        rounds: Rounds[tuple[Place, tuple[int, ...]], Mapping[Place, _Part]]
        rounds = self._lookups.setdefault((node_id, kind), Rounds(send))
        return node_id, (await rounds.take_part([(place, asked)])).get(place)

"""The high-level consumer for asyncio: a member of a consumer group that delivers messages through streams.

Strategy: the member is the daemon's, put together as the configuration says (`composition`) and run by a task that
belongs to the connector (`MemberRun`); its handler hands batches to streams. The connector adds what a library needs:
connections of its own, waiting until the first assignment is decided, and a shutdown that is bounded in time and cannot
wait for itself.

A failure of the member (a corrupt partition with the policy `fail`, refused credentials, ...) comes out of its streams;
if no task iterates any more, out of `shutdown`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import chain
from random import Random, SystemRandom
from types import TracebackType
from typing import Self

import structlog

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConfigError, reason_of
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock, ZooKeeper
from consumerd.member.consumer.composition import AssignedStreams, Composition
from consumerd.member.consumer.config import ConsumerConfig
from consumerd.member.consumer.consumer import GroupConsumer
from consumerd.member.consumer.controls import PartitionControls
from consumerd.member.consumer.coordinated import CoordinatedConsumer, GroupMetadata
from consumerd.member.consumer.errors import ConnectorStateError
from consumerd.member.consumer.listeners import RebalanceListener
from consumerd.member.consumer.member_run import MemberRun
from consumerd.member.consumer.stats import ConsumerStats
from consumerd.member.consumer.streams import MessageStream
from consumerd.net.connect import Connector
from consumerd.wire.errors import InvalidTopicError
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription, Subscription
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter
from consumerd.wire.v07 import validate_topic

log = structlog.get_logger(__name__)


class ConsumerConnector:
    """A member of a group, as `async with ConsumerConnector(config) as connector:`, or with `start` and `shutdown`.

    Make streams once, by topics or by a filter; that joins the group. `listener` is notified of partitions that come
    and go. A started ZooKeeper session may be given (`zk`); it then stays the caller's. `connect`, `clock` and `rng`
    are the ports to brokers, time and randomness. Positions and everything else about single partitions raise
    ConnectorStateError before there are streams and after the shutdown, and NotAssignedError where it says so.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        *,
        listener: RebalanceListener | None = None,
        zk: ZooKeeper | None = None,
        connect: Connector | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self._config = config
        self._listener = listener
        self._clock = clock or SystemClock()
        self._parts = Composition(config, zk=zk, connect=connect, clock=self._clock, rng=rng or SystemRandom())
        self._open = zk is not None and config.by_zookeeper
        self._joined = False
        self._leaving = asyncio.Event()
        self._member: MemberRun | None = None
        #: The assignment of the member's partitions to streams, if the connector itself makes it.
        self._streams_by_broker: AssignedStreams | None = None
        self._failure_told = False
        self._streams: list[MessageStream] = []
        self._closing = asyncio.Lock()
        self._closed = False

    # -- life

    async def start(self) -> None:
        """Connect to ZooKeeper, or to a first broker where that coordinates.

        Raises ZooKeeperError, or BrokerError, when nothing answers within `connection_timeout`, and NotFoundError when
        no cluster is at the chroot by then.
        """
        if self._closed:
            raise ConnectorStateError("a connector cannot be restarted; create a new one")
        if self._open:
            return
        try:
            await self._parts.open()
        except BaseException:
            await self._parts.close()
            raise
        self._open = True

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.shutdown()
        except BaseException as failure:
            if error is None or isinstance(failure, asyncio.CancelledError):
                raise
            if failure is not error:
                log.error("member_failed", group=self._config.group, reason=reason_of(failure))

    async def shutdown(self) -> None:
        """Leave the group: finish open batches, commit (with auto_commit), release, unregister. Streams then end.

        Messages that the loop bodies of other tasks hold are waited for, for at most `drain_timeout`; a message that
        the calling task took last and did not `ack` is given back. Raises the failure that stopped the member, if no
        stream has raised it. May be called again, and by several tasks.
        """
        self._leaving.set()
        for stream in self._streams:
            stream.leave(asyncio.current_task())
        async with self._closing:
            try:
                if self._member is not None:
                    await self._member.leave()
            finally:
                self._closed = True
                await self._parts.close()
        if not any(stream.failure_told for stream in self._streams):
            self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise the failure that stopped the member, once."""
        failure = None if self._member is None else self._member.failure
        if failure is not None and not self._failure_told:
            self._failure_told = True
            raise failure

    # -- streams

    async def create_message_streams(self, topics: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """Join the group with this number of streams for each topic; return when the first assignment is decided.

        A topic that no broker has yet is waited for; so is, in ZooKeeper, a first broker or member that shows the
        dialect. Where a broker coordinates the group, the member's partitions are assigned to the streams of their
        topic. Once per connector, as in 0.7. Raises ConfigError, and what keeps the member out of its group:
        IdTakenError, GroupRefusedError, ZooKeeperError, BrokerError.
        """
        if not topics:
            raise ConfigError("at least one topic is required.")
        if not isinstance(topics, Mapping) or not all(isinstance(topic, str) for topic in topics):
            raise ConfigError(f'topics must be names with numbers of streams, as {{"orders": 1}}, not {topics!r}.')
        try:
            for topic in topics:
                validate_topic(topic)
            subscription = StaticSubscription(topics)
        except (RegistryError, InvalidTopicError) as error:
            raise ConfigError(str(error)) from error
        streams = {topic: self._make_streams(topic, number) for topic, number in subscription.streams.items()}
        await self._join(subscription, [*chain(*streams.values())], lambda topic, number: streams[topic][number])
        return streams

    async def create_message_streams_by_filter(
        self, topic_filter: TopicFilter, streams: int = 1
    ) -> list[MessageStream]:
        """Join the group with this number of streams for all topics that the filter matches, now and later.

        Each stream may bring messages of several topics. Otherwise as `create_message_streams`.
        """
        if not isinstance(topic_filter, TopicFilter):
            raise ConfigError(f"the filter must be a Whitelist or a Blacklist, not {topic_filter!r}.")
        try:
            if self._config.broker_filter and topic_filter.kind is FilterKind.WHITELIST:
                topic_filter.require_re2()
            subscription = FilterSubscription(topic_filter, streams)
        except RegistryError as error:
            raise ConfigError(str(error)) from error
        made = self._make_streams(None, streams)
        await self._join(subscription, made, lambda _, number: made[number])
        return made

    def _make_streams(self, topic: str | None, count: int) -> list[MessageStream]:
        timeout = self._config.consumer_timeout
        return [MessageStream(topic, number, timeout=timeout, clock=self._clock) for number in range(count)]

    async def _join(
        self, subscription: Subscription, streams: list[MessageStream], find: Callable[[str, int], MessageStream]
    ) -> None:
        if not self._open or self._closed:
            raise ConnectorStateError("the connector is not running; use it with `async with`")
        if self._joined:
            raise ConnectorStateError("this connector already has its streams; create one connector per subscription")
        self._joined = True
        try:
            consumer = await self._made_member(subscription, find)
        except BaseException:
            self._joined = False
            raise
        self._streams = streams
        self._member = MemberRun(
            consumer, self._parts.session, stop_timeout=self._config.stop_timeout, ended=self._end_streams
        )
        await self._member.wait_ready()
        self._raise_failure()

    async def _made_member(
        self, subscription: Subscription, find: Callable[[str, int], MessageStream]
    ) -> GroupConsumer | CoordinatedConsumer:
        """Return the member, unless the connector is shut down while it waits for the group."""
        making = asyncio.create_task(self._parts.member(subscription, find, self._listener))
        leaving = asyncio.create_task(self._leaving.wait())
        try:
            await asyncio.wait([making, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            making.cancel()
            leaving.cancel()
            await asyncio.wait([making, leaving])
        if self._leaving.is_set() or making.cancelled():
            raise ConnectorStateError("the connector was shut down before it joined its group")
        consumer, self._streams_by_broker = making.result()
        return consumer

    def _end_streams(self, failure: BaseException | None) -> None:
        for stream in self._streams:
            stream.end(failure)

    # -- single partitions

    def assignment(self) -> dict[TopicPartition, int]:
        """The assigned partitions whose position is known, each with the number of its stream."""
        assignment = self._controls.assignment()
        streams = self._streams_by_broker
        return assignment if streams is None else {partition: streams.number(partition) for partition in assignment}

    async def commit_offsets(self) -> dict[TopicPartition, int]:
        """Commit the positions of all assigned partitions; returns the committed offsets.

        Raises ZooKeeperError, BrokerError.
        """
        return await self._controls.commit()

    def position(self, partition: TopicPartition) -> int:
        """The offset up to which all messages are handled, which a commit writes. Raises NotAssignedError."""
        return self._controls.position(partition)

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The committed offsets of these or of all assigned partitions, without those that have none."""
        return await self._controls.committed(*partitions)

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The end offsets of these or of all assigned partitions. Raises BrokerError, WireError."""
        return await self._controls.end_offsets(*partitions)

    async def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The lag of these or of all assigned partitions: bytes (0.7) or messages (0.8+). Raises as `end_offsets`."""
        return await self._controls.lag(*partitions)

    async def get_offsets_before(self, partition: TopicPartition, time: int, max_number: int = 1) -> tuple[int, ...]:
        """Up to `max_number` offsets, descending, of segments older than `time` (ms since 1970, EARLIEST, LATEST)."""
        return await self._controls.offsets_before(partition, time, max_number)

    def pause(self, *partitions: TopicPartition) -> None:
        """Stop fetching and delivering these partitions; they stay assigned. Raises NotAssignedError."""
        self._controls.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Continue after `pause`, from where it stopped. Raises NotAssignedError."""
        self._controls.resume(*partitions)

    async def seek(self, partition: TopicPartition, offset: int) -> int:
        """Continue at `offset` (a message boundary), or at EARLIEST or LATEST; returns the offset.

        No message from before is delivered any more, and messages delivered before do not move the position. Raises
        NotAssignedError, and BrokerError when EARLIEST or LATEST cannot be looked up.
        """
        return await self._controls.seek(partition, offset)

    def group_metadata(self) -> GroupMetadata:
        """The member in the present generation of a group that a broker coordinates, for offsets in transactions.

        Ask when a batch was taken, before anything is awaited: the coordinator then refuses its offsets once the
        partitions belong to others. Raises ConnectorStateError for a group in ZooKeeper.
        """
        member = self._running
        if not isinstance(member, CoordinatedConsumer):
            raise ConnectorStateError("a group in ZooKeeper has no generation that a coordinator checks")
        return member.group_metadata

    @property
    def stats(self) -> ConsumerStats:
        """Counters of the member."""
        return self._running.stats

    @property
    def _controls(self) -> PartitionControls:
        return self._running.controls

    @property
    def _running(self) -> GroupConsumer | CoordinatedConsumer:
        if self._member is None or self._closed:
            raise ConnectorStateError("the connector has no streams or was shut down")
        return self._member.consumer

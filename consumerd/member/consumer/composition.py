"""The parts of a connector's member, chosen by its configuration: the coordinator and the dialect.

Strategy: as in the daemon. A group in ZooKeeper is joined in the dialect of the brokers and members that are registered
there, after waiting for the first of them: a node of the wrong dialect breaks the rebalance of every peer. Where a
broker coordinates, it assigns partitions to members, not to streams, so the member's share is divided among its
streams here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from random import Random

import structlog

from consumerd.base.address import parse_addresses
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock, ZooKeeper
from consumerd.group.rules import V08Rules
from consumerd.member.consumer.backends import GroupBackend, V07Backend
from consumerd.member.consumer.backends_v08 import ClusterBackend, V08Backend
from consumerd.member.consumer.config import ConsumerConfig
from consumerd.member.consumer.consumer import GroupConsumer
from consumerd.member.consumer.coordinated import CoordinatedConsumer
from consumerd.member.consumer.errors import GroupRefusedError
from consumerd.member.consumer.listeners import RebalanceListener
from consumerd.member.consumer.sinks import Sink
from consumerd.member.consumer.streams import MessageStream, StreamHandler
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.factory import find_broker, make_client, security_protocol
from consumerd.net.cluster.dialects import read_dialect, wait_for_dialect
from consumerd.net.cluster.entry import start_session
from consumerd.net.connect import Connector
from consumerd.net.connect import connect as connect_to_broker
from consumerd.net.zk.session import Session
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.errors import DialectError
from consumerd.wire.registry.subscription import FilterSubscription, Subscription

log = structlog.get_logger(__name__)

_DIALECTS = {"0.7": Dialect.V07, "0.8": Dialect.V08}


class AssignedStreams(StreamHandler):
    """Divides a coordinated member's partitions evenly among its streams; one that stays ours keeps its stream."""

    def __init__(self, find: Callable[[str, int], MessageStream], subscription: Subscription) -> None:
        super().__init__(find)
        self._subscription = subscription
        self._numbers: dict[TopicPartition, int] = {}
        self._session_id = 0
        #: Set before the member runs.
        self.member: CoordinatedConsumer

    def number(self, partition: TopicPartition) -> int:
        """Return the number of the stream that receives a partition of the member."""
        session_id, assigned = self.member.fence.session_id, self.member.assigned
        if self._session_id != session_id:
            self._session_id, self._numbers = session_id, {}
        if self._numbers.keys() != set(assigned):
            self._numbers = self._divide(assigned)
        return self._numbers.get(partition, 0)

    def _divide(self, assigned: list[TopicPartition]) -> dict[TopicPartition, int]:
        together = isinstance(self._subscription, FilterSubscription)  # whose streams are for all topics
        numbers = {partition: number for partition, number in self._numbers.items() if partition in assigned}
        taken = Counter(("" if together else partition.topic, number) for partition, number in numbers.items())
        for partition in sorted(set(assigned) - numbers.keys()):
            topic = "" if together else partition.topic
            streams = range(max(1, self._subscription.streams_for(partition.topic)))
            numbers[partition] = min(streams, key=lambda number, topic=topic: taken[topic, number])  # type: ignore[misc]
            taken[topic, numbers[partition]] += 1
        return numbers

    def for_partition(self, partition: TopicPartition, stream: int, allowed: Callable[[], bool]) -> Sink:
        """Return a sink of the stream that the partition was assigned to; a broker names none."""
        return super().for_partition(partition, self.number(partition), allowed)


class Composition:
    """Session and client as the configuration needs them, and the member on top; `close` ends what is ours."""

    def __init__(
        self,
        config: ConsumerConfig,
        *,
        zk: ZooKeeper | None,
        connect: Connector | None,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._config = config
        self._given = zk
        self._connect = connect
        self._clock = clock
        self._rng = rng
        #: Set by `_opened_client`.
        self._client: ClusterClient
        self._ours = AsyncExitStack()
        #: The session, if it is ours.
        self.session: Session | None = None

    @property
    def _zk(self) -> ZooKeeper | None:
        return self.session if self._given is None else self._given

    async def open(self) -> None:
        """Connect. Raises ZooKeeperError, or NoBrokerError, when nothing answers within `connection_timeout`.

        Raises NotFoundError when no cluster is at the chroot by then.
        """
        config = self._config
        if self._zk is None and (config.by_zookeeper or config.offset_settings().in_zookeeper):
            self.session = await self._started_session()
        if not config.by_zookeeper:
            await find_broker(self._opened_client(), config.bootstrap, config.connection_timeout)

    async def close(self) -> None:
        """Close what is ours; not before the member has ended. It may be opened again."""
        self.session = None
        await self._ours.aclose()

    async def _started_session(self) -> Session:
        config = self._config
        session = config.session(clock=self._clock, rng=self._rng)
        self._ours.push_async_callback(session.close)
        await start_session(session, config.connection_timeout, self._clock, where="zookeeper", wait=True)
        return session

    def _opened_client(self) -> ClusterClient:
        config = self._config
        self._client = make_client(
            parse_addresses(config.bootstrap, "bootstrap"),
            config.connection_settings(),
            client_id=config.client_id,
            rack=config.rack,
            tls=config.broker_tls,
            sasl=config.sasl,
            clock=self._clock,
            rng=self._rng,
            connector=self._connect,
        )
        self._ours.push_async_callback(self._client.close)
        return self._client

    async def member(
        self,
        subscription: Subscription,
        find: Callable[[str, int], MessageStream],
        listener: RebalanceListener | None,
    ) -> tuple[GroupConsumer | CoordinatedConsumer, AssignedStreams | None]:
        """Return the member, not running, once its dialect is known, and its streams where the member assigns them.

        Raises ConfigError, GroupRefusedError where the dialects do not fit, ZooKeeperError.
        """
        settings = self._config.settings(subscription, clock=self._clock, rng=self._rng)
        zk = self._zk
        if self._config.by_zookeeper:
            assert zk is not None  # it was opened
            consumer = GroupConsumer(
                settings,
                zk=zk,
                backend=await self._backend(zk),
                handler=StreamHandler(find),
                clock=self._clock,
                rng=self._rng,
                listener=listener,
            )
            return consumer, None
        streams = AssignedStreams(find, subscription)
        streams.member = CoordinatedConsumer(
            settings,
            self._config.coordination_settings(),
            backend=ClusterBackend(self._client, offsets=self._config.offset_settings(), zk=zk),
            handler=streams,
            clock=self._clock,
            rng=self._rng,
            listener=listener,
        )
        return streams.member, streams

    async def _backend(self, zk: ZooKeeper) -> GroupBackend:
        config = self._config
        if await self._dialect(zk) is Dialect.V07:
            config.require_v07()
            return V07Backend(self._connect or partial(connect_to_broker, settings=config.connection_settings()))
        protocol = security_protocol(tls=config.broker_tls is not None, sasl=config.sasl is not None)
        return V08Backend(
            self._opened_client(),
            V08Rules(config.assignor),
            protocol=None if config.bootstrap else protocol,
            offsets=config.offset_settings(),
        )

    async def _dialect(self, zk: ZooKeeper) -> Dialect:
        """Return the configured dialect if no registration contradicts it, else the first one that is registered."""
        group, dialect = self._config.group, _DIALECTS.get(self._config.dialect)
        try:
            if dialect is None:
                return await wait_for_dialect(zk, group, self._clock)
            found = await read_dialect(zk, group)
            if found not in (None, dialect):
                raise DialectError(
                    f"the brokers or members registered there speak the dialect of Kafka {found.value}, and dialect "
                    f"is {self._config.dialect!r}; check it, and the chroot of the address"
                )
        except DialectError as error:
            raise GroupRefusedError(group, str(error)) from error
        return dialect

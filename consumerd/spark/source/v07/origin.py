"""Partitions on live brokers: those registered in ZooKeeper, or those that the options list.

Strategy: two questions. Which brokers and partitions exist is read from ZooKeeper, at most every few seconds, or
follows from the options, as 0.7 has no request for it. Where a partition and its segments begin and end is one OFFSETS
request per partition, over one connection per broker that is kept between snapshots. An unavailable broker is an error,
as its messages would be missing silently.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import ZooKeeper
from consumerd.spark.source.choice import PartitionChoice
from consumerd.spark.source.errors import BrokerReadError, OffsetUnavailableError
from consumerd.spark.source.logs import WithoutEpochs
from consumerd.spark.source.offsets import Key
from consumerd.spark.source.option_texts import OptionError
from consumerd.spark.source.option_values import BrokersLocation, ZooKeeperLocation
from consumerd.spark.source.options import SourceOptions
from consumerd.spark.source.split import BrokerRange
from consumerd.spark.source.v07.boundaries import Fetch
from consumerd.spark.source.v07.client import BrokerClient
from consumerd.spark.source.v07.segment_log import SegmentLog, SourceSegment
from consumerd.wire.v07 import LATEST

_T = TypeVar("_T")

#: Seconds after which ZooKeeper is read again.
REGISTRY_AGE: Final = 5.0
#: Maximum number of segments of one partition whose starts are requested.
MAX_SEGMENTS: Final = 100_000


class RegisteredCluster(NamedTuple):
    """The cluster: broker id -> (host, port), the selected partitions, and the names of all topics."""

    brokers: Mapping[int, tuple[str, int]]
    partitions: tuple[TopicPartition, ...]
    topics: frozenset[str]


class BrokerOrigin(WithoutEpochs):
    """The chosen partitions of live brokers. Looks raise BrokerReadError, and with ZooKeeper ZooKeeperError."""

    def __init__(self, location: BrokersLocation | ZooKeeperLocation, options: SourceOptions) -> None:
        self._location = location
        self._options = options
        self._choice = PartitionChoice(options.topics)
        self._registered: RegisteredCluster | None = None
        self._asked = 0.0
        self._clients: dict[BrokerRange, BrokerClient] = {}
        weakref.finalize(self, _close, self._clients)

    def snapshot(self) -> Mapping[Key, SegmentLog]:
        registered = self._look_up()
        logs = [self._log(partition, *registered.brokers[partition.broker]) for partition in registered.partitions]
        return {log.key: log for log in logs}

    def missing(self, found: Mapping[Key, object]) -> str | None:
        return self._choice.missing(found, self._look_up().topics)

    def _look_up(self) -> RegisteredCluster:
        if not isinstance(self._location, ZooKeeperLocation):
            return _listed(self._location, self._choice)
        now = time.monotonic()
        if self._registered is None or now - self._asked > REGISTRY_AGE:
            from consumerd.spark.source.v07.zookeeper import ask_zookeeper  # noqa: PLC0415 - not where brokers are listed

            self._registered = ask_zookeeper(self._location.connect, self._options.timeout, self._read)
            self._asked = now
        return self._registered

    async def _read(self, zk: ZooKeeper) -> RegisteredCluster:
        from consumerd.net.cluster.reading import children  # noqa: PLC0415
        from consumerd.net.cluster.view import ClusterView  # noqa: PLC0415
        from consumerd.wire.registry.paths import topics_path  # noqa: PLC0415

        view = ClusterView(zk)
        brokers = {broker: found.address for broker, found in (await view.read_brokers()).items()}
        topics = await children(zk, topics_path())
        counts = await view.read_topics([topic for topic in topics if self._choice.wants_topic(topic)])
        every = (
            TopicPartition(topic, broker, number)
            for topic, by_broker in counts.items()
            for broker, count in by_broker.items()
            if broker in brokers
            for number in range(count)
        )
        return RegisteredCluster(
            brokers, tuple(each for each in every if self._choice.wants((each.topic, each.name))), frozenset(topics)
        )

    def _log(self, partition: TopicPartition, host: str, port: int) -> SegmentLog:
        broker = BrokerRange(host, port)
        bounds = sorted(set(self._offsets(partition, broker, LATEST, MAX_SEGMENTS)))
        if not bounds:
            raise BrokerReadError(f"broker {host}:{port} returned no offsets of {partition}; is it a 0.7 broker?")
        segments = tuple(
            SourceSegment(start, end, broker) for start, end in pairwise(bounds if len(bounds) > 1 else bounds * 2)
        )
        return SegmentLog(
            partition.topic, partition.broker, partition.partition, segments, self._open, self._before,
            self._options.limits,
        )  # fmt: skip

    def _before(self, log: SegmentLog, time_ms: int) -> int:
        """As the broker tells it; everything is younger where it names nothing."""
        broker = log.segments[0].location
        assert isinstance(broker, BrokerRange)
        assert log.broker is not None
        found = self._offsets(TopicPartition(log.topic, log.broker, log.partition), broker, time_ms, 1)
        return min(max(found[0], log.start), log.end) if found else log.start

    def _offsets(self, partition: TopicPartition, broker: BrokerRange, when: int, count: int) -> tuple[int, ...]:
        return self._ask(broker, lambda client: client.offsets(partition.topic, partition.partition, when, count))

    def _ask(self, broker: BrokerRange, question: Callable[[BrokerClient], _T]) -> _T:
        """Send a request; once more on a new connection if the old one was closed. Raises BrokerReadError."""
        kept = self._clients.pop(broker, None)
        if kept is not None:
            try:
                found = question(kept)
            except OffsetUnavailableError:
                self._clients[broker] = kept
                raise
            except BrokerReadError:
                kept.close()
            else:
                self._clients[broker] = kept
                return found
        client = BrokerClient(broker.host, broker.port, self._options.timeout)
        try:
            found = question(client)
        except BaseException:
            client.close()
            raise
        self._clients[broker] = client
        return found

    @contextlib.contextmanager
    def _open(self, log: SegmentLog, segment: SourceSegment) -> Iterator[Fetch]:
        broker, most = segment.location, self._options.fetch_size
        assert isinstance(broker, BrokerRange)

        def fetch(offset: int, size: int) -> bytes:
            try:
                return self._ask(broker, lambda client: client.fetch(log.topic, log.partition, offset, min(size, most)))
            except OffsetUnavailableError:
                return b""

        yield fetch


def _close(clients: Mapping[BrokerRange, BrokerClient]) -> None:
    for client in clients.values():
        client.close()


def _listed(location: BrokersLocation, choice: PartitionChoice) -> RegisteredCluster:
    """The brokers and partitions that the options list."""
    partitions = []
    for topic, name in choice.assigned:
        try:
            partition = TopicPartition.parse(topic, name)
        except ValueError as error:
            raise OptionError(f"invalid option assign: {error}") from None
        if partition.broker not in location.brokers:
            raise NotFoundError(f"option assign names {partition}, but option brokers has no broker {partition.broker}")
        partitions.append(partition)
    if not partitions:
        for topic in choice.topics or ():
            for broker in location.brokers:
                partitions += [TopicPartition(topic, broker, number) for number in range(location.partitions or 0)]
    return RegisteredCluster(
        location.brokers, tuple(partitions), frozenset(partition.topic for partition in partitions)
    )

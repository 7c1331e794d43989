"""The target partition of a source partition: always the same, so that the order of messages is kept.

Strategy: the source partition travels as the key of its messages. On a target with ZooKeeper the key's index among the
target's partitions, sorted by broker and number, is (broker * partitions per broker + partition) mod n: clusters of the
same shape are mirrored one to one, others evenly. On a list of brokers the same is done in two steps: a broker of the
list by the source's broker, one of its partitions by the source's partition.

The index changes when n does: when a broker of the target comes or goes. Then order holds only among messages sent
before, and among messages sent after.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from consumerd.base.errors import BrokerError, ConfigError
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import ZooKeeper
from consumerd.net.cluster.reading import data
from consumerd.net.connect import Connector
from consumerd.net.errors import ConnectError, ConnectionClosedError
from consumerd.producer import Partitioner, Route, Router
from consumerd.producer.v07.verify import count_partitions
from consumerd.wire.errors import WireError
from consumerd.wire.registry.paths import topic_broker_path
from consumerd.wire.registry.values import parse_partition_count


class SourcePartition(NamedTuple):
    """A partition of the source, as a key: `partitions` is how many the topic has on that broker."""

    broker: int
    partition: int
    partitions: int


class SourceCounts:
    """The numbers of partitions of topics on the brokers of the source, from its ZooKeeper. Each is looked up once."""

    def __init__(self, zk: ZooKeeper) -> None:
        self._zk = zk
        self._known: dict[tuple[str, int], int] = {}

    async def source(self, partition: TopicPartition) -> SourcePartition:
        """The key of a partition. Raises BrokerError while its broker is unavailable, ZooKeeperError, RegistryError."""
        place = partition.topic, partition.broker
        if place not in self._known:
            text = await data(self._zk, topic_broker_path(*place))
            if text is None:
                raise BrokerError(
                    f"broker {partition.broker} is not registered for topic {partition.topic!r}: the target "
                    f"partition of {partition} is unknown until the broker is back."
                )
            self._known[place] = parse_partition_count(text)
        return SourcePartition(partition.broker, partition.partition, self._known[place])


class KeepingPartitioner(Partitioner):
    """The index for a `SourcePartition` among `count` partitions of the target."""

    def partition(self, key: Any, count: int, /) -> int:
        source = SourcePartition(*key)
        return (source.broker * source.partitions + source.partition) % count


class PlacedRouter(Router):
    """A router over a fixed list of brokers: a `SourcePartition` always goes to one partition of one broker."""

    def __init__(self, brokers: Sequence[tuple[str, int]], *, connect: Connector) -> None:
        if not brokers:
            raise ConfigError("the list of brokers is empty: give at least one host:port.")
        self._brokers = list(brokers)
        self._connect = connect
        self._counts: dict[tuple[tuple[str, int], str], int] = {}

    async def route(self, topic: str, key: Hashable, partition: int | None) -> Route:
        """Return the broker and partition to send to. Raises ConnectError without the broker's partitions."""
        assert isinstance(key, SourcePartition)
        address = self._brokers[key.broker % len(self._brokers)]
        count = self._counts.get((address, topic))
        if count is None:
            count = self._counts[address, topic] = await self._count(address, topic)
        return Route(*address, key.partition % count)

    async def _count(self, address: tuple[str, int], topic: str) -> int:
        connection = await self._connect(*address)
        try:
            return await count_partitions(connection, topic)
        except (ConnectionClosedError, WireError) as error:
            raise ConnectError(f"{error} (while counting its partitions; nothing was sent)") from error
        finally:
            await connection.close()

    async def close(self) -> None:
        self._counts.clear()

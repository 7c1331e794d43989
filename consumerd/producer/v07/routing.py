"""Routing of messages to a broker and one of its partitions.

Strategy: a `Router` routes one message batch at a time and is called again at every retry, so that a broker that
died or moved is left out as soon as that is known. There is one over a fixed list of brokers, and one that follows what
brokers register in ZooKeeper: which are alive, where, and how many partitions of a topic each has.

The router that follows ZooKeeper runs no task. Nodes that were read are kept until a watch fires; the next `route`
reads them again, which re-arms the watches. Bursts of changes cost one read, topics that are not sent to any more cost
none, and while ZooKeeper is unavailable the last knowledge serves.

The rules are 0.7.2's (golden notes, 7): candidates are all (broker, partition) pairs, sorted; a key takes one by its
hash, no key takes any. A live broker that has not registered the topic is a candidate with its partition 0, which
every broker has; the first message makes it create the topic and register all of its partitions. So a new topic comes
to be on every broker, also on those that join later (spec 004, "Creating New Topics"), which 0.7.2 leaves out until
the producer is recreated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import structlog

from consumerd.base.calls import read_all
from consumerd.base.errors import ConfigError, reason_of
from consumerd.base.ports import ZooKeeper
from consumerd.net.cluster.reading import data, watched_children
from consumerd.net.zk.errors import ConnectionLost, NotConnected, SessionChanged
from consumerd.producer.errors import NoBrokerError, NoPartitionError
from consumerd.producer.partitioners import HashPartitioner, Partitioner, checked_index
from consumerd.wire.registry.errors import DialectError, RegistryError
from consumerd.wire.registry.paths import broker_ids_path, topic_path
from consumerd.wire.registry.values import RegisteredBroker, parse_broker, parse_broker_id, parse_partition_count

log = structlog.get_logger(__name__)

T = TypeVar("T")

DEFAULT_PARTITIONER = HashPartitioner()

#: The partition number that leaves the choice to the broker (golden notes, 1).
ANY_PARTITION = -1

_INT32_MAX = (1 << 31) - 1


class Route(NamedTuple):
    """A broker's address and the partition to write in the request."""

    host: str
    port: int
    partition: int


class Router(Protocol):
    """Chooses routes."""

    async def route(self, topic: str, key: Hashable, partition: int | None) -> Route:
        """Return the route of a batch. Raises NoBrokerError where that may change, NoPartitionError, ZooKeeperError."""
        ...

    async def close(self) -> None:
        """Forget everything; the router is not asked again."""
        ...


def check_partition(partition: int | None) -> None:
    """Refuse numbers that no broker accepts: they would cost the connection (golden notes, 1)."""
    if partition is not None and not ANY_PARTITION <= partition <= _INT32_MAX:
        raise NoPartitionError(f"{partition} is not a partition: give a number from 0, or -1 for the broker's choice.")


class StaticRouter(Router):
    """A fixed list of brokers: one at random for each batch, which then chooses the partition (golden notes, 7).

    As in 0.7.2 keys have no influence: how many partitions there are is not known.
    """

    def __init__(self, brokers: Sequence[tuple[str, int]], *, rng: random.Random) -> None:
        if not brokers:
            raise ConfigError("the list of brokers is empty: give at least one host:port.")
        self._brokers = list(brokers)
        self._rng = rng

    async def route(self, topic: str, key: Hashable, partition: int | None) -> Route:
        check_partition(partition)
        host, port = self._rng.choice(self._brokers)
        return Route(host, port, ANY_PARTITION if partition is None else partition)

    async def close(self) -> None:
        return


class _Kept(Generic[T]):
    """A value read from several nodes, and read again once one of them may have changed."""

    def __init__(self, zk: ZooKeeper, read: Callable[[_Kept[T]], Awaitable[T]]) -> None:
        self._zk = zk
        self._read = read
        self._stale = True
        self._known: list[T] = []
        self._unwatch: list[Callable[[], None]] = []
        self._turn = asyncio.Lock()

    async def value(self) -> T:
        """The value, from ZooKeeper if need be. Raises ZooKeeperError, RegistryError."""
        async with self._turn:
            if self._stale:
                await self._refresh()
            return self._known[0]

    async def _refresh(self) -> None:
        self.forget()
        self._stale = False  # before reading: a change meanwhile makes it stale again
        try:
            self._known = [await self._read(self)]
        except (NotConnected, ConnectionLost, SessionChanged) as error:
            self._stale = True
            if not self._known:
                raise
            log.warning("route_refresh_failed", reason=reason_of(error))
        except BaseException:
            self._stale = True
            raise

    def watched(self, path: str) -> str:
        """`path`, of which every later change makes the value stale."""
        self._unwatch.append(self._zk.watch(path, self._changed))
        return path

    def forget(self) -> None:
        """Watch nothing any more."""
        while self._unwatch:
            self._unwatch.pop()()

    def _changed(self) -> None:
        self._stale = True

    async def children(self, path: str) -> list[str]:
        """Watched children; none where the node does not exist, and then its creation is watched."""
        return await watched_children(self._zk, self.watched(path))

    async def data(self, paths: list[str]) -> list[bytes | None]:
        """Watched data of several nodes; None where one is gone since the listing."""
        found = await read_all(paths, lambda path: data(self._zk, self.watched(path), watch=True))
        return list(found.values())


class ZooKeeperRouter(Router):
    """Follows the brokers and topics in ZooKeeper. The session is the caller's and stays open.

    `partitioner` says which of a topic's partitions, sorted by broker and number, a key belongs to.
    """

    def __init__(self, zk: ZooKeeper, *, rng: random.Random, partitioner: Partitioner = DEFAULT_PARTITIONER) -> None:
        self._zk = zk
        self._rng = rng
        self._partitioner = partitioner
        self._brokers = _Kept(zk, _read_brokers)
        self._topics: dict[str, _Kept[dict[int, int]]] = {}

    async def route(self, topic: str, key: Hashable, partition: int | None) -> Route:
        check_partition(partition)
        brokers = await self._brokers.value()
        counts = await self._topic(topic).value()
        broker_id, number = self._choose(topic, sorted(brokers), counts, key, partition)
        if broker_id not in brokers:
            raise NoBrokerError(f"broker {broker_id} of topic {topic!r} is not live (not registered in ZooKeeper).")
        return Route(*brokers[broker_id].address, number)

    async def close(self) -> None:
        self._brokers.forget()
        for topic in self._topics.values():
            topic.forget()

    def _topic(self, topic: str) -> _Kept[dict[int, int]]:
        if topic not in self._topics:
            self._topics[topic] = _Kept(self._zk, lambda kept: _read_counts(kept, topic))
        return self._topics[topic]

    def _choose(
        self, topic: str, alive: list[int], counts: dict[int, int], key: Hashable, partition: int | None
    ) -> tuple[int, int]:
        """Broker id and partition number."""
        if partition == ANY_PARTITION or not counts:
            candidates = [(broker, partition or 0) for broker in alive]
        else:
            candidates = _pairs(counts, alive)
            if partition is not None:
                candidates = [candidate for candidate in candidates if candidate[1] == partition]
                if not candidates:
                    raise NoPartitionError(
                        f"topic {topic!r} has no partition {partition}: its brokers have {max(counts.values())} each."
                    )
            if key is None:
                candidates = [candidate for candidate in candidates if candidate[0] in alive]
        if not candidates:
            raise NoBrokerError("no live broker is registered in ZooKeeper; is one running, and is the chroot right?")
        if key is None:
            return self._rng.choice(candidates)
        return candidates[checked_index(self._partitioner, key, len(candidates))]


def _pairs(counts: dict[int, int], alive: list[int]) -> list[tuple[int, int]]:
    """All (broker, partition) pairs of a topic, sorted: of a live broker that has not registered it, partition 0."""
    partitions = dict.fromkeys(alive, 1) | counts
    return [(broker, number) for broker in sorted(partitions) for number in range(partitions[broker])]


async def _read_brokers(kept: _Kept[dict[int, RegisteredBroker]]) -> dict[int, RegisteredBroker]:
    """The live brokers. Raises DialectError when they are of 0.8 or later; others that do not parse are left out."""
    return await _read_by_broker(kept, broker_ids_path(), parse_broker)


async def _read_counts(kept: _Kept[dict[int, int]], topic: str) -> dict[int, int]:
    """Partitions of `topic` by broker; empty for a topic that is not registered."""
    return await _read_by_broker(kept, topic_path(topic), lambda _, text: parse_partition_count(text))


async def _read_by_broker(kept: _Kept[dict[int, T]], parent: str, parse: Callable[[int, bytes], T]) -> dict[int, T]:
    """The children of `parent`, which are named by broker ids, as `parse` reads them."""
    names = await kept.children(parent)
    values = {}
    for name, text in zip(names, await kept.data([f"{parent}/{name}" for name in names]), strict=True):
        if text is None:
            continue
        try:
            broker = parse_broker_id(name)
            values[broker] = parse(broker, text)
        except DialectError:
            raise
        except RegistryError as error:
            log.warning("zookeeper_node_invalid", path=f"{parent}/{name}", reason=reason_of(error))
    return values

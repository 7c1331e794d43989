"""The world of one group: ZooKeeper, brokers, topics, producers, member processes, and the account of it all.

    with World(seed=1, round_trip=0.005) as world:
        world.topic("events", 600)
        first = world.daemon("first")
        world.settle()

What does not depend on the kind of group is in `tests.simulation.base_world`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from consumerd.partition import TopicPartition
from consumerd.registry import broker_path, offsets_root, owners_root, parse_offset, topic_broker_path
from tests.simulation.base_world import BaseWorld
from tests.simulation.broker import SimulatedBroker
from tests.simulation.jvm import JvmConsumer
from tests.simulation.network import Line
from tests.simulation.owner_account import OwnerAccount
from tests.simulation.ownership import Cause
from tests.simulation.tree import Change
from tests.simulation.zookeeper import SimulatedZooKeeper

if TYPE_CHECKING:
    from tests.simulation.daemon import Daemon


class World(BaseWorld):
    """One run. `round_trip`: seconds to ZooKeeper and back; `rate`: requests that it takes in a second."""

    account: OwnerAccount

    def __init__(
        self, seed: int = 0, *, round_trip: float = 0.001, rate: float = 20_000.0, jitter: float = 0.1
    ) -> None:
        super().__init__(seed)
        line = Line(round_trip / 2, jitter=jitter)
        self.zookeeper = SimulatedZooKeeper(self.kernel, self.network, line=line, rate=rate)
        self.zookeeper.observers.append(self._observe)
        self.account = OwnerAccount(self.kernel, self._news)
        #: The name by which members look for ZooKeeper.
        self.zookeeper_name = self.zookeeper.host
        self.brokers: dict[int, SimulatedBroker] = {}
        self.jvm_consumers: dict[str, JvmConsumer] = {}
        self._offsets_root = offsets_root(self.group) + "/"
        self._owners_root = owners_root(self.group) + "/"

    def begin(self) -> None:
        self.add_broker(0)

    def tables(self) -> dict[str, dict[str, Any]]:
        return {
            "group": {"id": self.group, "whitelist": ".*"},
            "zookeeper": {"connect": f"{self.zookeeper_name}:{self.zookeeper.port}"},
        }

    # -- the cluster

    def add_broker(self, broker: int, *, latency: float = 0.0002) -> SimulatedBroker:
        """Start and register a broker."""
        made = SimulatedBroker(self.kernel, self.network, broker, f"broker{broker}", 9092, Line(latency))
        self.brokers[broker] = made
        self.zookeeper.put(broker_path(broker), made.address.encode())
        return made

    def topic(self, topic: str, partitions: int, *, broker: int = 0) -> None:
        """Register a topic on a broker, or more partitions of it."""
        self.zookeeper.put(topic_broker_path(topic, broker), b"%d" % partitions)
        known = set(self.partitions)
        self.partitions += [
            each for number in range(partitions) if (each := TopicPartition(topic, broker, number)) not in known
        ]

    def produce(self, partition: TopicPartition, count: int = 1) -> None:
        store = self.brokers[partition.broker].store
        for _ in range(count):
            self._produced += 1
            offset = store.end(partition.topic, partition.partition)
            payload = b"%d" % self._produced
            store.append(partition.topic, partition.partition, payload)
            self.account.produced(partition, offset, payload)

    # -- members

    def jvm(self, name: str, *, initial: str = "earliest") -> JvmConsumer:
        """Start a consumer of another implementation."""
        self.account.peers.add(name)
        made = self.jvm_consumers[name] = JvmConsumer(self, name, initial=initial)
        return made

    def owners(self) -> dict[TopicPartition, str]:
        """Of each owned partition the process that owns it, as ZooKeeper has it."""
        tree, sessions = self.zookeeper.tree, self.zookeeper.sessions
        owners = {}
        for path, node in tree.nodes.items():
            if node.owner and path.startswith(self._owners_root):
                topic, _, name = path.removeprefix(self._owners_root).partition("/")
                owners[TopicPartition.parse(topic, name)] = sessions[node.owner].owner
        return owners

    @property
    def is_shared(self) -> bool:
        shares = self.shares()
        processes: list[tuple[str, Daemon | JvmConsumer]] = [*self.daemons.items(), *self.jvm_consumers.items()]
        living = [name for name, process in processes if process.alive]
        counts = [shares.get(name, 0) for name in living]
        return bool(counts) and sum(counts) == len(self.partitions) and max(counts) - min(counts) <= 1

    def end(self, partition: TopicPartition) -> int:
        return self.brokers[partition.broker].store.end(partition.topic, partition.partition)

    # -- observing

    def _news(self, member: str) -> float:
        """Seconds for the watch, for reads and for the end of current batches; more round trips if a burst waits."""
        zookeeper = self.zookeeper
        return 2.0 + 20 * self.network.latency_of(member, (zookeeper.host, zookeeper.port))

    def _observe(self, change: Change, path: str) -> None:
        if path.startswith(self._owners_root) and change in (Change.CREATED, Change.DELETED):
            topic, _, name = path.removeprefix(self._owners_root).partition("/")
            if name:
                self._observe_owner(change, TopicPartition.parse(topic, name), path)
        if path.startswith(self._offsets_root) and change in (Change.CREATED, Change.DATA):
            topic, _, name = path.removeprefix(self._offsets_root).partition("/")
            if name:
                position = parse_offset(self.zookeeper.tree.nodes[path].data)
                self.account.committed(TopicPartition.parse(topic, name), position, self.zookeeper.serving)

    def _observe_owner(self, change: Change, partition: TopicPartition, path: str) -> None:
        zookeeper, account = self.zookeeper, self.account
        if change is Change.CREATED:
            owner = zookeeper.tree.nodes[path].owner
            account.claimed(partition, zookeeper.sessions[owner].owner if owner else "")
            return
        claim = account.ownership.claim(partition)
        if zookeeper.ending == "timed out":
            cause = Cause.TIMED_OUT
        elif zookeeper.ending == "closed" or (claim is not None and zookeeper.serving == claim.member):
            cause = Cause.RELEASED
        else:
            cause = Cause.TAKEN
        account.unclaimed(partition, cause)

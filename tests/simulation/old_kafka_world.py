"""The world of one group that ZooKeeper coordinates, with brokers of 0.9 and later: that of the old consumers.

    with OldKafkaWorld(seed=1) as world:
        world.topic("events", 12)
        first = world.daemon("first")
        world.settle()

Offsets are in ZooKeeper, where they stay when a topic is deleted. The node of a topic that is made again is a new one.
"""

from __future__ import annotations

import json

from consumerd.wire.registry.paths import broker_path, ids_path, partition_path, topic_path
from consumerd.wire.registry.v08.topic import format_topic_assignment
from tests.simulation.kafka_broker import ERAS, Era, KafkaBroker, SimulatedKafka
from tests.simulation.kafka_logs import KafkaLogs
from tests.simulation.network import Line
from tests.simulation.zookeeper_world import ZooKeeperWorld


class OldKafkaWorld(KafkaLogs, ZooKeeperWorld):
    """One run. `round_trip`: seconds to ZooKeeper and back; `brokers`: how many there are at first."""

    def __init__(self, seed: int = 0, *, brokers: int = 1, era: Era = ERAS[1], round_trip: float = 0.001) -> None:
        super().__init__(seed, round_trip=round_trip)
        self.kafka = SimulatedKafka(self.kernel, self.network, era)
        self._brokers = brokers

    def begin(self) -> None:
        for number in range(self._brokers):
            self.add_broker(number)

    @property
    def is_shared(self) -> bool:
        """Whether each topic is owned in fair shares by those that live, and no other member is registered."""
        living, owners = self.living(), self.owners()
        ids = self.zookeeper.tree.nodes.get(ids_path(self.group))
        if ids is None or len(ids.children) != len(living) or owners.keys() != set(self.partitions):
            return False
        shares: dict[str, dict[str, int]] = {}
        for partition, owner in owners.items():
            topic = shares.setdefault(partition.topic, dict.fromkeys(living, 0))
            topic[owner] = topic.get(owner, 0) + 1
        return all(max(topic.values()) - min(topic.values()) <= 1 for topic in shares.values())

    # -- the cluster

    def add_broker(self, number: int) -> KafkaBroker:
        """Start and register a broker."""
        made = self.kafka.add_broker(number, Line(0.0002))
        node = {"version": 1, "host": made.host, "port": made.port, "jmx_port": -1, "timestamp": "1"}
        self.zookeeper.put(broker_path(number), json.dumps(node).encode())
        return made

    def topic(self, topic: str, partitions: int) -> None:
        """Make a topic, or more partitions of it."""
        self.partitions += self.kafka.add_partitions(topic, partitions, self.rng)
        brokers = list(self.kafka.brokers)
        assignment = dict.fromkeys(range(len(self.kafka.logs(topic))), brokers)
        self.zookeeper.put(topic_path(topic), format_topic_assignment(assignment).encode())
        for number in assignment:  # as the controller does
            if partition_path(topic, number) not in self.zookeeper.tree.nodes:
                self.zookeeper.put(partition_path(topic, number), None)

    def delete_topic(self, topic: str) -> None:
        super().delete_topic(topic)
        self.zookeeper.remove(topic_path(topic))

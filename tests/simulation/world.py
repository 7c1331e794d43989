"""The world of one group: ZooKeeper, brokers, topics, producers, member processes, and the account of it all.

    with World(seed=1, round_trip=0.005) as world:
        world.topic("events", 600)
        first = world.daemon("first")
        world.settle()

What does not depend on the brokers' dialect is in `tests.simulation.zookeeper_world`.

A log may become another one: a broker that is rebuilt under its id, or a crash that takes unflushed messages along. Old
offsets then lie inside of messages that are written later, because those have other sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

from consumerd.base.partition import TopicPartition
from consumerd.wire.registry.paths import broker_path, topic_broker_path
from consumerd.wire.v07 import encode_message_set, iter_outer
from tests.simulation.broker import SimulatedBroker
from tests.simulation.jvm import JvmConsumer
from tests.simulation.network import Line
from tests.simulation.zookeeper_world import ZooKeeperWorld


class World(ZooKeeperWorld):
    """One run. `round_trip`: seconds to ZooKeeper and back; `rate`: requests that it takes in a second."""

    def __init__(
        self, seed: int = 0, *, round_trip: float = 0.001, rate: float = 20_000.0, jitter: float = 0.1
    ) -> None:
        super().__init__(seed, round_trip=round_trip, rate=rate, jitter=jitter)
        self.brokers: dict[int, SimulatedBroker] = {}
        self.jvm_consumers: dict[str, JvmConsumer] = {}
        #: Of logs that became other ones the offsets between former messages: no message may begin or end there.
        self._former: dict[TopicPartition, set[int]] = {}

    def begin(self) -> None:
        self.add_broker(0)

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
            payload = self._unlike_former(partition, offset, b"%d" % self._produced)
            store.append(partition.topic, partition.partition, payload)
            self.account.produced(partition, offset, payload)

    def _unlike_former(self, partition: TopicPartition, offset: int, payload: bytes) -> bytes:
        """The payload, longer where the message would end at an offset of the log that was there before."""
        former = self._former.get(partition, ())
        while offset + len(encode_message_set([payload])) in former:
            payload += b" "
        return payload

    # -- logs that become other ones

    def delete_topic(self, topic: str) -> None:
        for broker in self.brokers:
            self._lose(topic, broker)

    def rebuild_broker(self, broker: int) -> dict[str, int]:
        """All that a broker had is gone, its registration too. Of its topics the numbers of partitions."""
        self.brokers[broker].stop()
        self.zookeeper.remove(broker_path(broker))
        topics = sorted({each.topic for each in self.partitions if each.broker == broker})
        return {topic: self._lose(topic, broker) for topic in topics}

    def start_rebuilt(self, broker: int, topics: Mapping[str, int]) -> None:
        """The broker is back under its id, with empty logs."""
        self.brokers[broker].start()
        self.zookeeper.put(broker_path(broker), self.brokers[broker].address.encode())
        for topic, partitions in topics.items():
            self.topic(topic, partitions, broker=broker)

    def _lose(self, topic: str, broker: int) -> int:
        self.zookeeper.remove(topic_broker_path(topic, broker))
        gone = self.forget_partitions(topic, broker=broker)
        for partition in gone:
            self._cut_log(partition, 0)
        return len(gone)

    def _cut_log(self, partition: TopicPartition, end: int) -> None:
        log = self.brokers[partition.broker].store.logs.get((partition.topic, partition.partition), bytearray())
        starts = [message.next_offset for message in iter_outer(bytes(log), 0)]
        self._former.setdefault(partition, set()).update(each for each in starts if each > end)
        del log[end:]

    def truncate_log(self, partition: TopicPartition, lost: int) -> None:
        """A crash of the broker before the messages were on disk."""
        offsets = self.account.offsets(partition)
        if offsets and lost:
            broker, end = self.brokers[partition.broker], offsets[-lost:][0]
            broker.stop()
            self.account.log_changed(partition, end)
            self._cut_log(partition, end)
            broker.start()

    # -- members

    def jvm(self, name: str, *, initial: str = "earliest") -> JvmConsumer:
        """Start a consumer of another implementation."""
        self.account.peers.add(name)
        made = self.jvm_consumers[name] = JvmConsumer(self, name, initial=initial)
        return made

    def living(self) -> list[str]:
        return [*super().living(), *(name for name, consumer in self.jvm_consumers.items() if consumer.alive)]

    def end(self, partition: TopicPartition) -> int:
        return self.brokers[partition.broker].store.end(partition.topic, partition.partition)

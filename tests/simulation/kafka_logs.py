"""What worlds with brokers of 0.9 and later have in common, with any coordinator: producers and logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.base.partition import TopicPartition
from tests.simulation.base_world import BaseWorld

if TYPE_CHECKING:
    from tests.simulation.kafka_broker import SimulatedKafka


class KafkaLogs(BaseWorld):
    """A world with a cluster."""

    #: Set by the world.
    kafka: SimulatedKafka

    def delete_topic(self, topic: str) -> None:
        self.kafka.delete_topic(topic)
        self.forget_partitions(topic)

    def truncate_log(self, partition: TopicPartition, lost: int) -> None:
        end = max(0, self.end(partition) - lost)
        up = self.kafka.up()
        others = [number for number in up if number != self.kafka.log(partition).leader]
        self.account.log_changed(partition, end)
        self.kafka.truncate(partition, end, self.rng.choice(others or up))

    def produce(self, partition: TopicPartition, count: int = 1) -> None:
        for _ in range(count):
            self._produced += 1
            payload = b"%d" % self._produced
            self.account.produced(partition, self.kafka.append(partition, payload), payload)

    def end(self, partition: TopicPartition) -> int:
        return self.kafka.log(partition).end

"""The name of a partition in Kafka 0.7: a topic, the broker that holds it, and its number on that broker.

Ring 0. `broker-partition` (`0-3`) is how ZooKeeper's owner and offset nodes spell it (spec 001; golden notes, 4), and
that text, not the numbers, is the sort key of the rebalance (golden notes, 5: `0-10` comes before `0-2`).
"""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic on one broker: the unit of ownership, order and offsets.

    Tuples compare numerically; where the order of 0.7's rebalance is meant, sort by `name`.
    """

    topic: str
    broker: int
    partition: int

    @property
    def name(self) -> str:
        """`broker-partition`, as in the znodes of owners and offsets."""
        return f"{self.broker}-{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}-{self.partition}"

    @classmethod
    def parse(cls, topic: str, name: str) -> TopicPartition:
        """Read `broker-partition` text. Raises ValueError for anything else."""
        broker, dash, partition = name.partition("-")
        if not (dash and broker.isascii() and broker.isdigit() and partition.isascii() and partition.isdigit()):
            raise ValueError(f"{name!r} is not a broker-partition name such as 0-3")
        return cls(topic, int(broker), int(partition))

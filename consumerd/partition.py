"""The name of a partition: in Kafka 0.7 a topic, the broker that holds it, and its number on that broker.

Ring 0. `broker-partition` (`0-3`) is how ZooKeeper's owner and offset nodes spell it (spec 001; golden notes, 4), and
that text, not the numbers, is the sort key of the rebalance (golden notes, 5: `0-10` comes before `0-2`). Since 0.8 a
partition is numbered in its topic and moves between brokers: its `broker` is NO_BROKER, and its name the number alone.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

#: The broker of partitions whose name has no broker (0.8 and later).
NO_BROKER: Final = -1
#: Numbers are int32 on the wire.
_NAME = re.compile(r"(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,9})")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")


class TopicPartition(NamedTuple):
    """One partition of one topic (in 0.7, on one broker): the unit of ownership, order and offsets.

    Tuples compare numerically; for the order of 0.7's rebalance, sort by `name`.
    """

    topic: str
    broker: int
    partition: int

    @property
    def name(self) -> str:
        """`broker-partition`, or the number alone, as in the znodes of owners and offsets."""
        return str(self.partition) if self.broker == NO_BROKER else f"{self.broker}-{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}/{self.name}"

    @classmethod
    def parse(cls, topic: str, name: str) -> TopicPartition:
        """Read `broker-partition` text. Raises ValueError for anything else, leading zeros too: no peer writes them."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is not a broker-partition name such as 0-3")
        broker, _, partition = name.partition("-")
        return cls(topic, int(broker), int(partition))

    @classmethod
    def numbered(cls, topic: str, partition: int) -> TopicPartition:
        """Return a partition of Kafka 0.8 or later."""
        return cls(topic, NO_BROKER, partition)

    @classmethod
    def parse_any(cls, topic: str, name: str) -> TopicPartition:
        """Read a name of either kind. Raises ValueError for anything else."""
        return cls.parse(topic, name) if "-" in name or not name.isdigit() else cls.parse_numbered(topic, name)

    @classmethod
    def parse_numbered(cls, topic: str, name: str) -> TopicPartition:
        """Read the name of a partition of 0.8 or later. Raises ValueError for anything else."""
        if not _NUMBER.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is not the number of a partition")
        return cls(topic, NO_BROKER, int(name))

"""The name of a partition in Kafka 0.7: a topic, the broker that holds it, and its number on that broker.

Ring 0. `broker-partition` (`0-3`) is how ZooKeeper's owner and offset nodes spell it (spec 001; golden notes, 4), and
that text, not the numbers, is the sort key of the rebalance (golden notes, 5: `0-10` comes before `0-2`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: Numbers are int32 on the wire.
_NAME = re.compile(r"(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,9})")


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
        """Read `broker-partition` text. Raises ValueError for anything else, leading zeros too: no peer writes them."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is not a broker-partition name such as 0-3")
        broker, _, partition = name.partition("-")
        return cls(topic, int(broker), int(partition))

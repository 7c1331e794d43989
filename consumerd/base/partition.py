"""The name of a partition: in Kafka 0.7 a topic, the broker that holds it, and its number on that broker.

Ring 0. `broker-partition` (`0-3`) is how ZooKeeper's owner and offset nodes spell it (spec 001; golden notes, 4), and
that text, not the numbers, is the sort key of the rebalance (golden notes, 5: `0-10` comes before `0-2`). Since 0.8 a
partition is numbered in its topic and moves between brokers: its `broker` is NO_BROKER, and its name the number alone.

A partition's log may become another one under the same name: its topic is deleted and created again, or its end is cut
off by an unclean election and grows again. An offset alone cannot show that, so a position is an offset and a `LogId`.
"""

from __future__ import annotations

import base64
import re
from typing import Final, NamedTuple

#: The broker of partitions whose name has no broker (0.8 and later).
NO_BROKER: Final = -1
#: Numbers are int32 on the wire.
_NAME = re.compile(r"(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,9})")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")


class TopicPartition(NamedTuple):
    """One partition of one topic (in 0.7, on one broker): the unit of ownership, order and offsets.

    Tuples compare numerically; for the order of 0.7's rebalance, sort by `name`, or `order`.
    """

    topic: str
    broker: int
    partition: int

    @property
    def name(self) -> str:
        """`broker-partition`, or the number alone, as in the znodes of owners and offsets."""
        return str(self.partition) if self.broker == NO_BROKER else f"{self.broker}-{self.partition}"

    def order(self) -> tuple[str, int, str]:
        """The sort key by topic and then, in 0.7, by name, as of 0.7's rebalance; by number since 0.8."""
        return self.topic, self.partition if self.broker == NO_BROKER else -1, self.name

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
        if not name.isdigit() and "-" not in name:
            raise ValueError(f"{name[:80]!r} is not the name of a partition, such as 0-3 (0.7) or 3 (0.8 and later)")
        return cls.parse(topic, name) if "-" in name else cls.parse_numbered(topic, name)

    @classmethod
    def parse_numbered(cls, topic: str, name: str) -> TopicPartition:
        """Read the name of a partition of 0.8 or later. Raises ValueError for anything else."""
        if not _NUMBER.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is not the number of a partition")
        return cls(topic, NO_BROKER, int(name))


class LogId(NamedTuple):
    """What is known of the log that a position was read from; None: its dialect or broker does not tell.

    `topic_id`: the 16 bytes by which brokers since 2.8 know the topic. `leader_epoch`: that of the last message before
    the position; since 0.11 each batch has one, and a message with the same offset and epoch is the same message
    (KIP-320). `zxid`: a transaction of ZooKeeper at which the position was of this log, for groups there since 0.8; a
    topic whose node was created later is another one. `epoch_start`: the offset of the first message of that leader
    epoch, where the reader saw the epoch begin.
    """

    topic_id: bytes | None = None
    leader_epoch: int | None = None
    zxid: int | None = None
    epoch_start: int | None = None

    def replaced_by(self, now: LogId) -> bool:
        """Whether the topic of a position of this log was created again before `now`, its present identity."""
        if self.topic_id is not None and now.topic_id is not None:
            return self.topic_id != now.topic_id
        return self.zxid is not None and now.zxid is not None and self.zxid < now.zxid

    def without_epoch(self) -> LogId:
        """The same log at a position of which no leader epoch is known."""
        return self._replace(leader_epoch=None, epoch_start=None)

    @classmethod
    def from_text(cls, topic_id: str | None, leader_epoch: int | None) -> LogId:
        """Make it of what batches tell: the topic id as text. Anything but a topic id counts as unknown."""
        known = topic_id is not None and _TOPIC_ID.fullmatch(topic_id)
        return cls(base64.urlsafe_b64decode(f"{topic_id}==") if known else None, leader_epoch)

    @property
    def topic_id_text(self) -> str | None:
        """The topic id as Kafka's tools print it: 22 characters of URL-safe base64."""
        return None if self.topic_id is None else base64.urlsafe_b64encode(self.topic_id).decode().rstrip("=")

    def __str__(self) -> str:
        """Name what is known, for errors and logs."""
        known = {"topic id": self.topic_id_text, "leader epoch": self.leader_epoch, "created at zxid": self.zxid}
        return ", ".join(f"{name} {value}" for name, value in known.items() if value is not None) or "no identity"


#: The log of a position of which nothing more is known.
UNKNOWN_LOG: Final = LogId()

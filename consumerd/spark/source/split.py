"""What splits of all kinds have: the names of their partitions."""

from __future__ import annotations


class PartitionRange:
    """The messages of one partition from offset `start` up to `end`; `topic_id`: the topic's, None for unknown."""

    topic: str
    partition: int
    start: int
    end: int
    broker: int | None
    topic_id: str | None = None

    @property
    def broker_partition(self) -> str:
        """`broker-partition` as 0.7 spells it, such as `0-2`; the partition alone where the broker is not known."""
        return broker_partition(self.broker, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_partition} from {self.start} to {self.end}"


def broker_partition(broker: int | None, partition: int) -> str:
    """The column of that name; see `PartitionRange.broker_partition`."""
    return str(partition) if broker is None else f"{broker}-{partition}"

"""A split of 0.7: a range of one segment, and the place of that segment.

Strategy: frozen values without behaviour, which are pickled from the driver to executors. A split begins and ends at
boundaries of the outer message set and never crosses a segment.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileRange:
    """A segment file. `path`: absolute, or a URL for fsspec; packed where it ends in `.gz`.

    `segment_start`: the log offset of the file's first byte (of the unpacked file's, where it is packed).
    """

    path: str
    segment_start: int

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class BrokerRange:
    """A live broker that serves the segment."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, repr=False)
class V07Split:
    """The messages of one partition from offset `start` up to `end`. `broker`: its id, None where it is unknown."""

    topic: str
    broker: int | None
    partition: int
    start: int
    end: int
    location: FileRange | BrokerRange

    @property
    def topic_id(self) -> None:
        """Topics of 0.7 have none."""
        return

    @property
    def broker_partition(self) -> str:
        """`broker-partition` as 0.7 spells it, such as `0-2`; the partition alone where the broker is not known."""
        return broker_partition(self.broker, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_partition} from {self.start} to {self.end}"


def broker_partition(broker: int | None, partition: int) -> str:
    """The column of that name; see `V07Split.broker_partition`."""
    return str(partition) if broker is None else f"{broker}-{partition}"

"""Splits: the parts of partitions that tasks read, and where each is.

Strategy: frozen values without behaviour, which are pickled from the driver to executors. A split of 0.7 begins and
ends at boundaries of the outer message set and never crosses a segment. Offsets of 0.8 and later count messages, so a
range may be cut anywhere: a batch or compressed message that crosses a border is read by both tasks, and each keeps the
messages of its range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from consumerd.spark.source.option_values import BootstrapLocation


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
class V07Split(PartitionRange):
    """The messages of one partition from offset `start` up to `end`. `broker`: its id, None where it is unknown."""

    topic: str
    broker: int | None
    partition: int
    start: int
    end: int
    location: FileRange | BrokerRange


@dataclass(frozen=True, repr=False)
class V08Split(PartitionRange):
    """The messages of one partition from offset `start` up to `end`.

    `leader`: the address of the broker that led it when the split was planned; later leaders are looked up. `topic_id`:
    the id of the topic then, as Kafka's tools print it, None where brokers have none; another one is another log.
    `last_epoch`: the leader epoch of the last planned message, None for unknown; a message of a later one was written
    after the end of the log was cut off.
    """

    topic: str
    partition: int
    start: int
    end: int
    location: BootstrapLocation
    leader: tuple[str, int] | None = None
    topic_id: str | None = None
    last_epoch: int | None = None

    #: Partitions of 0.8 and later have numbers without a broker, whichever leads them.
    broker = None


class SegmentPart(NamedTuple):
    """A place in a segment file where a batch begins: its position in bytes, and its first offset."""

    position: int
    offset: int


@dataclass(frozen=True, repr=False)
class StoredSplit(PartitionRange):
    """The messages of one partition from offset `start` up to `end`, which are in one segment file.

    `broker`: whose copy of the partition it is; None where the layout does not name it. `part`: where reading begins.
    """

    topic: str
    broker: int | None
    partition: int
    start: int
    end: int
    location: FileRange
    part: SegmentPart


class RangeFile(NamedTuple):
    """A file with all messages of [start, end) of a partition's log; both are log offsets."""

    start: int
    end: int
    path: str


@dataclass(frozen=True, repr=False)
class FilesSplit(PartitionRange):
    """The messages of one partition from offset `start` up to `end`, which are in `files`, in order."""

    topic: str
    broker: int
    partition: int
    start: int
    end: int
    files: tuple[RangeFile, ...]


#: A part of one partition that is read as a whole: by a task of Spark's, or a worker process.
Split: TypeAlias = V07Split | V08Split | StoredSplit | FilesSplit

"""A split of a partition of 0.8 or later: a range of offsets, and the leader to fetch it from.

Strategy: a frozen value, like the splits of segments. Offsets count messages, so a range may be cut anywhere: a batch
or compressed message that crosses a border is read by both tasks, and each keeps the messages of its range.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from consumerd.spark.source.split import PartitionRange

if TYPE_CHECKING:
    from consumerd.spark.source.option_values import BootstrapLocation
    from consumerd.spark.source.v07.split import FileRange


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


def cut(start: int, end: int, most: int) -> list[tuple[int, int]]:
    """[start, end) in pieces of about the same size, none larger than `most`; 0: in one piece."""
    if start >= end:
        return []
    pieces = -(-(end - start) // most) if most else 1
    return list(pairwise(start + (end - start) * number // pieces for number in range(pieces + 1)))

"""A split of 0.7: a range of one segment, and the place of that segment.

Strategy: frozen values without behaviour, which are pickled from the driver to executors. A split begins and ends at
boundaries of the outer message set and never crosses a segment.
"""

from __future__ import annotations

from dataclasses import dataclass

from consumerd.spark.source.split import PartitionRange


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

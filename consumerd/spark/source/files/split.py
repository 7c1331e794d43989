"""What one Spark task reads of the `files` handler's output: some neighbouring ranges of one partition.

Strategy: a frozen value, as the splits of segments are; how ranges are put together to splits is decided here, too,
from offsets alone. The ranges are small (a batch each), so a split takes as many as fit; it never cuts one, unless the
offsets that were asked for do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from consumerd.partition import TopicPartition
from consumerd.spark.source.files.listing import RangeFile, within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, repr=False)
class FilesSplit(InputPartition):
    """The messages of one partition from offset `start` up to `end`, which are in `files`, in order."""

    topic: str
    broker: int
    partition: int
    start: int
    end: int
    files: tuple[RangeFile, ...]

    @property
    def broker_partition(self) -> str:
        """`broker-partition` as 0.7 spells it, such as `0-2`."""
        return f"{self.broker}-{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_partition} from {self.start} to {self.end}"


def files_splits(
    topic: str, broker_partition: str, files: Sequence[RangeFile], start: int, end: int, max_bytes: int
) -> Iterator[FilesSplit]:
    """Splits for [start, end) of one partition; together they hold each message of it once.

    `files`: what `ranges` lists for the partition. `max_bytes`: of the log, per split; a range that is larger is a
    split of its own.
    """
    _, broker, partition = TopicPartition.parse(topic, broker_partition)
    group: list[RangeFile] = []
    for file in within(files, start, end):
        if group and file.end - group[0].start > max_bytes:
            yield _split(topic, broker, partition, start, end, group)
            group = []
        group.append(file)
    if group:
        yield _split(topic, broker, partition, start, end, group)


def _split(topic: str, broker: int, partition: int, start: int, end: int, group: list[RangeFile]) -> FilesSplit:
    low, high = max(start, group[0].start), min(end, group[-1].end)
    return FilesSplit(topic, broker, partition, low, high, tuple(group))

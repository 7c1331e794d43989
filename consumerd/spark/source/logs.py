"""What planning knows of partitions and of where they are: two protocols, which every dialect implements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.datasource import InputPartition

    from consumerd.spark.source.offsets import Key


class PartitionLog(Protocol):
    """One partition at the moment of a look. Offsets are those of the log; `end` is that of the last whole message."""

    @property
    def key(self) -> Key:
        """Topic, and the partition's name."""
        ...

    @property
    def broker(self) -> int | None:
        """The broker's id, None where nobody knows it."""
        ...

    @property
    def partition(self) -> int:
        """The partition's number."""
        ...

    @property
    def start(self) -> int:
        """The first offset that can be read."""
        ...

    @property
    def end(self) -> int:
        """Where the next message will begin."""
        ...

    def gaps(self) -> Sequence[tuple[int, int]]:
        """Ranges between `start` and `end` that are not there."""
        ...

    def message_at(self, offset: int) -> int | None:
        """The start of the message that holds the byte at `offset`, `offset` where one begins; None: not sure."""
        ...

    def limited(self, start: int, most: int) -> int:
        """A boundary after `start`: the last one that is known within `most` bytes, at least one message further."""
        ...

    def before(self, time_ms: int) -> int:
        """Where to start so as to see all that was written at `time_ms` (since 1970) or later, or is not sure to be."""
        ...

    def splits(self, start: int, end: int, max_bytes: int) -> list[InputPartition]:
        """What reads the messages from `start` to `end`, each once; about `max_bytes` each, 0: not cut."""
        ...


class Origin(Protocol):
    """Where partitions are. May keep what it found out between looks."""

    def snapshot(self) -> Mapping[Key, PartitionLog]:
        """The partitions that were chosen and are there now. Raises a ConsumerdError where that cannot be told."""
        ...

    def missing(self, found: Mapping[Key, PartitionLog]) -> str | None:
        """What was chosen by name and is not in `found`, as one sentence."""
        ...

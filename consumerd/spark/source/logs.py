"""The protocols through which planning sees partitions; every dialect implements both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from consumerd.member.fetch.log_changes import LogChange
    from consumerd.spark.source.offsets import Key, LogOffset
    from consumerd.spark.source.split import Split


class PartitionLog(Protocol):
    """A snapshot of one partition. Offsets are those of the log; `end` is that of the last whole message."""

    @property
    def key(self) -> Key:
        """Topic, and the partition's name."""
        ...

    @property
    def broker(self) -> int | None:
        """The broker's id, None if it is unknown."""
        ...

    @property
    def partition(self) -> int:
        """The partition's number."""
        ...

    @property
    def topic_id(self) -> str | None:
        """The id of the topic that the log belongs to, as Kafka's tools print it; None if it has none."""
        ...

    @property
    def start(self) -> int:
        """The first offset that can be read."""
        ...

    @property
    def end(self) -> int:
        """The offset at which the next message will begin."""
        ...

    def gaps(self) -> Sequence[tuple[int, int]]:
        """Ranges between `start` and `end` that do not exist."""
        ...

    def message_at(self, offset: int) -> int | None:
        """The start of the message that holds the byte at `offset`, `offset` where one begins; None: not sure."""
        ...

    def resumed(self, offset: int) -> int:
        """As `message_at`, of an offset at which reading ended: quickly, and `offset` where it is not sure."""
        ...

    def limited(self, start: int, most: int) -> int:
        """A boundary after `start`: the last one that is known within `most` bytes, at least one message further."""
        ...

    def before(self, time_ms: int) -> int:
        """Return the offset from which to read all messages that are, or may be, of `time_ms` (since 1970) or later."""
        ...

    def splits(self, start: int, end: int, max_bytes: int) -> list[Split]:
        """Splits that read the messages from `start` to `end`, each once; about `max_bytes` each, 0: not cut."""
        ...


class Origin(Protocol):
    """The origin of partitions. May cache between snapshots."""

    def snapshot(self) -> Mapping[Key, PartitionLog]:
        """The selected partitions that exist now. Raises a ConsumerdError if that is unknown."""
        ...

    def missing(self, found: Mapping[Key, PartitionLog]) -> str | None:
        """Selected names that are not in `found`, as one sentence."""
        ...

    def compared(self, known: Mapping[Key, LogOffset]) -> Mapping[Key, LogChange | None]:
        """Compare positions with the logs of the last snapshot by leader epochs: the change, None for the same log.

        Without positions of which that is unknown. Raises a ConsumerdError if the brokers do not answer.
        """
        ...

    def with_epochs(self, offsets: Mapping[Key, LogOffset]) -> Mapping[Key, LogOffset]:
        """Offsets with the leader epoch of the message before each, where it is known.

        `leader_epoch` of an argument: that of an earlier message of the log, if one is known. Raises as `compared`.
        """
        ...


class EveryOffset:
    """The part of a `PartitionLog` whose offsets count messages: each is a boundary, and missing ones count as read."""

    end: int

    def gaps(self) -> Sequence[tuple[int, int]]:
        """Return nothing: records that compaction removed count as read."""
        return ()

    def message_at(self, offset: int) -> int:
        """Return it."""
        return offset

    def resumed(self, offset: int) -> int:
        """Return it."""
        return offset

    def limited(self, start: int, most: int) -> int:
        """Return the offset this many messages further, or the end."""
        return min(start + most, self.end)


class WithoutEpochs:
    """The part of an `Origin` whose messages have no leader epochs."""

    def compared(self, known: Mapping[Key, LogOffset]) -> Mapping[Key, LogChange | None]:
        """Return nothing: only leader epochs show that a log was cut off."""
        return {}

    def with_epochs(self, offsets: Mapping[Key, LogOffset]) -> Mapping[Key, LogOffset]:
        """Return them as they are."""
        return offsets

"""The findings of a comparison: counts per range, partition and topic, with a few example messages. No I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from consumerd.base.partition import TopicPartition
from consumerd.operate.migrate.ranges import SourceRange


@dataclass(slots=True)
class MessageCounts:
    """Counts of messages, of a range or of many. `duplicated` and `foreign` count every extra copy."""

    #: Messages of the source.
    source: int = 0
    #: Of these, how many the target has as they were, at least once.
    there: int = 0
    missing: int = 0
    #: There, but with another payload or checksum.
    changed: int = 0
    duplicated: int = 0
    #: They came first when a later one of their source partition had come.
    out_of_order: int = 0
    #: They claim to be messages of the source that it does not have, or have no identity at all.
    foreign: int = 0

    def add(self, other: MessageCounts) -> None:
        """Count what `other` counts, too."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def is_clean(self, *, duplicates: bool = False, foreign: bool = False) -> bool:
        """Whether there are no differences, except for allowed ones."""
        return not (
            self.missing
            or self.changed
            or self.out_of_order
            or (self.duplicated and not duplicates)
            or (self.foreign and not foreign)
        )

    def as_json(self) -> dict[str, int]:
        """Return the counts by their names."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ExampleMessage:
    """One message that is wrong: which, and how."""

    kind: str
    message: str


@dataclass(slots=True)
class RangeReport:
    """A range of a source partition, with the counts of its messages."""

    range: SourceRange
    counts: MessageCounts

    def as_json(self) -> dict[str, Any]:
        """As an object, with the sums as hexadecimal text.

        The target has no sum in order where the range's messages came in several of its partitions.
        """
        here, there = self.range.source, self.range.target
        return {
            "start": self.range.start,
            "end": self.range.end,
            **self.counts.as_json(),
            "sum": {"source": _text(here.total), "target": _text(there.total)},
            "order": {"source": _text(here.in_order), "target": _text(there.in_order)},
        }


def _text(number: int | None) -> str | None:
    return None if number is None else f"{number:016x}"


@dataclass(slots=True)
class PartitionReport:
    """A source partition. `places`: the partitions of the target that its messages are in."""

    partition: TopicPartition
    topic: str
    start: int
    end: int
    places: list[int]
    ranges: list[RangeReport]
    counts: MessageCounts
    #: Messages of the partition on the target from before `start` or behind `end`.
    outside: int = 0
    unreadable: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """As an object."""
        return {
            "partition": str(self.partition),
            "topic": self.topic,
            "places": self.places,
            "start": self.start,
            "end": self.end,
            **self.counts.as_json(),
            "outside": self.outside,
            "unreadable": self.unreadable,
            "ranges": [each.as_json() for each in self.ranges],
        }


@dataclass(slots=True)
class ComparisonReport:
    """All of it. `strangers`: topic/partition of the target -> messages there that are of no partition compared."""

    partitions: list[PartitionReport]
    strangers: dict[str, int]
    examples: list[ExampleMessage]

    @property
    def totals(self) -> MessageCounts:
        """The counts of all partitions, with strangers among the foreign."""
        totals = MessageCounts(foreign=sum(self.strangers.values()))
        for partition in self.partitions:
            totals.add(partition.counts)
        return totals

    def is_clean(self, *, duplicates: bool = False, foreign: bool = False) -> bool:
        """Whether the target equals the source, except allowed differences; all of the source was readable."""
        return self.totals.is_clean(duplicates=duplicates, foreign=foreign) and not any(
            partition.unreadable for partition in self.partitions
        )

    def as_json(self, *, duplicates: bool, foreign: bool) -> dict[str, Any]:
        """One object."""
        return {
            "clean": self.is_clean(duplicates=duplicates, foreign=foreign),
            "totals": self.totals.as_json(),
            "partitions": [each.as_json() for each in self.partitions],
            "strangers": self.strangers,
            "examples": [asdict(each) for each in self.examples],
        }


class ExampleMessages:
    """The first few messages of each kind."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counted: dict[str, int] = {}
        self.found: list[ExampleMessage] = []

    def add(self, kind: str, message: object) -> None:
        """Keep it, if there is room."""
        count = self._counted[kind] = self._counted.get(kind, 0) + 1
        if count <= self._most:
            self.found.append(ExampleMessage(kind, str(message)))

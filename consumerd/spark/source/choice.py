"""The partitions that `assign`, `subscribe` or `subscribePattern` select.

Strategy: pure. Missing names are reported in one sentence with the closest existing one; a pattern that matches nothing
yet is not an error, because topics may be created later.
"""

from __future__ import annotations

from collections.abc import Collection

from consumerd.base.errors import did_you_mean
from consumerd.spark.source.offsets import Key
from consumerd.spark.source.option_values import (
    Assign,
    BootstrapLocation,
    BrokersLocation,
    PathLocation,
    Subscribe,
    SubscribePattern,
    ZooKeeperLocation,
)
from consumerd.spark.source.options import SourceOptions
from consumerd.wire.registry.topic_filter import Whitelist


class PartitionChoice:
    """The partitions that an option selects."""

    def __init__(self, topics: Assign | Subscribe | SubscribePattern) -> None:
        self._assign = topics.partitions if isinstance(topics, Assign) else None
        self._named = tuple(topics.topics if isinstance(topics, Subscribe) else self._assign or ())
        self._filter = Whitelist(topics.pattern) if isinstance(topics, SubscribePattern) else None

    @property
    def topics(self) -> tuple[str, ...] | None:
        """The topics that are named; None for a pattern."""
        return None if self._filter is not None else self._named

    @property
    def assigned(self) -> list[Key]:
        """The partitions that are named one by one."""
        return [(topic, name) for topic, names in (self._assign or {}).items() for name in names]

    def wants_topic(self, topic: str) -> bool:
        """Whether partitions of this topic are selected. Raises RegistryError for a pattern that is too complex."""
        return topic in self._named if self._filter is None else self._filter.matches(topic)

    def wants(self, key: Key) -> bool:
        """Whether this partition is selected."""
        topic, name = key
        return self.wants_topic(topic) and (self._assign is None or name in self._assign[topic])

    def missing(self, found: Collection[Key], topics: Collection[str], known: Collection[Key] = ()) -> str | None:
        """Return a sentence about the names that do not exist; None if nothing is missing.

        `topics`: all that exist; `known`: partitions that exist, chosen or not, as far as known.
        """
        have = {topic for topic, _ in found}
        for topic in self._named:
            if topic not in have and topic not in topics:
                return f"topic {topic} does not exist{_hint(topic, topics)}"
            if topic not in have and self._assign is None:
                return f"topic {topic} has no partition that can be read now"
        for topic, name in self.assigned:
            if (topic, name) not in found:
                names = sorted({other for each, other in (*found, *known) if each == topic})
                return f"partition {topic}/{name} does not exist{_hint(name, names) if names else ''}"
        return None


def deselected(options: SourceOptions, key: Key) -> str | None:
    """The option that no longer selects a partition that was read, as it is now; None if it is selected."""
    topic, name = key
    if isinstance(options.location, BrokersLocation) and name.partition("-")[0] not in map(
        str, options.location.brokers
    ):
        return f"option brokers has {', '.join(map(str, options.location.brokers))} now"
    if PartitionChoice(options.topics).wants(key):
        return None
    match options.topics:
        case Subscribe(topics):
            return f"option subscribe is {','.join(topics)} now"
        case SubscribePattern(pattern):
            return f"option subscribePattern is {pattern} now"
        case Assign():
            return f"option assign is without {topic}/{name} now"


def renamed(options: SourceOptions, key: Key) -> str | None:
    """The option by which a partition that was read has another name now, as it is now; None if it has not.

    Another name is another identity: all messages would be read again, as other ones.
    """
    broker = key[1].rpartition("-")[0]
    match options.location:
        case PathLocation(layout=layout) if "{broker}" in layout:
            same, now = bool(broker), f"option layout is {layout}"
        case PathLocation(broker=number):
            same = broker == ("" if number is None else str(number))
            now = f"option broker is {'not set' if number is None else number}"
        case BootstrapLocation():
            same, now = not broker, "option bootstrap is set"
        case ZooKeeperLocation():
            same, now = bool(broker), "option zookeeper is set"
        case _:
            return None
    return None if same else f"{now} now"


def _hint(name: str, known: Collection[str]) -> str:
    existing = f"; existing: {', '.join(sorted(known)[:10])}" if known else "; there is nothing to read"
    return did_you_mean(name, known, existing)

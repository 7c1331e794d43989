"""The partitions that `assign`, `subscribe` or `subscribePattern` select.

Strategy: pure. Missing names are reported in one sentence with the closest existing one; a pattern that matches nothing
yet is not an error, because topics may be created later.
"""

from __future__ import annotations

from collections.abc import Collection

from consumerd.base.errors import did_you_mean
from consumerd.spark.source.offsets import Key
from consumerd.spark.source.options import (
    Assign,
    BootstrapLocation,
    BrokersLocation,
    PathLocation,
    SourceOptions,
    Subscribe,
    SubscribePattern,
    ZooKeeperLocation,
)
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


def topic_change(options: SourceOptions, key: Key) -> str | None:
    """The option that no longer selects a partition that was read, as it is now; None where it is selected."""
    topic, name = key
    choice = PartitionChoice(options.topics)
    match options.topics:
        case _ if choice.wants(key):
            return None
        case Subscribe(topics):
            return f"option subscribe is {','.join(topics)} now, without the topic {topic}"
        case SubscribePattern(pattern):
            return f"option subscribePattern is {pattern} now, which does not match the topic {topic}"
        case _:
            return f"option assign does not name {topic}/{name} now"


def broker_change(options: SourceOptions, key: Key) -> str | None:
    """The option by which partitions have names of another form, or of other brokers, than one that was read."""
    broker = key[1].rpartition("-")[0]
    match options.location:
        case PathLocation(_, layout, number) if "{broker}" not in layout and broker != ("" if number is None else str(number)):
            return f"option broker is {'not set' if number is None else number} now" + (f", not {broker}" if broker else "")
        case PathLocation(_, layout) if "{broker}" in layout and not broker:
            return f"option layout is {layout} now, which names brokers"
        case BrokersLocation(brokers) if not broker or int(broker) not in brokers:
            return f"option brokers names {', '.join(map(str, sorted(brokers)))} now" + (f", not {broker}" if broker else "")
        case BootstrapLocation() if broker:
            return "option bootstrap names a cluster of 0.8 or later now"
        case ZooKeeperLocation() if not broker:
            return "option zookeeper names a cluster of 0.7 now"
    return None


def _hint(name: str, known: Collection[str]) -> str:
    existing = f"; existing: {', '.join(sorted(known)[:10])}" if known else "; there is nothing to read"
    return did_you_mean(name, known, existing)

"""The mapping to the target: the name of its topic, and the number that a source partition stands for.

Strategy: with the placing `keep`, all messages of a source partition go to partition (its number mod n) of the target,
which keeps their order. A partition of 0.8 or later has a number; of 0.7 it has a broker and a number, which become
one: broker * partitions per broker + partition. With as many partitions on the target as the source has in all,
clusters whose brokers are numbered from 0 are forwarded one to one. When n changes, places change: order holds among
the messages before, and among those after.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Protocol

from consumerd.base.partition import NO_BROKER, TopicPartition

#: The names of topics that brokers of 0.8 and later allow.
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_FIELD: Final = "{topic}"


class TopicNaming:
    """The target's topic for each of the source: that of `table`, else `template` with `{topic}` replaced.

    Raises ValueError for names that no broker would take.
    """

    def __init__(self, template: str = _FIELD, table: Mapping[str, str] | None = None) -> None:
        self._template = template
        self._table = dict(table or {})
        if not is_topic(template.replace(_FIELD, "t")):
            raise ValueError(
                f"topic = {template!r} does not give valid topic names; {_FIELD} stands for the name of the "
                "source topic"
            )
        for source, target in self._table.items():
            if not isinstance(target, str) or not is_topic(target):
                raise ValueError(f"topics.{source} must be a valid topic name, not {target!r}")

    def target(self, topic: str) -> str:
        """The target's topic. Raises ValueError where its name is not valid."""
        name = self._table.get(topic) or self._template.replace(_FIELD, topic)
        if not is_topic(name):
            raise ValueError(
                f"topic {topic!r} would be forwarded to {name!r}, which is not a valid topic name; rename "
                "it in `topics` (--rename)"
            )
        return name


def is_topic(name: str) -> bool:
    """Whether the name is valid at brokers of 0.8 and later."""
    return _TOPIC.fullmatch(name) is not None and name not in {".", ".."}


class SourceNumbering(Protocol):
    """The number that a source partition stands for."""

    async def number(self, partition: TopicPartition) -> int:
        """0 or more, always the same for a partition. Raises BrokerError, ZooKeeperError while it is unknown."""
        ...


class BrokerMajorNumbering:
    """broker * `per_broker` + partition, with one `per_broker` for all topics and brokers."""

    def __init__(self, per_broker: int = 1) -> None:
        self._per_broker = per_broker

    async def number(self, partition: TopicPartition) -> int:
        """Return the number, without a lookup."""
        if partition.broker == NO_BROKER:
            return partition.partition
        return partition.broker * self._per_broker + partition.partition

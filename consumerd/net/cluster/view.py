"""The current registrations of 0.7 in ZooKeeper: brokers, topics, groups. Read at each call, nothing is kept.

Strategy: list, then read all children at once, bounded; a node that vanished in between is left out. A value that no
peer of 0.7 writes is left out too, with a warning in the log or a line in `GroupView.problems`, so that one damaged
node does not hide the rest; nodes in the dialect of 0.8+ raise DialectError, since then nothing here would be true.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from consumerd.base.calls import read_all
from consumerd.base.errors import reason_of
from consumerd.base.partition import TopicPartition
from consumerd.net.cluster.groups import GroupReader
from consumerd.net.cluster.reading import children, data, read_broker_ids
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.paths import topic_broker_path, topic_path, topics_path
from consumerd.wire.registry.subscription import parse_subscription
from consumerd.wire.registry.values import RegisteredBroker, parse_broker, parse_partition_count

log = structlog.get_logger(__name__)


class ClusterView(GroupReader[RegisteredBroker]):
    """Reads through `zk`. Every method raises the errors of its calls (ZooKeeperError) and DialectError."""

    kafka = "0.7"
    _subscription = staticmethod(parse_subscription)
    _partition = TopicPartition.parse
    _broker = staticmethod(parse_broker)

    async def read_topics(self, names: Iterable[str] | None = None) -> dict[str, dict[int, int]]:
        """Read topic -> broker id -> number of partitions; all topics, or those of `names` that exist.

        A topic without a live broker has an empty map.
        """
        if names is None:
            wanted = await children(self._zk, topics_path())
        else:
            found = await read_all(dict.fromkeys(names), lambda topic: self._zk.exists(topic_path(topic)))
            wanted = [topic for topic, stat in found.items() if stat is not None]
        brokers = await read_all(wanted, lambda topic: read_broker_ids(self._zk, topic_path(topic)))
        pairs = [(topic, broker) for topic, ids in brokers.items() for broker in ids]
        texts = await read_all(pairs, lambda pair: data(self._zk, topic_broker_path(*pair)))
        topics: dict[str, dict[int, int]] = {topic: {} for topic in wanted}
        for (topic, broker), text in texts.items():
            if text is not None:
                try:
                    topics[topic][broker] = parse_partition_count(text)
                except RegistryError as error:
                    log.warning("partition_count_unreadable", topic=topic, broker=broker, reason=reason_of(error))
        return topics

"""The current registrations of brokers of 0.8 and later in ZooKeeper, and what old consumers keep there.

Strategy: as `ClusterView`: list and read all children at each call, and leave out nodes that vanished, or that no peer
writes. Groups are read by the same code; nodes in the dialect of 0.7 raise DialectError.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import structlog

from consumerd.base.calls import read_all
from consumerd.base.errors import reason_of
from consumerd.base.partition import TopicPartition
from consumerd.net.cluster.groups import GroupReader
from consumerd.net.cluster.reading import children, data
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.paths import partition_state_path, topic_path, topics_path
from consumerd.wire.registry.v08.broker import BrokerNode, parse_broker_node
from consumerd.wire.registry.v08.subscription import parse_subscription_v08
from consumerd.wire.registry.v08.topic import NO_LEADER, parse_partition_state, parse_topic_assignment

log = structlog.get_logger(__name__)


class PartitionView(NamedTuple):
    """A partition: the broker ids of its replicas, its leader (None: no leader), and the replicas in sync."""

    replicas: tuple[int, ...]
    leader: int | None
    isr: tuple[int, ...]


#: Topic -> partition number -> its state.
V08Topics = dict[str, dict[int, PartitionView]]


class V08ClusterView(GroupReader[BrokerNode]):
    """Reads through `zk`. Every method raises the errors of its calls (ZooKeeperError) and DialectError."""

    kafka = "0.8 or later"
    _subscription = staticmethod(parse_subscription_v08)
    _partition = TopicPartition.parse_numbered
    _broker = staticmethod(parse_broker_node)

    def _partition_of_other(self, topic: str, name: str) -> TopicPartition | None:
        """Read the name that pykafka gives, `leader-partition`."""
        try:
            return TopicPartition.numbered(topic, TopicPartition.parse(topic, name).partition)
        except ValueError:
            return None

    async def read_assignments(self, names: Iterable[str] | None = None) -> dict[str, dict[int, tuple[int, ...]]]:
        """Read topic -> partition number -> broker ids of its replicas; all topics, or those of `names` that exist."""
        wanted = await children(self._zk, topics_path()) if names is None else list(dict.fromkeys(names))
        texts = await read_all(wanted, lambda topic: data(self._zk, topic_path(topic)))
        topics = {}
        for topic, text in texts.items():
            if text is not None:
                try:
                    topics[topic] = parse_topic_assignment(text)
                except RegistryError as error:
                    log.warning("topic_unreadable", topic=topic, reason=reason_of(error))
                    topics[topic] = {}
        return topics

    async def read_topics(self, names: Iterable[str] | None = None) -> V08Topics:
        """Read all topics, or those of `names` that exist, with the state of their partitions.

        A topic whose node cannot be read has no partitions; a partition without a state from the controller has no
        leader.
        """
        assignments = await self.read_assignments(names)
        pairs = [(topic, number) for topic, partitions in assignments.items() for number in partitions]
        texts = await read_all(pairs, lambda pair: data(self._zk, partition_state_path(*pair)))
        topics: V08Topics = {topic: {} for topic in assignments}
        for (topic, number), text in texts.items():
            found = PartitionView(assignments[topic][number], None, ())
            try:
                if text is not None:
                    state = parse_partition_state(text)
                    leader = None if state.leader == NO_LEADER else state.leader
                    found = found._replace(leader=leader, isr=state.isr)
            except RegistryError as error:
                log.warning("partition_state_unreadable", topic=topic, partition=number, reason=reason_of(error))
            topics[topic][number] = found
        return topics

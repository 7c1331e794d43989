"""One look at a group, for the membership machine: members, topics, owner nodes, each read arming a watch.

Strategy: every path is announced to `watch` before it is read, so that no change falls between; `paths` then holds what
was read, and watches of other paths are no longer needed. Nodes that no peer writes are left out with a warning. Where
the dialects differ is how a topic looks: brokers with counts, or one node that names its partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from consumerd.cluster.reading import children, data, read_all, watched_children, watched_data
from consumerd.group.events import GroupSnapshot
from consumerd.group.rules import topics_to_read
from consumerd.partition import NO_BROKER, TopicPartition
from consumerd.registry import (
    RegistryError,
    id_path,
    ids_path,
    owner_path,
    owners_path,
    parse_broker_id,
    parse_partition_count,
    parse_topic_assignment,
    topic_broker_path,
    topic_path,
    topics_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from consumerd.group import GroupRules, Topics
    from consumerd.group.events import TakeSnapshot
    from consumerd.ports import ZooKeeper

log = structlog.get_logger(__name__)


class SnapshotReader:
    """Reads one snapshot. All methods raise what the session raises."""

    #: Reads the name of an owner node. Raises ValueError.
    _parse_partition: Callable[[str, str], TopicPartition]

    def __init__(self, zk: ZooKeeper, group: str, watch: Callable[[str], None], rules: GroupRules) -> None:
        self._zk = zk
        self._group = group
        self._watch = watch
        self._rules = rules
        self.paths: set[str] = set()

    async def read(self, consumer_id: str, action: TakeSnapshot) -> GroupSnapshot:
        """What `action` asks for, as the member `consumer_id` sees it."""
        members = await self._members()
        own = await self._owner_session(id_path(self._group, consumer_id))
        topics = await self._topics(topics_to_read(self._rules, action.topics, members.values()))
        owners = await read_all(action.verify, lambda tp: self._owner_session(owner_path(self._group, tp)))
        claimed = await self._claimed(topics) if action.survey else None
        return GroupSnapshot(members, own, topics, owners, claimed)

    async def _members(self) -> dict[str, str]:
        names = await self._children(ids_path(self._group))
        texts = await read_all(names, lambda name: data(self._zk, id_path(self._group, name)))
        return {name: text.decode("utf-8", "replace") for name, text in texts.items() if text is not None}

    async def _topics(self, names: frozenset[str] | None) -> Topics:
        wanted = sorted(names) if names is not None else await self._children(topics_path())
        return await read_all(wanted, self._topic)

    async def _topic(self, topic: str) -> Mapping[int, Collection[int]]:
        """The numbers of its partitions by broker."""
        raise NotImplementedError

    async def _claimed(self, topics: Iterable[str]) -> frozenset[TopicPartition]:
        names = await read_all(topics, lambda topic: children(self._zk, owners_path(self._group, topic)))
        found = set()
        for topic, partitions in names.items():
            for name in partitions:
                try:
                    found.add(self._parse_partition(topic, name))
                except ValueError as error:
                    log.warning("owner_node_unreadable", group=self._group, topic=topic, node=name, error=str(error))
        return frozenset(found)

    async def _owner_session(self, path: str) -> int | None:
        stat = await self._zk.exists(self._announce(path), watch=True)
        return None if stat is None else stat.ephemeral_owner

    async def _children(self, path: str) -> list[str]:
        return await watched_children(self._zk, self._announce(path))

    def _announce(self, path: str) -> str:
        self.paths.add(path)
        self._watch(path)
        return path


class V07SnapshotReader(SnapshotReader):
    """Kafka 0.7: brokers come and go below a topic, each with its count."""

    _parse_partition = TopicPartition.parse

    async def _topic(self, topic: str) -> Mapping[int, Collection[int]]:
        counts: dict[int, range] = {}
        for name in await self._children(topic_path(topic)):
            try:
                broker = parse_broker_id(name)
                text = await data(self._zk, self._announce(topic_broker_path(topic, broker)), watch=True)
                if text is not None:
                    counts[broker] = range(parse_partition_count(text))
            except RegistryError as error:
                log.warning("topic_node_unreadable", topic=topic, node=name, error=str(error))
        return counts


class V08SnapshotReader(SnapshotReader):
    """Kafka 0.8 and later: a topic's node names its partitions; who leads them does not count."""

    _parse_partition = TopicPartition.parse_numbered

    async def _topic(self, topic: str) -> Mapping[int, Collection[int]]:
        text = await watched_data(self._zk, self._announce(topic_path(topic)))
        if text is None:
            return {}
        try:
            return {NO_BROKER: tuple(parse_topic_assignment(text))}
        except RegistryError as error:
            log.warning("topic_node_unreadable", topic=topic, error=str(error))
            return {}

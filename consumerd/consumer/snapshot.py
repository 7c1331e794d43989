"""Reading one snapshot of a group for the membership machine: members, topics, owner nodes.

Strategy: all nodes are read through `WatchedNodes`, so only changed ones cost a request. A reconciliation
(`TakeSnapshot.survey`) trusts no watch and reads again what ownership depends on: the lists of members, topics and
owner nodes, and our own nodes. Nodes that no peer writes are left out with a warning; a topic that cannot be read for a
while is taken to be as it was. The dialects differ in the nodes of a topic: brokers with counts, or one node that names
its partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from consumerd.cluster.reading import children, read_all
from consumerd.errors import ZooKeeperError, reason_of
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
from consumerd.zk.errors import ConnectionLost, NotConnected, SessionChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from consumerd.cluster.watched import Node, WatchedNodes
    from consumerd.group import GroupRules, Topics
    from consumerd.group.events import TakeSnapshot
    from consumerd.ports import ZooKeeper

log = structlog.get_logger(__name__)


class SnapshotReader:
    """Reads the snapshots of one member. All methods raise what the session raises.

    `nodes` is for this reader alone, and keeps what the last snapshot read; `owners` keeps the owner nodes, and is the
    caller's.
    """

    #: Reads the name of an owner node. Raises ValueError.
    _parse_partition: Callable[[str, str], TopicPartition]

    def __init__(self, zk: ZooKeeper, nodes: WatchedNodes, owners: WatchedNodes, group: str, rules: GroupRules) -> None:
        self._zk = zk
        self._nodes = nodes
        self._owners = owners
        self._group = group
        self._rules = rules
        self._topics_before: dict[str, Mapping[int, Collection[int]]] = {}
        self._troubles: dict[str, str] = {}
        #: What the snapshot under way has read.
        self._read: set[str] = set()
        self._reread = False

    async def read(self, consumer_id: str, action: TakeSnapshot) -> GroupSnapshot:
        """What `action` asks for, as the member `consumer_id` sees it."""
        self._read = set()
        self._reread = action.survey
        members = await self._members()
        own = await self._node(id_path(self._group, consumer_id), reread=self._reread)
        topics = await self._topics(topics_to_read(self._rules, action.topics, members.values()))
        owners = await read_all(sorted(action.verify), self._owner_session)
        claimed = await self._claimed(topics) if action.survey else None
        for path in self._nodes.paths() - self._read:
            self._nodes.forget(path)
        return GroupSnapshot(members, own.stat.ephemeral_owner if own is not None else None, topics, owners, claimed)

    async def _members(self) -> dict[str, str]:
        names = await self._children(ids_path(self._group))
        # A member's node is replaced and never written to, which its watch reports: no reconciliation reads it again.
        nodes = await read_all(names, lambda name: self._node(id_path(self._group, name)))
        return {name: node.data.decode("utf-8", "replace") for name, node in nodes.items() if node is not None}

    async def _topics(self, names: frozenset[str] | None) -> Topics:
        wanted = sorted(names) if names is not None else await self._children(topics_path())
        found = await read_all(wanted, self._topic_or_before)
        self._topics_before = {topic: layout for topic, layout in found.items() if layout is not None}
        return self._topics_before

    async def _topic_or_before(self, topic: str) -> Mapping[int, Collection[int]] | None:
        try:
            layout = await self._topic(topic)
        except (NotConnected, ConnectionLost, SessionChanged):
            raise
        except ZooKeeperError as error:
            self._complain("topic_not_readable", topic, topic, reason_of(error))
            return self._topics_before.get(topic)
        self._troubles.pop(topic, None)
        return layout

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
                    self._complain("owner_node_unreadable", f"{topic}/{name}", topic, reason_of(error))
        return frozenset(found)

    async def _owner_session(self, partition: TopicPartition) -> int | None:
        path = owner_path(self._group, partition)
        if self._reread:
            self._owners.refresh(path)
        node = await self._owners.node_if_there(path)
        return None if node is None else node.stat.ephemeral_owner

    async def _children(self, path: str) -> list[str]:
        self._read.add(path)
        if self._reread:
            self._nodes.refresh(path)
        return await self._nodes.children(path)

    async def _node(self, path: str, *, reread: bool = False) -> Node | None:
        self._read.add(path)
        if reread:
            self._nodes.refresh(path)
        return await self._nodes.node(path)

    def _complain(self, event: str, about: str, topic: str, trouble: str) -> None:
        """Log what is new, not the same again at every look."""
        if self._troubles.get(about) != trouble:
            self._troubles[about] = trouble
            log.warning(event, group=self._group, topic=topic, node=about, reason=trouble)


class V07SnapshotReader(SnapshotReader):
    """Kafka 0.7: brokers come and go below a topic, each with its count."""

    _parse_partition = TopicPartition.parse

    async def _topic(self, topic: str) -> Mapping[int, Collection[int]]:
        names = await self._children(topic_path(topic))
        counts = await read_all(names, lambda name: self._count(topic, name))
        return {parse_broker_id(name): range(count) for name, count in counts.items() if count is not None}

    async def _count(self, topic: str, name: str) -> int | None:
        try:
            broker = parse_broker_id(name)
            node = await self._node(topic_broker_path(topic, broker), reread=self._reread)
            return None if node is None else parse_partition_count(node.data)
        except RegistryError as error:
            self._complain("topic_node_unreadable", f"{topic}/{name}", topic, reason_of(error))
            return None


class V08SnapshotReader(SnapshotReader):
    """Kafka 0.8 and later: a topic's node names its partitions; who leads them does not count."""

    _parse_partition = TopicPartition.parse_numbered

    async def _topic(self, topic: str) -> Mapping[int, Collection[int]]:
        node = await self._node(topic_path(topic), reread=self._reread)
        if node is None:
            return {}
        try:
            return {NO_BROKER: tuple(parse_topic_assignment(node.data))}
        except RegistryError as error:
            self._complain("topic_node_unreadable", topic, topic, reason_of(error))
            return {}

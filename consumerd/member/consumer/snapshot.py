"""Reading one snapshot of a group for the membership machine: members, topics, owner nodes.

Strategy: all nodes are read through `WatchedNodes`, so only changed ones cost a request. A reconciliation
(`TakeSnapshot.list_owners`) trusts no watch and reads again what ownership depends on: the lists of members, topics and
owner nodes, and our own nodes. Nodes that no peer writes are left out with a warning; a topic that cannot be read for a
while is taken to be as it was. The dialects differ in the nodes of a topic: brokers with counts, or one node that names
its partitions.

What is kept of hostile nodes is bounded, and the limits lead to the same result in each member that reads the same
nodes: where the nodes of all members are too large together, or partitions too many, the largest are left out. Names
that servers before 3.5 take from any client, though no path can have them (`..`), are left out as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar

import structlog

from consumerd.base.calls import read_all
from consumerd.base.errors import ZooKeeperError, reason_of
from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.base.ports import ZooKeeper
from consumerd.group.events import MembershipSnapshot, TakeSnapshot
from consumerd.group.rules import GroupRules, Topics, topics_to_read
from consumerd.net.cluster.reading import ZNode, children
from consumerd.net.cluster.watched import WatchedNodes
from consumerd.net.zk.errors import ConnectionLost, NotConnected, SessionChanged
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.other_clients import claimant, other_client
from consumerd.wire.registry.paths import (
    check_name,
    id_path,
    ids_path,
    owner_path,
    owners_path,
    topic_broker_path,
    topic_path,
    topics_path,
)
from consumerd.wire.registry.v08.topic import parse_topic_assignment
from consumerd.wire.registry.values import MAX_PARTITIONS, parse_broker_id, parse_partition_count

Key = TypeVar("Key", int, str)
#: By topic the numbers of its partitions by broker; None for one that cannot be read.
_Layouts = dict[str, Mapping[int, Collection[int]] | None]


log = structlog.get_logger(__name__)

#: Bytes of all members' nodes that are kept; a node of a JVM member has some hundreds.
MAX_MEMBER_BYTES: Final = 16 << 20
#: Warnings that are not repeated; the number only bounds memory.
_REMEMBERED: Final = 10_000
#: Kept in place of a member's node that was left out for its size.
_TOO_LARGE: Final = b"(too large)"


class _MemberTexts:
    """Members' nodes up to `most` bytes together: beyond that, a limit for each one is halved until the rest fits.

    The limit that is left depends on the nodes, and not on the order in which they were read.
    """

    def __init__(self, most: int) -> None:
        self.texts: dict[str, bytes] = {}
        self.left_out: list[str] = []
        self._most = most
        self._each = most
        self._total = 0

    def add(self, name: str, text: bytes) -> list[str]:
        """Keep a node if it is within the limit for each; return the names of nodes that are dropped."""
        if len(text) > self._each:
            self.left_out.append(name)
            return [name]
        self.texts[name] = text
        self._total += len(text)
        dropped = []
        while self._total > self._most:
            self._each //= 2
            for large in [each for each, kept in self.texts.items() if len(kept) > self._each]:
                self._total -= len(self.texts.pop(large))
                dropped.append(large)
        self.left_out += dropped
        return dropped


def _beyond(sizes: Mapping[Key, int], most: int) -> list[Key]:
    """Return the largest, without which the rest is at most `most` together."""
    total = sum(sizes.values())
    beyond = []
    for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
        if total <= most:
            break
        total -= sizes[key]
        beyond.append(key)
    return beyond


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
        #: The paths that the present snapshot has read.
        self._read: set[str] = set()
        self._reread = False
        #: Whether a snapshot was read before: the member has registered since.
        self._looked = False
        #: Consumer id -> the session of its node, in the present snapshot.
        self._sessions: dict[str, int] = {}
        #: Members of other clients that owner nodes name.
        self._claimants: set[str] = set()
        self._others_reported = False

    async def read(self, consumer_id: str, action: TakeSnapshot) -> MembershipSnapshot:
        """Read the snapshot that `action` requests, as the member `consumer_id` sees it."""
        self._read = set()
        self._reread = action.list_owners
        self._sessions, self._claimants = {}, set()
        names: list[str] = []
        own: ZNode | None = None
        layouts: _Layouts = {}

        async def read_names() -> None:
            names.extend(self._named(ids_path(self._group), "consumer id", await self._children(ids_path(self._group))))

        async def read_own() -> None:
            nonlocal own
            own = await self._node(own_path, reread=self._reread)

        async def read_topics() -> None:
            layouts.update(await self._layouts(action.topics, {}))

        # What does not depend on the members' names is read together with them. A node that nobody made yet is not:
        # to miss it takes two requests, one after the other.
        registered, self._looked = self._looked, True
        own_path = id_path(self._group, consumer_id)
        await read_all((read_names, *([read_own] if registered else []), read_topics), lambda read: read())
        members = await self._members(names)
        if not registered and consumer_id in names:
            await read_own()
        wanted = topics_to_read(self._rules, action.topics, members.values())
        topics = self._bounded(layouts if wanted == action.topics else await self._layouts(wanted, layouts))
        owners = await read_all(sorted(action.verify), self._owner_session)
        claimed = await self._claimed(topics) if action.list_owners else None
        self._report_others(members)
        for path in self._nodes.paths() - self._read:
            self._nodes.forget(path)
        return MembershipSnapshot(members, None if own is None else own.stat.ephemeral_owner, topics, owners, claimed)

    async def _members(self, names: list[str]) -> dict[str, str]:
        kept = _MemberTexts(MAX_MEMBER_BYTES)

        async def read(name: str) -> None:
            # A node is replaced and never written to, which its watch reports: no reconciliation reads it again.
            node = await self._node(id_path(self._group, name))
            if node is not None and node.data is _TOO_LARGE:
                kept.left_out.append(name)
            elif node is not None:
                self._sessions[name] = node.stat.ephemeral_owner
                for large in kept.add(name, node.data):
                    self._nodes.shorten(id_path(self._group, large), _TOO_LARGE)

        await read_all(names, read)
        for name in sorted(kept.left_out):
            path = id_path(self._group, name)
            self._complain("member_node_unreadable", path, None, f"all members' nodes exceed {MAX_MEMBER_BYTES} bytes")
        return {name: kept.texts[name].decode("utf-8", "replace") for name in names if name in kept.texts}

    async def _layouts(self, names: frozenset[str] | None, known: _Layouts) -> _Layouts:
        """The partitions of topics, by default of all; those that are known are not read again."""
        if names is None:
            wanted = self._named(topics_path(), "topic", await self._children(topics_path()))
        else:
            wanted = sorted(names)
        more = await read_all([topic for topic in wanted if topic not in known], self._topic_or_before)
        return {topic: known[topic] if topic in known else more[topic] for topic in wanted}

    def _bounded(self, found: _Layouts) -> Topics:
        """The topics that were read, without the largest if they have too many partitions together."""
        layouts = {topic: layout for topic, layout in found.items() if layout is not None}
        sizes = {topic: sum(map(len, layout.values())) for topic, layout in layouts.items()}
        for topic in _beyond(sizes, MAX_PARTITIONS):
            reason = f"all topics together have more than {MAX_PARTITIONS} partitions, and this one {sizes[topic]}"
            self._complain("topic_node_unreadable", topic, topic, reason)
            del layouts[topic]
        self._topics_before = layouts
        return layouts

    def _named(self, parent: str, kind: str, names: Iterable[str]) -> list[str]:
        """Return those of `names` below `parent` that form a valid path."""
        named = []
        for name in names:
            try:
                named.append(check_name(kind, name))
            except RegistryError as error:
                self._complain("foreign_node", f"{parent}/{name}", None, reason_of(error))
        return named

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
        if node is None:
            return None
        other = claimant(node.data, node.stat.ephemeral_owner, self._sessions)
        if other is not None:
            self._claimants.add(other)
        return node.stat.ephemeral_owner

    def _report_others(self, members: Mapping[str, str]) -> None:
        """Log once which members follow another assignment rule: neither side gets what the other owns."""
        if self._others_reported:
            return
        clients = {name: other_client(self._group, name, text) for name, text in members.items()}
        others = sorted(name for name in members if clients[name] is not None or name in self._claimants)
        if others:
            self._others_reported = True
            log.warning(
                "other_assignment_rule_found",
                group=self._group,
                members=others,
                clients=sorted({client for client in clients.values() if client is not None}),
                reason="these members assign partitions by another rule than ours, and neither side releases what the "
                "other waits for: use a group of your own",
            )

    async def _children(self, path: str) -> list[str]:
        self._read.add(path)
        if self._reread:
            self._nodes.refresh(path)
        return await self._nodes.children(path)

    async def _node(self, path: str, *, reread: bool = False) -> ZNode | None:
        self._read.add(path)
        if reread:
            self._nodes.refresh(path)
        return await self._nodes.node(path)

    def _complain(self, event: str, about: str, topic: str | None, trouble: str) -> None:
        """Log only new complaints, not the same ones with every snapshot."""
        if self._troubles.get(about) != trouble:
            if len(self._troubles) >= _REMEMBERED:
                self._troubles.clear()
            self._troubles[about] = trouble
            named = {} if topic is None else {"topic": topic}
            log.warning(event, group=self._group, **named, node=about, reason=trouble)


class V07SnapshotReader(SnapshotReader):
    """Kafka 0.7: a topic's children are its brokers, each with its number of partitions."""

    _parse_partition = TopicPartition.parse

    async def _topic(self, topic: str) -> Mapping[int, Collection[int]]:
        names = await self._children(topic_path(topic))
        counts = await read_all(names, lambda name: self._count(topic, name))
        found = {parse_broker_id(name): count for name, count in counts.items() if count is not None}
        for broker in _beyond(found, MAX_PARTITIONS):
            reason = f"the topic has more than {MAX_PARTITIONS} partitions, {found[broker]} of them on this broker"
            self._complain("topic_node_unreadable", f"{topic}/{broker}", topic, reason)
            del found[broker]
        return {broker: range(count) for broker, count in found.items()}

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

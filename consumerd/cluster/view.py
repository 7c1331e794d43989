"""What is registered in ZooKeeper right now: brokers, topics, groups. One look at a time, nothing is kept.

Strategy: list, then read all children at once, bounded; what vanished in between is left out. A value that no peer of
0.7 writes is left out too, with a warning in the log or a line in `GroupView.problems`, so that one damaged node does
not hide the rest; nodes in the dialect of 0.8+ raise DialectError, since then nothing here would be true.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import structlog

from consumerd.cluster.reading import children, data, node, read_all
from consumerd.errors import NotFoundError
from consumerd.group.assignment import Assignment, assign
from consumerd.partition import TopicPartition
from consumerd.registry import (
    Broker,
    DialectError,
    RegistryError,
    Subscription,
    broker_ids_path,
    broker_path,
    consumers_path,
    group_path,
    id_path,
    ids_path,
    offset_path,
    offsets_path,
    offsets_root,
    owner_path,
    owners_path,
    owners_root,
    parse_broker,
    parse_broker_id,
    parse_offset,
    parse_owner,
    parse_partition_count,
    parse_subscription,
    require_v07,
    topic_broker_path,
    topic_path,
    topics_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from consumerd.ports import NodeStat, ZooKeeper

_T = TypeVar("_T")

log = structlog.get_logger(__name__)


class Member(NamedTuple):
    """A live member: the text of its node, and what it means (None where no peer of 0.7 would understand it)."""

    text: str
    subscription: Subscription | None


@dataclass(slots=True)
class GroupView:
    """One look at a group. The reads behind it are not atomic."""

    group: str
    members: dict[str, Member] = field(default_factory=dict)
    #: Partition -> (consumer id, stream number), from the owner nodes.
    owners: dict[TopicPartition, tuple[str, int]] = field(default_factory=dict)
    #: Partition -> committed offset, also of partitions that exist no more.
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    #: Sentences about nodes that could not be understood.
    problems: list[str] = field(default_factory=list)
    #: The same by path: why each of them could not be understood.
    faults: dict[str, str] = field(default_factory=dict)
    #: Of every node that was read, by path.
    stats: dict[str, NodeStat] = field(default_factory=dict)

    def subscribed(self, topics: Iterable[str]) -> list[str]:
        """Those of `topics` that at least one member wants."""
        wanted = [member.subscription for member in self.members.values() if member.subscription is not None]
        return [topic for topic in topics if any(subscription.streams_for(topic) for subscription in wanted)]

    def plan(self, topics: Mapping[str, Mapping[int, int]]) -> Assignment:
        """What the members, as they are, should own. Members that cannot be understood take no part."""
        return assign(
            topics,
            {name: member.subscription for name, member in self.members.items() if member.subscription is not None},
        )


class ClusterView:
    """Reads through `zk`. Every method raises the errors of its calls (ZooKeeperError) and DialectError."""

    def __init__(self, zk: ZooKeeper) -> None:
        self._zk = zk

    async def require_v07(self, group: str) -> None:
        """Raise DialectError if brokers, or the members of `group`, speak the JSON of Kafka 0.8 or later."""
        brokers = await self._values(broker_ids_path(), lambda name: f"{broker_ids_path()}/{name}")
        members = await self._values(ids_path(group), lambda name: id_path(group, name))
        require_v07(brokers.values(), members.values())

    async def read_brokers(self) -> dict[int, Broker]:
        """The live brokers by id."""
        ids = await self._broker_ids(broker_ids_path())
        texts = await read_all(ids, lambda broker: data(self._zk, broker_path(broker)))
        brokers = {}
        for broker, text in texts.items():
            if text is not None:
                try:
                    brokers[broker] = parse_broker(broker, text)
                except DialectError:
                    raise
                except RegistryError as error:
                    log.warning("broker_unreadable", broker=broker, error=str(error))
        return brokers

    async def read_topics(self, names: Iterable[str] | None = None) -> dict[str, dict[int, int]]:
        """Topic -> broker id -> number of partitions; all topics, or those of `names` that exist.

        A topic without a live broker has an empty map.
        """
        if names is None:
            wanted = await children(self._zk, topics_path())
        else:
            found = await read_all(dict.fromkeys(names), lambda topic: self._zk.exists(topic_path(topic)))
            wanted = [topic for topic, stat in found.items() if stat is not None]
        brokers = await read_all(wanted, lambda topic: self._broker_ids(topic_path(topic)))
        pairs = [(topic, broker) for topic, ids in brokers.items() for broker in ids]
        texts = await read_all(pairs, lambda pair: data(self._zk, topic_broker_path(*pair)))
        topics: dict[str, dict[int, int]] = {topic: {} for topic in wanted}
        for (topic, broker), text in texts.items():
            if text is not None:
                try:
                    topics[topic][broker] = parse_partition_count(text)
                except RegistryError as error:
                    log.warning("partition_count_unreadable", topic=topic, broker=broker, error=str(error))
        return topics

    async def read_groups(self) -> list[str]:
        """The names of all groups that ever were, sorted."""
        return await children(self._zk, consumers_path())

    async def read_group(self, group: str) -> GroupView:
        """Members, owners and offsets. Raises NotFoundError for a group that never was."""
        if await self._zk.exists(group_path(group)) is None:
            raise NotFoundError(f"there is no group {group!r} in ZooKeeper; `group list` shows those that are")
        view = GroupView(group)
        names = await children(self._zk, ids_path(group))
        for name, text in (await self._texts(view, names, lambda name: id_path(group, name))).items():
            view.members[name] = _member(view, name, text)
        owners = await self._partitions(view, owners_root(group), lambda topic: owners_path(group, topic))
        for partition, text in (await self._texts(view, owners, lambda tp: owner_path(group, tp))).items():
            _keep(view, view.owners, partition, owner_path(group, partition), text, parse_owner)
        offsets = await self._partitions(view, offsets_root(group), lambda topic: offsets_path(group, topic))
        for partition, text in (await self._texts(view, offsets, lambda tp: offset_path(group, tp))).items():
            _keep(view, view.offsets, partition, offset_path(group, partition), text, parse_offset)
        return view

    async def _broker_ids(self, path: str) -> list[int]:
        """The children that are broker ids, in numeric order."""
        ids = []
        for name in await children(self._zk, path):
            try:
                ids.append(parse_broker_id(name))
            except RegistryError:
                log.warning("foreign_node", path=f"{path}/{name}")
        return sorted(ids)

    async def _values(self, path: str, child: Callable[[str], str]) -> dict[str, bytes]:
        """Data of all children that are still there."""
        names = await children(self._zk, path)
        found = await read_all(names, lambda name: data(self._zk, child(name)))
        return {name: text for name, text in found.items() if text is not None}

    async def _partitions(self, view: GroupView, root: str, below: Callable[[str], str]) -> list[TopicPartition]:
        """The partitions named by the grandchildren of `root`, in the order of topics and 0.7's order of names."""
        topics = await children(self._zk, root)
        names = await read_all(topics, lambda topic: children(self._zk, below(topic)))
        partitions = []
        for topic in topics:
            for name in names[topic]:
                try:
                    partitions.append(TopicPartition.parse(topic, name))
                except ValueError as error:
                    path = f"{below(topic)}/{name}"
                    view.faults[path] = str(error)
                    view.problems.append(f"{path} is no node of Kafka 0.7: {error}")
        return partitions

    async def _texts(self, view: GroupView, items: Iterable[_T], path: Callable[[_T], str]) -> dict[_T, bytes]:
        """Data of all nodes that are still there; their stats go to `view`."""
        texts = {}
        for item, found in (await read_all(items, lambda item: node(self._zk, path(item)))).items():
            if found is not None:
                texts[item], view.stats[path(item)] = found
        return texts


def _member(view: GroupView, name: str, text: bytes) -> Member:
    shown = text.decode("utf-8", "replace")
    try:
        return Member(shown, parse_subscription(text))
    except RegistryError as error:
        view.faults[id_path(view.group, name)] = str(error)
        view.problems.append(f"member {name}: {error}")
        return Member(shown, None)


def _keep(
    view: GroupView,
    into: dict[TopicPartition, _T],
    partition: TopicPartition,
    path: str,
    text: bytes,
    parse: Callable[[bytes], _T],
) -> None:
    try:
        into[partition] = parse(text)
    except RegistryError as error:
        view.faults[path] = str(error)
        view.problems.append(f"{partition}: {error}")

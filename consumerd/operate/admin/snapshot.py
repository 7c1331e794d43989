"""A snapshot of a group and of all that belongs to it: members, owners, offsets, the topics they name, the brokers.

Strategy: read once, decide afterwards. The conclusions (`verification`, `diagnosis`, `changes`) are functions
of a snapshot, and nothing but this module reads the registry for them. The reads behind it are not atomic; a tool that
needs certainty takes two snapshots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import LogId, TopicPartition
from consumerd.base.ports import NodeStat, ZooKeeper
from consumerd.group.assignment import Assignment, partitions_of
from consumerd.member.offsets.metadata import parse_metadata
from consumerd.net.cluster.groups import GroupView
from consumerd.net.cluster.view import ClusterView
from consumerd.net.zk.errors import NoNode
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.paths import group_path, id_path, offsets_root, owner_path
from consumerd.wire.registry.subscription import StaticSubscription, Subscription
from consumerd.wire.registry.values import RegisteredBroker, format_owner

#: Topic -> broker id -> number of partitions.
Topics = dict[str, dict[int, int]]

_CHILDREN = frozenset({"ids", "owners", "offsets"})


@dataclass(slots=True)
class GroupSnapshot(ABC):
    """A snapshot of a group of either dialect."""

    dialect: ClassVar[Dialect]
    view: GroupView
    _: KW_ONLY
    #: Children of the group's node in ZooKeeper that its dialect does not have.
    foreign: list[str] = field(default_factory=list)
    #: Of groups that a broker coordinates: Stable, Empty, ...
    state: str = ""
    #: The offsets that a group in ZooKeeper committed to a broker instead (`offsets.storage=kafka` of old consumers).
    at_broker: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: Why it is not known whether brokers keep offsets of a group in ZooKeeper; "" where it is.
    kept_unknown: str = ""
    #: The texts that were committed with offsets (`commit.metadata`), where a broker keeps these and there is one.
    metadata: Mapping[TopicPartition, str] = field(default_factory=dict)
    #: The leader epochs that were committed with offsets (brokers since 2.1), where there is one.
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: The type of a group that brokers do not describe (share, streams), in lower case; "" for others.
    group_type: str = ""
    #: Consumer id -> who and where the member is, where a broker tells it.
    clients: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_broker(self) -> bool:
        """Whether a broker coordinates the group, not ZooKeeper."""
        return False

    @property
    def group(self) -> str:
        """The group's name."""
        return self.view.group

    @abstractmethod
    def plan(self) -> Assignment:
        """Return the expected owner of each partition, by the rule that all members follow."""

    @abstractmethod
    def wanted(self) -> set[TopicPartition]:
        """All partitions of subscribed topics."""

    def partitions(self) -> list[TopicPartition]:
        """All partitions of subscribed topics, and those owned or committed, in the dialect's order."""
        view = self.view
        found = {*view.owners, *view.claims, *view.offsets, *self.at_broker, *self.wanted()}
        return sorted(found, key=TopicPartition.order)

    @abstractmethod
    def exists(self, partition: TopicPartition) -> bool:
        """Whether the live brokers have the partition."""

    @abstractmethod
    def absence(self, partition: TopicPartition) -> str:
        """Return why a partition does not exist, as the end of a sentence."""

    def may_return(self, partition: TopicPartition) -> bool:
        """Whether the partition may exist although it is not there now."""
        return False

    def subscriptions(self) -> dict[str, Subscription]:
        """Return each member's subscription. Raises RegistryError for an invalid one, NotFoundError without members."""
        members = self.view.members.items()
        found = {name: member.subscription for name, member in members if member.subscription is not None}
        if len(found) < len(members):
            raise RegistryError(f"group {self.group!r} cannot be planned: {self.view.problems[0]}")
        if not found:
            raise NotFoundError(
                f"group {self.group!r} has no members now; `consumerd group describe` shows its committed offsets"
            )
        return found

    def log(self, partition: TopicPartition) -> LogId:
        """What was committed of the log that the partition's offset is of."""
        noted = parse_metadata(self.metadata.get(partition)).log
        epoch = self.epochs.get(partition)
        return noted if epoch is None else noted._replace(leader_epoch=epoch)

    @property
    def rule_words(self) -> str:
        """The rule behind `plan`, in a sentence."""
        return "the rule"

    @property
    def rule_doubt(self) -> str:
        """A possible reason for other owners than the rule's, beside a rebalance, as the end of a sentence."""
        return ""

    @property
    def unit(self) -> str:
        """The unit of offsets."""
        return "bytes" if self.dialect is Dialect.V07 else "messages"

    def offset_faults(self, *, read: bool) -> dict[str, str]:
        """What is wrong with offset nodes, by `topic/name`. `read`: only those that are named as in this dialect."""
        if not (faults := self.view.faults):  # a group at brokers may have a name that no node can have
            return {}
        root = f"{offsets_root(self.group)}/"
        paths = [path for path in faults if path.startswith(root) and (not read or path in self.view.stats)]
        return {path.removeprefix(root): faults[path] for path in paths}

    def committed_offsets(self) -> dict[TopicPartition, int]:
        """All committed offsets of the group, of every storage."""
        return {**self.at_broker, **self.view.offsets}

    def is_persistent(self, consumer_id: str) -> bool:
        """Whether the id node of this member would outlive it."""
        return not self.view.stats[id_path(self.group, consumer_id)].ephemeral_owner

    def owner_stat(self, partition: TopicPartition) -> NodeStat | None:
        """The stat of the partition's owner node, readable or not; None where there is none."""
        if self.by_broker:  # whose groups may have names that no node can have
            return None
        claim = self.view.claims.get(partition)
        return self.view.stats.get(owner_path(self.group, partition) if claim is None else claim.path)

    def committed(self, partition: TopicPartition) -> int | None:
        """The committed offset, of any storage."""
        return self.view.offsets.get(partition, self.at_broker.get(partition))

    def owner_name(self, partition: TopicPartition) -> str | None:
        """The owner as its node names it, with its stream where members have several; None where none is known."""
        owner, claim = self.view.owners.get(partition), self.view.claims.get(partition)
        if claim is not None:
            return claim.text
        if owner is None:
            return None
        return owner[0] if self.by_broker else format_owner(*owner)


@dataclass(slots=True)
class V07GroupSnapshot(GroupSnapshot):
    """The state of a group of 0.7. `topics`: those that exist and that members subscribe to, own or committed."""

    dialect: ClassVar[Dialect] = Dialect.V07
    topics: Topics
    brokers: Mapping[int, RegisteredBroker] = field(default_factory=dict)

    @property
    def subscribed(self) -> Topics:
        """The topics that at least one member wants."""
        return {topic: self.topics[topic] for topic in self.view.subscribed(self.topics)}

    def plan(self) -> Assignment:
        return self.view.plan(self.subscribed)

    def exists(self, partition: TopicPartition) -> bool:
        """Whether a live broker has registered the partition."""
        return partition.partition < self.topics.get(partition.topic, {}).get(partition.broker, 0)

    def absence(self, partition: TopicPartition) -> str:
        count = self.topics.get(partition.topic, {}).get(partition.broker)
        if partition.broker not in self.brokers:
            return f"broker {partition.broker} is not registered"
        if count is None:
            return f"broker {partition.broker} has not registered the topic"
        return f"broker {partition.broker} has only {count} partitions of it"

    def may_return(self, partition: TopicPartition) -> bool:
        """Whether the partition may exist although it is not there now: brokers take registrations along."""
        return partition.broker not in self.brokers

    def wanted(self) -> set[TopicPartition]:
        return {each for topic, brokers in self.subscribed.items() for each in partitions_of(topic, brokers)}


async def read_v07_snapshot(zk: ZooKeeper, group: str, *, brokers: bool = True) -> V07GroupSnapshot:
    """Take a snapshot. Raises NotFoundError for an unknown group, DialectError for brokers of 0.8+ (if `brokers`)."""
    cluster = ClusterView(zk)
    view = await cluster.read_group(group)
    named, every = named_topics(view)
    topics = await cluster.read_topics(None if every else sorted(named))
    if every:
        wanted = {*view.subscribed(topics), *named}
        topics = {topic: counts for topic, counts in topics.items() if topic in wanted}
    return V07GroupSnapshot(
        view,
        topics,
        await cluster.read_brokers() if brokers else {},
        foreign=await foreign_children(zk, group),
    )


def named_topics(view: GroupView) -> tuple[set[str], bool]:
    """The topics that members want by name, own or committed, and whether a filter makes all topics count."""
    named: set[str] = {partition.topic for partition in (*view.owners, *view.claims, *view.offsets)}
    every = False
    for member in view.members.values():
        if isinstance(member.subscription, StaticSubscription):
            named |= member.subscription.streams.keys()
        elif member.subscription is not None:
            every = True
    return named, every


async def foreign_children(zk: ZooKeeper, group: str) -> list[str]:
    """The paths below a group's node that belong to no dialect."""
    try:
        names = await zk.children(group_path(group))
    except NoNode:
        return []
    return [f"{group_path(group)}/{name}" for name in names if name not in _CHILDREN]

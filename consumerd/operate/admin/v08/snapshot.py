"""A snapshot of a group of Kafka 0.8 or later, coordinated in ZooKeeper or by a broker.

Strategy: both have the form of a `GroupView`, so that the tools use the same code for both. In ZooKeeper nothing
says by which rule the members assign (`partition.assignment.strategy` of old consumers), so the rule is inferred: the
one that explains most of the owners, "range" where there are none. Where a broker coordinates, a member assigns as it
likes, and there is nothing to compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import ClassVar, NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.base.ports import ZooKeeper
from consumerd.group.assignment import Assignment
from consumerd.group.assignors import Spelling, range_owners, roundrobin_owners
from consumerd.member.offsets.kafka_store import CommittedOffset
from consumerd.net.cluster.view_v08 import V08ClusterView
from consumerd.operate.admin.snapshot import GroupSnapshot, foreign_children, named_topics
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.subscription import FilterSubscription, Subscription
from consumerd.wire.registry.v08.topic import INTERNAL_TOPICS

#: Topic -> numbers of its partitions.
Numbers = dict[str, tuple[int, ...]]

#: The rules of old consumers, as the setting names them; 1.0 and 1.1 sort for "roundrobin" in another order.
RULES: Mapping[str, Callable[..., Assignment]] = {
    "range": range_owners,
    "roundrobin": roundrobin_owners,
    "roundrobin of 1.0": partial(roundrobin_owners, spelling=Spelling.DASH),
}


class _Wanted(NamedTuple):
    """A member's subscription, as members of 0.8 and later read it."""

    subscription: Subscription

    def streams_for(self, topic: str) -> int:
        """The number of the member's streams of `topic`."""
        if isinstance(self.subscription, FilterSubscription) and topic in INTERNAL_TOPICS:
            return 0  # `exclude.internal.topics`, the default of old consumers
        return self.subscription.streams_for(topic)


def texts_of(committed: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, str]:
    """The texts that were committed with offsets, where there is one."""
    return {partition: each.metadata for partition, each in committed.items() if each.metadata}


def epochs_of(committed: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, int]:
    """The leader epochs that were committed with offsets, where there is one."""
    return {partition: each.leader_epoch for partition, each in committed.items() if each.leader_epoch is not None}


class CoordinatorKind(Enum):
    """The side that assigns partitions to members."""

    ZOOKEEPER = "zookeeper"
    BROKER = "broker"


@dataclass(slots=True)
class V08GroupSnapshot(GroupSnapshot):
    """The state of a group. `topics`: those that exist and that members subscribe to, own or committed offsets of."""

    dialect: ClassVar[Dialect] = Dialect.V08
    topics: Numbers
    coordinator: CoordinatorKind = CoordinatorKind.ZOOKEEPER
    #: Of groups that a broker coordinates: how their leader assigns.
    assignor: str = ""
    #: Where the coordinator assigns by itself (the consumer protocol of 4.x): members that are yet to move to their
    #: assignment. None where a member assigns.
    moving: list[str] | None = None

    @property
    def by_broker(self) -> bool:
        """Whether a broker coordinates the group, whose leader may then assign by any rule."""
        return self.coordinator is CoordinatorKind.BROKER

    @property
    def subscribed(self) -> Numbers:
        """The topics that at least one member wants; old consumers leave internal ones out of their filters."""
        wanted = self._wanted().values()
        return {
            topic: numbers
            for topic, numbers in self.topics.items()
            if any(member.streams_for(topic) for member in wanted)
        }

    def plans(self) -> dict[str, Assignment]:
        """Return the expected owners of partitions, by each rule that the members may follow."""
        topics, members = self.subscribed, self._wanted()
        return {name: rule(topics, members) for name, rule in RULES.items()}

    def _wanted(self) -> dict[str, _Wanted]:
        """Return each member's subscription that can be read."""
        members = self.view.members.items()
        return {name: _Wanted(each.subscription) for name, each in members if each.subscription is not None}

    def _agreeing(self) -> list[str]:
        """The rules that explain the owners."""
        return [name for name, plan in self.plans().items() if plan == self.view.owners]

    @property
    def rule(self) -> str:
        """The rules that may have assigned the owners, "" for none; where a broker coordinates, its leader's."""
        if self.by_broker:
            return self.assignor
        return " or ".join(self._agreeing()) if self.view.owners else ""

    def plan(self) -> Assignment:
        """Return the expected owners by the rule nearest to the owners; the owners where a broker coordinates."""
        if self.by_broker:
            return dict(self.view.owners)
        return self.plans()[self._nearest()]

    def _nearest(self) -> str:
        """The rule that explains most of the owners, the usual one where several do."""
        plans, owners = self.plans(), self.view.owners
        return max(plans, key=lambda name: sum(owners.get(one) == owner for one, owner in plans[name].items()))

    @property
    def rule_words(self) -> str:
        return f"the rule ({self._nearest()})"

    @property
    def rule_doubt(self) -> str:
        """The doubt that members follow one rule: the end of a sentence."""
        return "; or the members differ in partition.assignment.strategy, or in their release where it is roundrobin"

    def exists(self, partition: TopicPartition) -> bool:
        """Whether the cluster has the partition."""
        numbers, number = self.topics.get(partition.topic, ()), partition.partition
        # Without gaps, as brokers number them, it stands at its own place.
        return (number < len(numbers) and numbers[number] == number) or number in numbers

    def absence(self, partition: TopicPartition) -> str:
        numbers = self.topics.get(partition.topic)
        return "the cluster has no such topic" if numbers is None else f"the topic has only {len(numbers)} partitions"

    def wanted(self) -> set[TopicPartition]:
        return {TopicPartition.numbered(topic, each) for topic, numbers in self.subscribed.items() for each in numbers}


def numbers_of(assignments: Mapping[str, Iterable[int]]) -> Numbers:
    """The numbers of partitions of topics whose assignments were read."""
    return {topic: tuple(sorted(partitions)) for topic, partitions in assignments.items()}


async def read_v08_snapshot(zk: ZooKeeper, group: str) -> V08GroupSnapshot:
    """Take a snapshot of a group in ZooKeeper. Raises NotFoundError, DialectError for brokers of 0.7."""
    cluster = V08ClusterView(zk)
    view = await cluster.read_group(group)
    view.offsets = dict(sorted(view.offsets.items()))
    named, every = named_topics(view)
    found = await cluster.read_assignments(None if every else sorted(named))
    snapshot = V08GroupSnapshot(view, numbers_of(found), foreign=await foreign_children(zk, group))
    wanted = snapshot.subscribed.keys() | named
    snapshot.topics = {topic: numbers for topic, numbers in snapshot.topics.items() if topic in wanted}
    return snapshot

"""The plans of `consumerd offsets set`, `reset` and `import`: the changes, and their problems.

Strategy: one pair of functions for each kind of cluster; they read, and write nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.base.ports import ZooKeeper
from consumerd.group.assignment import partitions_of
from consumerd.net.cluster.groups import GroupView
from consumerd.net.cluster.view import ClusterView
from consumerd.net.connect import Connector
from consumerd.operate.admin.changes import OffsetChange, OffsetTarget, V07ChangePlanner
from consumerd.operate.admin.editing import in_the_way
from consumerd.operate.admin.errors import ArgumentError
from consumerd.operate.admin.logs import BrokerLogs
from consumerd.operate.admin.offset_file import GroupOffsets
from consumerd.operate.admin.snapshot import GroupSnapshot, V07GroupSnapshot, read_v07_snapshot
from consumerd.operate.admin.v08.changes import V08ChangePlanner
from consumerd.operate.admin.v08.group_source import GroupSource
from consumerd.operate.admin.v08.snapshot import CoordinatorKind, V08GroupSnapshot
from consumerd.wire.registry.dialect import Dialect

#: States of groups without members, as brokers tell them.
_RESTING = frozenset({"", "Dead", "Empty"})


class NamedPartitions(NamedTuple):
    """Partitions of a group: those of `topics` (without any, of the group's), and of these those called as `names`."""

    group: str
    topics: Sequence[str]
    names: Sequence[str]

    def of(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return those of `partitions` that are selected. Raises NotFoundError where none is."""
        chosen = [partition for partition in partitions if not self.names or partition.name in self.names]
        if not chosen:
            what = f"topic {', '.join(self.topics)}" if self.topics else f"group {self.group!r}"
            raise NotFoundError(f"{what} has no such partitions; see `consumerd topics list`")
        return chosen


@dataclass(slots=True)
class OffsetPlan:
    """Changes and their problems; `final` where not even force helps."""

    changes: list[OffsetChange]
    refusals: list[str]
    final: bool = False

    def add(self, snapshot: GroupSnapshot, changes: list[OffsetChange], *, force: bool) -> None:
        """Add the changes of one group."""
        self.changes += changes
        moving = [change.partition for change in changes if change.moves]
        state = snapshot.state if isinstance(snapshot, V08GroupSnapshot) else ""
        by_broker = isinstance(snapshot, V08GroupSnapshot) and snapshot.coordinator is CoordinatorKind.BROKER
        if by_broker or not force:
            alive = in_the_way(snapshot, moving)
            if by_broker and not alive and state not in _RESTING:
                alive.append(f"group {snapshot.group} has members (its state is {state})")
            self.refusals += alive
            self.final = self.final or (by_broker and bool(alive))
        if not force:
            problems = [f"{change.partition}: {change.problem}" for change in changes if change.problem is not None]
            self.refusals += problems


async def plan_set(zk: ZooKeeper, wanted: GroupOffsets, force: bool, connect: Connector) -> OffsetPlan:
    """Each group's partitions to the offsets that are named. Raises ConfigError for names of 0.8 and later."""
    _require_names(wanted, numbered=False)
    plan = OffsetPlan([], [])
    for group, offsets in wanted.items():
        snapshot = await _snapshot(zk, group)
        planner = await _planner(zk, snapshot, offsets, connect)
        plan.add(snapshot, await planner.set_to(offsets), force=force)
    return plan


async def plan_reset(
    zk: ZooKeeper, choice: NamedPartitions, target: OffsetTarget, force: bool, connect: Connector
) -> OffsetPlan:
    """The chosen partitions to `target`. Raises NotFoundError."""
    snapshot = await _snapshot(zk, choice.group, must_exist=not choice.topics)
    partitions = choice.of(await _partitions(zk, snapshot, choice.topics))
    planner = await _planner(zk, snapshot, partitions, connect)
    plan = OffsetPlan([], [])
    plan.add(snapshot, await planner.reset(partitions, target), force=force)
    return plan


async def plan_v08_set(source: GroupSource, wanted: GroupOffsets, force: bool) -> OffsetPlan:
    """As `plan_set`, in a cluster of 0.8 or later. Raises ConfigError for names of 0.7."""
    _require_names(wanted, numbered=True)
    plan = OffsetPlan([], [])
    await source.prepare([*wanted])
    for group, offsets in wanted.items():
        snapshot = await _v08_snapshot(source, group)
        plan.add(snapshot, await V08ChangePlanner(snapshot, source.logs).set_to(offsets), force=force)
    return plan


async def plan_v08_reset(source: GroupSource, choice: NamedPartitions, target: OffsetTarget, force: bool) -> OffsetPlan:
    """As `plan_reset`, in a cluster of 0.8 or later."""
    snapshot = await _v08_snapshot(source, choice.group, must_exist=not choice.topics)
    partitions = choice.of(await _v08_partitions(source, snapshot, choice.topics))
    plan = OffsetPlan([], [])
    plan.add(snapshot, await V08ChangePlanner(snapshot, source.logs).reset(partitions, target), force=force)
    return plan


def dialect_of(wanted: GroupOffsets) -> Dialect | None:
    """The dialect by the names of the partitions, where the cluster does not show it."""
    numbered = {partition.broker == NO_BROKER for offsets in wanted.values() for partition in offsets}
    return Dialect.V08 if numbered == {True} else None


async def _planner(
    zk: ZooKeeper, snapshot: V07GroupSnapshot, partitions: Iterable[TopicPartition], connect: Connector
) -> V07ChangePlanner:
    topics = await ClusterView(zk).read_topics({partition.topic for partition in partitions})
    return V07ChangePlanner(snapshot.view, topics, snapshot.brokers, BrokerLogs(snapshot.brokers, connect))


async def _snapshot(zk: ZooKeeper, group: str, *, must_exist: bool = False) -> V07GroupSnapshot:
    """The group; an empty snapshot for an unknown one."""
    try:
        return await read_v07_snapshot(zk, group)
    except NotFoundError:
        if must_exist:
            raise
        return V07GroupSnapshot(GroupView(group), {}, await ClusterView(zk).read_brokers())


async def _partitions(zk: ZooKeeper, snapshot: V07GroupSnapshot, topics: Sequence[str]) -> list[TopicPartition]:
    """The partitions of a reset: all registered ones, and those committed whose broker is not registered."""
    registered = await ClusterView(zk).read_topics(topics) if topics else snapshot.topics
    found = {partition for topic, brokers in registered.items() for partition in partitions_of(topic, brokers)}
    found |= {partition for partition in snapshot.view.offsets if not topics or partition.topic in topics}
    return sorted(found, key=lambda partition: (partition.topic, partition.name))


async def _v08_snapshot(source: GroupSource, group: str, *, must_exist: bool = False) -> V08GroupSnapshot:
    """The group; an empty snapshot for an unknown one."""
    try:
        return await source.snapshot(group)
    except NotFoundError:
        if must_exist:
            raise
        return V08GroupSnapshot(GroupView(group), {}, source.coordinator)


async def _v08_partitions(
    source: GroupSource, snapshot: V08GroupSnapshot, topics: Sequence[str]
) -> list[TopicPartition]:
    """The partitions of a reset: all existing ones, and those committed that no longer exist."""
    if not topics:
        return snapshot.partitions()
    found = {partition for partition in snapshot.view.offsets if partition.topic in topics}
    for topic, numbers in (await source.topics(topics)).items():
        found |= {TopicPartition.numbered(topic, number) for number in numbers}
    return sorted(found)


def _require_names(wanted: GroupOffsets, *, numbered: bool) -> None:
    """Raise ArgumentError for partitions that are named as those of another Kafka."""
    for partition in (partition for offsets in wanted.values() for partition in offsets):
        if (partition.broker == NO_BROKER) is not numbered:
            here = "0.8 or later: use TOPIC/PARTITION" if numbered else "0.7: use TOPIC/BROKER-PARTITION"
            raise ArgumentError(f"{partition} is not a partition of Kafka {here}")

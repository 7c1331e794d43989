"""The plans of `consumerd offsets set`, `reset` and `import`: the changes, and their problems.

Strategy: these read, and write nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.operate.admin.changes import OffsetChange, OffsetTarget
from consumerd.operate.admin.editing import in_the_way
from consumerd.operate.admin.errors import ArgumentError
from consumerd.operate.admin.group_source import GroupSource
from consumerd.operate.admin.offset_file import GroupOffsets
from consumerd.operate.admin.snapshot import GroupSnapshot
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
        state, by_broker = snapshot.state, snapshot.by_broker
        if by_broker or not force:
            alive = in_the_way(snapshot, moving)
            if by_broker and not alive and state not in _RESTING:
                alive.append(f"group {snapshot.group} has members (its state is {state})")
            self.refusals += alive
            self.final = self.final or (by_broker and bool(alive))
        if not force:
            problems = [f"{change.partition}: {change.problem}" for change in changes if change.problem is not None]
            self.refusals += problems


async def plan_set(source: GroupSource, wanted: GroupOffsets, force: bool) -> OffsetPlan:
    """Each group's partitions to the offsets that are named. Raises ArgumentError for names of another Kafka."""
    _require_names(wanted, source.dialect)
    plan = OffsetPlan([], [])
    await source.prepare([*wanted])
    for group, offsets in wanted.items():
        snapshot = await source.snapshot_or_unknown(group)
        planner = await source.planner(snapshot, {partition.topic for partition in offsets})
        plan.add(snapshot, await planner.set_to(offsets), force=force)
    return plan


async def plan_reset(source: GroupSource, choice: NamedPartitions, target: OffsetTarget, force: bool) -> OffsetPlan:
    """The chosen partitions to `target`. Raises NotFoundError."""
    find = source.snapshot_or_unknown if choice.topics else source.snapshot
    snapshot = await find(choice.group)
    partitions = choice.of(await source.partitions(snapshot, choice.topics))
    planner = await source.planner(snapshot, {partition.topic for partition in partitions})
    plan = OffsetPlan([], [])
    plan.add(snapshot, await planner.reset(partitions, target), force=force)
    return plan


def dialect_of(wanted: GroupOffsets) -> Dialect | None:
    """The dialect by the names of the partitions, where the cluster does not show it."""
    numbered = {partition.broker == NO_BROKER for offsets in wanted.values() for partition in offsets}
    return Dialect.V08 if numbered == {True} else None


def _require_names(wanted: GroupOffsets, dialect: Dialect) -> None:
    """Raise ArgumentError for partitions that are named as those of another Kafka."""
    for partition in (partition for offsets in wanted.values() for partition in offsets):
        if (partition.broker == NO_BROKER) is not (dialect is Dialect.V08):
            here = "0.8 or later: use TOPIC/PARTITION" if dialect is Dialect.V08 else "0.7: use TOPIC/BROKER-PARTITION"
            raise ArgumentError(f"{partition} is not a partition of Kafka {here}")

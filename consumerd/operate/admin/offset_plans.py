"""Plans of changes of offsets, with their problems, and those of `consumerd offsets set`, `reset` and `import`.

Strategy: these read, and write nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """One partition of the target. `end`: the end of its log; None where it is unknown."""

    change: OffsetChange
    #: Old partitions with their offsets, as far as they went to this partition.
    sources: tuple[tuple[TopicPartition, int], ...] = ()
    end: int | None = None

    @property
    def lag(self) -> int | None:
        """The number of messages that the group will read there, as of now."""
        after = self.change.after
        return None if self.end is None or after is None else max(0, self.end - after)

    def noting(self, note: str | None) -> OffsetMove:
        """The same with a further remark for the user."""
        notes = [each for each in (self.change.note, note) if each]
        return replace(self, change=self.change._replace(note="; ".join(notes) or None))


@dataclass(slots=True)
class OffsetPlan:
    """What is to be written. `problems` and `notes` are sentences about more than one partition."""

    moves: list[OffsetMove] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: Whether not even force helps against the problems.
    final: bool = False

    @property
    def changes(self) -> list[OffsetChange]:
        """The changes to write."""
        return [move.change for move in self.moves]

    @property
    def unfit(self) -> list[str]:
        """The problems of single partitions."""
        return [f"{each.partition}: {each.problem}" for each in self.changes if each.problem is not None]

    @property
    def refusals(self) -> list[str]:
        """All problems."""
        return [*self.problems, *self.unfit]

    def refused(self, *, force: bool) -> list[str]:
        """The problems because of which nothing is written."""
        return (self.problems if self.final else []) if force else self.refusals

    def add(self, snapshot: GroupSnapshot, changes: Iterable[OffsetChange]) -> None:
        """Add the changes of one group."""
        added = [OffsetMove(change) for change in changes]
        alive = in_the_way(snapshot, [move.change.partition for move in added if move.change.moves])
        if snapshot.by_broker and not alive and snapshot.state not in _RESTING:
            alive.append(f"group {snapshot.group} has members (its state is {snapshot.state})")
        self.moves += added
        self.problems += alive
        self.final = self.final or (snapshot.by_broker and bool(alive))


async def plan_set(source: GroupSource, wanted: GroupOffsets) -> OffsetPlan:
    """Each group's partitions to the offsets that are named. Raises ArgumentError for names of another Kafka."""
    _require_names(wanted, source.dialect)
    plan = OffsetPlan()
    await source.prepare([*wanted])
    for group, offsets in wanted.items():
        snapshot = await source.snapshot_or_unknown(group)
        planner = await source.planner(snapshot, {partition.topic for partition in offsets})
        plan.add(snapshot, await planner.set_to(offsets))
    return plan


async def plan_reset(source: GroupSource, choice: NamedPartitions, target: OffsetTarget) -> OffsetPlan:
    """The chosen partitions to `target`. Raises NotFoundError."""
    find = source.snapshot_or_unknown if choice.topics else source.snapshot
    snapshot = await find(choice.group)
    partitions = choice.of(await source.partitions(snapshot, choice.topics))
    planner = await source.planner(snapshot, {partition.topic for partition in partitions})
    plan = OffsetPlan()
    plan.add(snapshot, await planner.reset(partitions, target))
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

"""The offsets that the groups of an archive had committed, as offsets of the topics that were replayed from it.

Strategy: each partition that a group had committed is walked once, for all groups, beside the one that it was replayed
to (`restored_log`): a group continues at the first message that it had not read, wherever that is on the target. Where
the messages before it are not the same there, nothing is translated. Groups are judged one by one, so that one with
members, or further on than the archive, does not hold back others. Nothing is written here.

What was committed beside the number (text, leader epoch) is of the old log, and is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.handlers.forward.positions import is_position
from consumerd.operate.admin.offset_plans import OffsetMove, OffsetPlan
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.operate.admin.v08.group_source import V08GroupSource
from consumerd.operate.migrate.archived_topics import ArchivedPartition
from consumerd.operate.migrate.offsets_plan import planned_moves
from consumerd.operate.migrate.offsets_translation import ReadableLog
from consumerd.operate.migrate.restored_log import LogMatch, match
from consumerd.storage.segments.group_offsets import ArchivedOffset, OffsetKey

#: Group -> partition of the archive -> committed offset.
Committed = dict[str, dict[TopicPartition, int]]


class SelectedOffsets(NamedTuple):
    """The offsets of an archive to move, and sentences about those that are not."""

    committed: Committed
    notes: list[str]


def select_offsets(offsets: Mapping[OffsetKey, ArchivedOffset], groups: Iterable[str] = ()) -> SelectedOffsets:
    """Those of `groups` (all without any) that were valid at the end of the archive, and are of consumers."""
    wanted = set(groups)
    last = max((each.committed for each in offsets.values() if each.committed is not None), default=0)
    chosen: Committed = defaultdict(dict)
    expired: set[str] = set()
    positions: set[str] = set()
    for key, each in offsets.items():
        if wanted and key.group not in wanted:
            continue
        if is_position(key.group, each.metadata):
            positions.add(key.group)
        elif each.expires is not None and each.expires <= last:
            expired.add(key.group)
        else:
            chosen[key.group][TopicPartition.numbered(key.topic, key.partition)] = each.offset
    notes = [f"group {group!r}: offsets that had expired are left out" for group in sorted(expired)]
    present = {key.group for key in offsets}
    notes += [f"group {group!r}: the archive has no offset of it" for group in sorted(wanted - present)]
    if positions:
        listed = ", ".join(sorted(positions))
        notes.append(f"positions of a mirror or a restore in another cluster are left out: {listed}")
    return SelectedOffsets(dict(chosen), notes)


class TranslatedOffset(NamedTuple):
    """An offset of the target. None with the reason in `problem`; `note`: what of it is not obvious. Clauses."""

    offset: int | None
    problem: str | None = None
    note: str | None = None


def translate(archived: ArchivedPartition, committed: int, found: LogMatch) -> TranslatedOffset:
    """The offset on the target for one that was committed in `archived`, which was compared as `found`."""
    offset = found.offsets.get(committed)
    if offset is None:
        return TranslatedOffset(
            None, f"the messages before offset {committed} are not the same on the target: {found.difference}"
        )
    start, end, note = archived.log_start, max(archived.log_end, archived.segments[-1].start), None
    if committed > end:
        note = f"the archive ends at {end}, {committed - end} before {committed}: the group continues behind it"
    elif committed < start:
        note = (
            f"the archive begins at {start}, {start - committed} behind {committed}: the group continues with its "
            "first message"
        )
    elif hole := next((each for each in archived.holes if each[0] <= committed < each[1]), None):
        note = (
            f"the archive has nothing from {hole[0]} to {hole[1] - 1} (compaction, or a missing or damaged segment): "
            "the group continues behind that"
        )
    return TranslatedOffset(offset, note=note)


@dataclass(slots=True)
class RestoredOffsets:
    """The plan of each group, of which nothing is written if it has a problem; sentences about what is left out."""

    plans: dict[str, OffsetPlan] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def refusals(self) -> list[str]:
        return [
            each
            for group, plan in self.plans.items()
            for each in (*plan.problems, *(f"group {group!r}: {unfit}" for unfit in plan.unfit))
        ]

    @property
    def moves(self) -> list[OffsetMove]:
        return [each for plan in self.plans.values() for each in plan.moves]

    @property
    def allowed(self) -> list[OffsetMove]:
        """The moves of groups without a refusal."""
        return [each for plan in self.plans.values() if not plan.refusals for each in plan.moves]

    @property
    def writable(self) -> list[OffsetMove]:
        """Those of `allowed` that change an offset."""
        return [each for each in self.allowed if each.change.moves]


class OffsetsRestore:
    """One run. `archived`: partitions of the archive; `naming`: topic -> its name on the target."""

    def __init__(
        self,
        committed: Committed,
        archived: Sequence[ArchivedPartition],
        target: V08GroupSource,
        log: ReadableLog,
        naming: Callable[[str], str] = lambda topic: topic,
    ) -> None:
        self._committed = committed
        self._archived = {each.partition: each for each in archived}
        self._target = target
        self._log = log
        self._naming = naming

    async def plan(self, progress: Callable[[ArchivedPartition], object] = lambda _: None) -> RestoredOffsets:
        """Translate all offsets, and look at the groups. `progress` is called with each partition that was compared.

        Raises BrokerError, CorruptDataError, ReadFailedError.
        """
        found = RestoredOffsets()
        translated = await self._translate(found.notes, progress)
        await self._target.prepare(list(self._committed))
        for group, committed in sorted(self._committed.items()):
            found.plans[group] = await self._plan_group(group, committed, translated)
        return found

    async def check(self, moves: Iterable[OffsetMove]) -> list[str]:
        """Sentences about the offsets that are not on the target what `moves` wanted, read once more."""
        wanted: defaultdict[str, dict[TopicPartition, int | None]] = defaultdict(dict)
        for each in moves:
            wanted[each.change.group][each.change.partition] = each.change.after
        differences = []
        for group, offsets in wanted.items():
            there = (await self._target.snapshot_or_unknown(group)).view.offsets
            differences += [
                f"group {group!r}: the offset of {partition} is {there.get(partition, 'missing')}, not {offset}"
                for partition, offset in offsets.items()
                if there.get(partition) != offset
            ]
        return differences

    # -- offsets

    async def _translate(
        self, notes: list[str], progress: Callable[[ArchivedPartition], object]
    ) -> dict[TopicPartition, dict[int, TranslatedOffset]]:
        """By partition of the archive, the offsets that some group committed."""
        wanted: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        for committed in self._committed.values():
            for partition, offset in committed.items():
                wanted[partition].add(offset)
        there = await self._target.topics({self._naming(partition.topic) for partition in wanted})
        translated: dict[TopicPartition, dict[int, TranslatedOffset]] = {}
        for partition, offsets in sorted(wanted.items()):
            archived = self._archived.get(partition)
            if archived is None:
                notes.append(f"{partition}: the archive has no segment of it, so its offsets are not moved")
                continue
            moved = self._moved(partition)
            if moved.partition not in there.get(moved.topic, ()):
                missing = TranslatedOffset(None, f"the target has no {moved}")
                translated[partition] = dict.fromkeys(offsets, missing)
                continue
            found = await match(archived, self._log, moved.topic, offsets=offsets, whole=False)
            translated[partition] = {each: translate(archived, each, found) for each in offsets}
            progress(archived)
        return translated

    def _moved(self, partition: TopicPartition) -> TopicPartition:
        return TopicPartition.numbered(self._naming(partition.topic), partition.partition)

    # -- groups

    async def _plan_group(
        self,
        group: str,
        committed: Mapping[TopicPartition, int],
        translated: Mapping[TopicPartition, Mapping[int, TranslatedOffset]],
    ) -> OffsetPlan:
        plan = OffsetPlan()
        wanted: dict[TopicPartition, int] = {}
        notes: dict[TopicPartition, str] = {}
        sources: dict[TopicPartition, list[tuple[TopicPartition, int]]] = {}
        for partition, offset in sorted(committed.items()):
            if partition not in translated:
                continue
            each, moved = translated[partition][offset], self._moved(partition)
            if each.offset is None:
                plan.problems.append(
                    f"group {group!r}: {partition}: {each.problem}; replay it first (`consumerd log export "
                    "--to-bootstrap-server`)"
                )
                continue
            wanted[moved], sources[moved] = each.offset, [(partition, offset)]
            if each.note is not None:
                notes[moved] = each.note
        snapshot = await self._target.snapshot_or_unknown(group)
        plan.problems += _in_use(group, snapshot)
        moves = await planned_moves(self._target, snapshot, wanted, sources)
        plan.moves += [move.noting(notes.get(move.change.partition)) for move in moves]
        return plan


def _in_use(group: str, snapshot: GroupSnapshot) -> list[str]:
    """Why the target's brokers would not accept offsets of the group, or its members would not read them."""
    if snapshot.group_type:
        return [f"group {group!r} is of type {snapshot.group_type!r} on the target: choose others with --group"]
    if names := [snapshot.clients.get(member, member) for member in snapshot.view.members]:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return [f"group {group!r} has members on the target ({', '.join(names[:3])}{more}): stop them first"]
    return []

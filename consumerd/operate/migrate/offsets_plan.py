"""Plans the offsets of a group that moves to another cluster, and checks them. Nothing is written here.

Strategy: every partition of the target becomes an `OffsetMove`: a change of the target's offset, with where it comes
from. The numbers are kept where both sides are one cluster (offsets in ZooKeeper and in Kafka number the same
messages), and translated by the headers of the forwarder everywhere else. Offsets that would go back on the target or
that its logs do not hold, and live members on either side, are problems: nothing is written while there is one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.operate.admin.changes import OffsetChange
from consumerd.operate.admin.editing import in_the_way
from consumerd.operate.admin.logs import LogRange
from consumerd.operate.admin.offset_plans import OffsetMove, OffsetPlan
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.operate.admin.v08.group_source import V08GroupSource
from consumerd.operate.migrate.offsets_translation import OffsetTranslator, ReadableLog


class MovePlanner:
    """Plans how the offsets of `source`, a look at the old group, become those of `group` on `target`.

    `rename`: the target's topic for an old one. `topics`: only these old ones; None for all.
    """

    def __init__(
        self,
        source: GroupSnapshot,
        target: V08GroupSource,
        group: str,
        *,
        rename: Callable[[str], str] = lambda topic: topic,
        topics: Iterable[str] | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._group = group
        self._rename = rename
        wanted = None if topics is None else set(topics)
        self._of_topics = "" if wanted is None else f" of {', '.join(map(repr, sorted(wanted)))}"
        self._committed = {
            partition: offset
            for partition, offset in source.view.offsets.items()
            if wanted is None or partition.topic in wanted
        }

    @property
    def committed(self) -> Mapping[TopicPartition, int]:
        """The offsets to move."""
        return self._committed

    def _require(self) -> None:
        if not self._committed:
            raise NotFoundError(
                f"group {self._source.group!r} committed no offsets{self._of_topics}; see `consumerd offsets get`"
            )

    async def keep_numbers(self) -> OffsetPlan:
        """Plan the same offsets under the target's names. Raises NotFoundError, BrokerError, ZooKeeperError."""
        self._require()
        there = await self._target.topics({self._rename(partition.topic) for partition in self._committed})
        wanted: dict[TopicPartition, int] = {}
        sources: defaultdict[TopicPartition, list[tuple[TopicPartition, int]]] = defaultdict(list)
        notes = []
        for partition, offset in sorted(self._committed.items()):
            moved = TopicPartition.numbered(self._rename(partition.topic), partition.partition)
            if moved.partition not in there.get(moved.topic, ()):
                notes.append(f"{partition}: the target has no {moved}, so its offset {offset} is not moved")
                continue
            wanted[moved] = min(offset, wanted.get(moved, offset))
            sources[moved].append((partition, offset))
        if not wanted:
            raise NotFoundError(f"the target has none of the partitions of group {self._source.group!r}")
        return await self._plan(wanted, sources, notes=notes)

    async def translate(
        self, log: ReadableLog, *, cluster: str | None = None, empty: Iterable[TopicPartition] = ()
    ) -> OffsetPlan:
        """Translate by the forwarded messages of `log`; `empty`: old partitions whose logs hold nothing.

        Raises NotFoundError, also for topics that the target does not have, and what reading it raises.
        """
        self._require()
        by_topic: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        for partition in sorted(self._committed):
            by_topic[self._rename(partition.topic)].append(partition)
        there = await self._target.topics(by_topic)
        translator = OffsetTranslator(log, self._committed, cluster=cluster)
        wanted: dict[TopicPartition, int] = {}
        sources: dict[TopicPartition, list[tuple[TopicPartition, int]]] = {}
        problems: list[str] = []
        notes: list[str] = []
        for topic, partitions in by_topic.items():
            if not there.get(topic):
                raise NotFoundError(
                    f"the target has no topic {topic!r}: forward to it, name it by --rename, or leave it out by --topic"
                )
            found = await translator.translate(topic, there[topic], partitions, empty)
            problems += found.problems
            notes += found.notes
            for number, resume in found.offsets.items():
                one = TopicPartition.numbered(topic, number)
                wanted[one] = resume.offset
                sources[one] = [(each, self._committed[each]) for each in sorted(resume.sources)]
        return await self._plan(wanted, sources, problems, notes)

    async def _plan(
        self,
        wanted: Mapping[TopicPartition, int],
        sources: Mapping[TopicPartition, list[tuple[TopicPartition, int]]],
        problems: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> OffsetPlan:
        snapshot = await self._target.snapshot_or_unknown(self._group)
        moves = await planned_moves(self._target, snapshot, wanted, sources)
        # Live members would commit later, and what cannot be read may hide an offset.
        old = [*in_the_way(self._source, self._committed), *self._source.view.problems]
        groups = [f"group {self._source.group!r}: {each}" for each in old]
        groups += [f"group {self._group!r} on the target: {each}" for each in in_the_way(snapshot, wanted)]
        return OffsetPlan(moves, [*problems, *groups], list(notes))


async def planned_moves(
    target: V08GroupSource,
    snapshot: GroupSnapshot,
    wanted: Mapping[TopicPartition, int],
    sources: Mapping[TopicPartition, Sequence[tuple[TopicPartition, int]]],
) -> list[OffsetMove]:
    """The moves of one group to the offsets `wanted` on the target, each with its problem, if it has one."""
    changes = await (await target.planner(snapshot)).set_to(dict(wanted))
    ranges = await target.logs.ranges(wanted)
    moves = []
    for change in changes:
        known = ranges[change.partition]
        end = known.end if isinstance(known, LogRange) else None
        moves.append(OffsetMove(_forwards_only(change), tuple(sources.get(change.partition, ())), end))
    return moves


def _forwards_only(change: OffsetChange) -> OffsetChange:
    before, after = change.before, change.after
    if change.problem is None and before is not None and after is not None and after < before:
        return change._replace(problem=f"it would move backwards by {before - after:,}")
    return change

"""Plans the offsets of a group that moves to another cluster, and checks them. Nothing is written here.

Strategy: every partition of the target becomes an `OffsetMove`: a change of the target's offset, with where it comes
from. The numbers are kept where both sides are one cluster (offsets in ZooKeeper and in Kafka number the same
messages): two sides that have a broker in common are one cluster. They are translated by the headers of the forwarder
everywhere else: offsets of Kafka 0.7 are byte positions; for other clusters the user has to say which. Offsets that
would go back on the target or that its logs do not hold, and live members on either side, are problems: nothing is
written while there is one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from consumerd.base.errors import BrokerError, ConsumerdError, ExitCode, NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.handlers.forward.target_log import TargetLog
from consumerd.operate.admin.changes import OffsetChange
from consumerd.operate.admin.editing import in_the_way
from consumerd.operate.admin.group_source import GroupSource
from consumerd.operate.admin.logs import LogRange
from consumerd.operate.admin.offset_plans import OffsetMove, OffsetPlan
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.operate.admin.v08.group_source import V08GroupSource
from consumerd.operate.migrate.offsets_translation import OffsetTranslator, ReadableLog
from consumerd.wire.registry.dialect import Dialect


class TranslationChoiceError(ConsumerdError):
    """Whether offsets are to be translated is unknown, or the choice contradicts the clusters."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """The offsets to move, and the options."""

    group: str
    #: The group's name on the target.
    to_group: str
    #: Only these topics; empty for all.
    topics: tuple[str, ...] = ()
    #: Topic -> its name on the target.
    renames: Mapping[str, str] = field(default_factory=dict)
    #: None: decided by the clusters.
    translate: bool | None = None
    #: The source's name in the headers of forwarded messages.
    source: str | None = None


async def plan_move(old: GroupSource, new: V08GroupSource, request: MoveRequest) -> OffsetPlan:
    """Plan the move from `old` to `new`. Raises TranslationChoiceError, NotFoundError, BrokerError, ZooKeeperError."""
    planner = MovePlanner(await old.snapshot(request.group), new, request)
    if not await _translates(old, new, request.translate):
        return await planner.keep_numbers()
    if new.logs.client is None:
        raise BrokerError(
            "offsets are translated by the target's messages, but none of its brokers can be reached: check that they "
            "run, and their addresses"
        )
    ranges = await old.logs.ranges(planner.committed)
    empty = {each for each, known in ranges.items() if isinstance(known, LogRange) and not known.size}
    return await planner.translate(TargetLog(new.logs.client), empty)


async def _translates(old: GroupSource, new: V08GroupSource, choice: bool | None) -> bool:
    """Whether offsets have to be translated. Raises TranslationChoiceError where the clusters do not tell."""
    if old.dialect is Dialect.V07:
        if choice is False:
            raise TranslationChoiceError("--same-numbers cannot be used with Kafka 0.7: its offsets are byte positions")
        return True
    if choice is not None:
        return choice
    ours, theirs = await old.addresses(), await new.addresses()
    if set(ours.values()) & set(theirs.values()):
        return False
    raise TranslationChoiceError(
        "the two sides have no broker in common: give --translate if messages were forwarded from one to the other, or "
        "--same-numbers if the target is a copy with the same offsets (or the same cluster by other addresses)"
    )


class MovePlanner:
    """Plans how the offsets of `source`, a look at the old group, become those of the requested one on `target`."""

    def __init__(self, source: GroupSnapshot, target: V08GroupSource, request: MoveRequest) -> None:
        self._source = source
        self._target = target
        self._request = request
        #: The offsets to move.
        self.committed = {
            partition: offset
            for partition, offset in source.view.offsets.items()
            if not request.topics or partition.topic in request.topics
        }

    def _rename(self, topic: str) -> str:
        return self._request.renames.get(topic, topic)

    def _require(self) -> None:
        if not self.committed:
            topics = self._request.topics
            of_topics = f" of {', '.join(map(repr, sorted(topics)))}" if topics else ""
            raise NotFoundError(
                f"group {self._source.group!r} committed no offsets{of_topics}; see `consumerd offsets get`"
            )

    async def keep_numbers(self) -> OffsetPlan:
        """Plan the same offsets under the target's names. Raises NotFoundError, BrokerError, ZooKeeperError."""
        self._require()
        there = await self._target.topics({self._rename(partition.topic) for partition in self.committed})
        wanted: dict[TopicPartition, int] = {}
        sources: defaultdict[TopicPartition, list[tuple[TopicPartition, int]]] = defaultdict(list)
        notes = []
        for partition, offset in sorted(self.committed.items()):
            moved = TopicPartition.numbered(self._rename(partition.topic), partition.partition)
            if moved.partition not in there.get(moved.topic, ()):
                notes.append(f"{partition}: the target has no {moved}, so its offset {offset} is not moved")
                continue
            wanted[moved] = min(offset, wanted.get(moved, offset))
            sources[moved].append((partition, offset))
        if not wanted:
            raise NotFoundError(f"the target has none of the partitions of group {self._source.group!r}")
        return await self._plan(wanted, sources, notes=notes)

    async def translate(self, log: ReadableLog, empty: Iterable[TopicPartition] = ()) -> OffsetPlan:
        """Translate by the forwarded messages of `log`; `empty`: old partitions whose logs hold nothing.

        Raises NotFoundError, also for topics that the target does not have, and what reading it raises.
        """
        self._require()
        by_topic: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        for partition in sorted(self.committed):
            by_topic[self._rename(partition.topic)].append(partition)
        there = await self._target.topics(by_topic)
        translator = OffsetTranslator(log, self.committed, cluster=self._request.source)
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
                sources[one] = [(each, self.committed[each]) for each in sorted(resume.sources)]
        return await self._plan(wanted, sources, problems, notes)

    async def _plan(
        self,
        wanted: Mapping[TopicPartition, int],
        sources: Mapping[TopicPartition, list[tuple[TopicPartition, int]]],
        problems: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> OffsetPlan:
        snapshot = await self._target.snapshot_or_unknown(self._request.to_group)
        moves = await planned_moves(self._target, snapshot, wanted, sources)
        # Live members would commit later, and what cannot be read may hide an offset.
        old = [*in_the_way(self._source, self.committed), *self._source.view.problems]
        groups = [f"group {self._source.group!r}: {each}" for each in old]
        groups += [f"group {self._request.to_group!r} on the target: {each}" for each in in_the_way(snapshot, wanted)]
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

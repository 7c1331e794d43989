"""Where the groups of an archive continue on the cluster that it was replayed to, and which of them do not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.handlers.forward.positions import ForwardPosition
from consumerd.handlers.forward.target_log import LogBounds
from consumerd.net.cluster.groups import GroupView, LiveMember
from consumerd.net.cluster.view_v08 import PartitionView
from consumerd.operate.admin.logs import LogRange, LookupFailure
from consumerd.operate.admin.v08.group_source import V08GroupSource
from consumerd.operate.admin.v08.snapshot import CoordinatorKind, V08GroupSnapshot
from consumerd.operate.migrate.archived_topics import ArchivedPartition, find_archived
from consumerd.operate.migrate.restored_offsets import Committed, OffsetsRestore, RestoredOffsets, select_offsets
from consumerd.storage.archives.sources import find_sources
from consumerd.storage.segments.group_offsets import ArchivedOffset, OffsetKey
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.v08.records import Record, RecordCodec, decode_records
from tests.support.archives import batch, write_segment

T0 = TopicPartition.numbered("t", 0)
#: What the archive's messages are called, by their offsets there.
MESSAGES = {10: b"a", 11: b"b", 14: b"c", 30: b"d", 31: b"e"}
#: Where the target has them: from 100 on, with the end of a transaction behind each.
PLACES = {offset: 100 + 2 * at for at, offset in enumerate(MESSAGES)}
END = 109
BEHIND = "the group continues behind that"


class Target:
    """The cluster: groups, and the topic `t` or `u` of one partition with `values` from offset 100 on."""

    dialect = Dialect.V08
    coordinator = CoordinatorKind.BROKER
    unknown, planner = V08GroupSource.unknown, V08GroupSource.planner
    snapshot_or_unknown = V08GroupSource.snapshot_or_unknown

    def __init__(self, values: Sequence[bytes] = tuple(MESSAGES.values()), topic: str = "t") -> None:
        self.values = values
        self.topic = topic
        self.groups: dict[str, V08GroupSnapshot] = {}
        self.logs = self
        self.prepared: list[str] = []

    def add(self, group: str, *members: str, offset: int | None = None, **more: Any) -> None:
        place = TopicPartition.numbered(self.topic, 0)
        view = GroupView(group, offsets={} if offset is None else {place: offset})
        view.members = {member: LiveMember("", None) for member in members}
        self.groups[group] = V08GroupSnapshot(view, {}, self.coordinator, **more)

    async def prepare(self, groups: Sequence[str]) -> None:
        self.prepared += groups

    async def snapshot(self, group: str) -> V08GroupSnapshot:
        if group not in self.groups:
            raise NotFoundError(group)
        return self.groups[group]

    async def topics(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        return {self.topic: {0: PartitionView((1,), 1, (1,))}}

    async def ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange | LookupFailure]:
        return {each: LogRange(100, END + 1) for each in partitions}

    async def bounds(self, topic: str, partition: int) -> LogBounds:
        assert (topic, partition) == (self.topic, 0)
        return LogBounds(100, END + 1)

    async def read(self, topic: str, partition: int, start: int, end: int) -> AsyncIterator[list[Record]]:
        for at, value in enumerate(self.values):
            yield list(decode_records(batch(100 + 2 * at, value), 0).messages())


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Offsets 10 to 31 in two segments, of which the first ends at 14 and the second begins at 30."""
    write_segment(tmp_path, "t-0", 10, batch(10, b"a", b"b"), batch(14, b"c"))
    write_segment(tmp_path, "t-0", 30, batch(30, b"d", b"e", codec=RecordCodec.GZIP))
    return tmp_path


def archived_in(path: Path) -> list[ArchivedPartition]:
    return find_archived(find_sources([str(path)]), ["t", "gone"], all_there=False)


def restore(path: Path, target: Target, committed: Committed, **more: Any) -> OffsetsRestore:
    return OffsetsRestore(committed, archived_in(path), target, target, **more)  # type: ignore[arg-type]


async def planned(path: Path, target: Target, committed: int) -> tuple[int | None, str | None]:
    """The offset of a group that had committed this one, and the remark."""
    plan = await restore(path, target, {"g": {T0: committed}}).plan()
    assert plan.refusals == []
    (move,) = plan.moves
    assert move.sources == ((T0, committed),)
    return move.change.after, move.change.note


async def test_group_continues_at_the_first_message_that_it_had_not_read(archive: Path) -> None:
    target = Target()
    for committed in range(10, 15):
        following = min(offset for offset in MESSAGES if offset >= committed)
        assert await planned(archive, target, committed) == (PLACES[following], None)
    for committed in (30, 31):
        assert await planned(archive, target, committed) == (PLACES[committed], None)
    assert await planned(archive, target, 32) == (END, None)


@pytest.mark.parametrize(
    ("committed", "after", "note"),
    [
        (4, PLACES[10], "the archive begins at 10, 6 behind 4: the group continues with its first message"),
        (
            15,
            PLACES[30],
            "the archive has nothing from 15 to 29 (compaction, or a missing or damaged segment): " + BEHIND,
        ),
        (40, END, "the archive ends at 32, 8 before 40: the group continues behind it"),
    ],
)
async def test_offsets_of_which_the_archive_has_nothing_are_explained(
    archive: Path, committed: int, after: int, note: str
) -> None:
    assert await planned(archive, Target(), committed) == (after, note)


async def test_an_emptied_partition_ends_where_its_segment_begins(tmp_path: Path) -> None:
    write_segment(tmp_path, "t-0", 50)
    assert await planned(tmp_path, Target(()), 50) == (100, None)


async def test_nothing_is_translated_behind_a_difference(archive: Path) -> None:
    target = Target((b"a", b"other"))
    plan = await restore(archive, target, {"far": {T0: 14}, "near": {T0: 10}}).plan()
    assert [(each.change.group, each.change.after) for each in plan.moves] == [("near", 100)]
    (refusal,) = plan.refusals
    assert refusal.startswith(
        "group 'far': t/0: the messages before offset 14 are not the same on the target: the message at offset 11 "
        "differs in its value"
    )
    assert refusal.endswith("replay it first (`consumerd log export --to-bootstrap-server`)")
    assert [each.change.group for each in plan.writable] == ["near"]


async def test_target_without_the_topic_is_refused_and_a_topic_that_the_archive_lacks_is_left_out(
    archive: Path,
) -> None:
    gone = TopicPartition.numbered("gone", 3)
    plan = await restore(archive, Target(topic="u"), {"g": {T0: 10, gone: 7}}).plan()
    assert [each.split(";")[0] for each in plan.refusals] == ["group 'g': t/0: the target has no t/0"]
    assert plan.notes == ["gone/3: the archive has no segment of it, so its offsets are not moved"]
    target = Target(topic="u")
    plan = await restore(archive, target, {"g": {T0: 10}}, naming=lambda _: "u").plan()
    assert [str(each.change.partition) for each in plan.writable] == ["u/0"]
    assert target.prepared == ["g"]


async def test_groups_that_are_in_use_or_further_on_are_refused_and_hold_back_no_others(archive: Path) -> None:
    target = Target()
    target.add("busy", *(f"m{number}" for number in range(5)), clients={"m0": "app at 10.0.0.1"})
    target.add("shares", group_type="share")
    target.add("further", offset=103)
    target.add("there", offset=102)
    target.add("behind", offset=100)
    committed = {group: {T0: 11} for group in ("behind", "busy", "further", "new", "shares", "there")}
    run = restore(archive, target, committed)
    plan = await run.plan()
    assert plan.refusals == [
        "group 'busy' has members on the target (app at 10.0.0.1, m1, m2 and 2 more): stop them first",
        "group 'further': t/0: it would move backwards by 1",
        "group 'shares' is of type 'share' on the target: choose others with --group",
    ]
    assert [(each.change.group, each.change.before) for each in plan.writable] == [("behind", 100), ("new", None)]
    assert await run.check(plan.allowed) == [
        "group 'behind': the offset of t/0 is 100, not 102",
        "group 'new': the offset of t/0 is missing, not 102",
    ]
    target.add("behind", offset=102)
    target.add("new", offset=102)
    again: RestoredOffsets = await run.plan()
    assert (again.writable, await run.check(again.allowed)) == ([], [])


def test_leaves_out_what_expired_and_the_positions_of_mirrors() -> None:
    def key(group: str, topic: str = "t") -> OffsetKey:
        return OffsetKey(group, topic, 0)

    position = ForwardPosition(500).as_offset().metadata or ""
    offsets = {
        key("g"): ArchivedOffset(5, 3, "text", 2000),
        key("g", "old"): ArchivedOffset(6, None, "", 100, 1000),
        key("late"): ArchivedOffset(7, None, "", 1500, 9000),
        key("consumerd-restore/t/0"): ArchivedOffset(8, None, position, 2000),
        key("a/b/0"): ArchivedOffset(9, None, "a text of its own", 2000),
    }
    chosen = select_offsets(offsets)
    assert chosen.committed == {"g": {T0: 5}, "late": {T0: 7}, "a/b/0": {T0: 9}}
    assert chosen.notes == [
        "group 'g': offsets that had expired are left out",
        "positions of a mirror or a restore in another cluster are left out: consumerd-restore/t/0",
    ]
    some = select_offsets(offsets, ["late", "unknown"])
    assert some.committed == {"late": {T0: 7}}
    assert some.notes == ["group 'unknown': the archive has no offset of it"]

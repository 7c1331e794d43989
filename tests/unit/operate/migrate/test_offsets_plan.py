"""The offsets that a group gets on the target, and the reasons against the transfer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from consumerd.base.errors import ExitCode, NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.cli.main import run
from consumerd.net.cluster.groups import GroupView, LiveMember
from consumerd.net.cluster.view_v08 import PartitionView
from consumerd.operate.admin.changes import OffsetChange
from consumerd.operate.admin.logs import LogRange, LookupFailure
from consumerd.operate.admin.snapshot import GroupSnapshot, V07GroupSnapshot
from consumerd.operate.admin.v08.group_source import V08GroupSource
from consumerd.operate.admin.v08.snapshot import CoordinatorKind, V08GroupSnapshot
from consumerd.operate.migrate.offsets_plan import MovePlanner, MoveRequest, TranslationChoiceError, plan_move
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.subscription import StaticSubscription
from tests.unit.operate.migrate.test_offsets_translation import Log

OLD = [TopicPartition("t", 0, 0), TopicPartition("t", 1, 0)]
NEW = TopicPartition.numbered("new", 0)


class Target:
    """A cluster of 0.8 or later with the topic `new` of one partition, offsets 10 to 100."""

    dialect = Dialect.V08
    coordinator = CoordinatorKind.BROKER
    unknown, planner = V08GroupSource.unknown, V08GroupSource.planner
    snapshot_or_unknown = V08GroupSource.snapshot_or_unknown

    def __init__(self, view: GroupView | None = None) -> None:
        self._view = view
        self.logs = self

    async def snapshot(self, group: str) -> V08GroupSnapshot:
        if self._view is None:
            raise NotFoundError(group)
        return V08GroupSnapshot(self._view, {"new": (0,)}, self.coordinator)

    async def topics(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        return {"new": {0: PartitionView((1,), 1, (1,))}}

    async def ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange | LookupFailure]:
        return {each: LogRange(10, 100) if each == NEW else LookupFailure("no such partition") for each in partitions}


def committed(offsets: dict[TopicPartition, int], **view: Any) -> GroupSnapshot:
    return V07GroupSnapshot(GroupView("g", offsets=offsets, **view), {})


def planner(source: GroupSnapshot, target: Target, *topics: str) -> MovePlanner:
    renames = dict.fromkeys(("a", "b", "c", "d", "t"), "new")
    return MovePlanner(source, target, MoveRequest("g", "h", topics, renames))  # type: ignore[arg-type]


def the_change(changes: list[OffsetChange]) -> OffsetChange:
    (change,) = changes
    assert (change.group, change.partition) == ("h", NEW)
    return change


async def test_translates_two_old_partitions_to_one() -> None:
    log = Log(start=10)
    for offset in range(5):
        for each in OLD:
            log.add(0, each, offset)
    source = committed(dict(zip(OLD, (4, 2), strict=True)))
    plan = await planner(source, Target()).translate(log)  # type: ignore[arg-type]
    change = the_change(plan.changes)
    assert (change.before, change.after) == (None, log.records[0][5].offset)
    assert plan.moves[0].sources == ((OLD[0], 4), (OLD[1], 2))
    assert (plan.moves[0].lag, plan.refusals) == (100 - log.records[0][5].offset, [])


async def test_keeps_numbers_and_takes_the_smaller_of_two() -> None:
    places = [TopicPartition.numbered(topic, 0) for topic in ("a", "b", "c")]
    source = committed(dict(zip(places, (50, 40, 0), strict=True)))
    plan = await planner(source, Target(), "a", "b").keep_numbers()
    assert the_change(plan.changes).after == 40
    assert plan.refusals == []
    gone = TopicPartition.numbered("a", 7)
    plan = await planner(committed({places[0]: 50, gone: 3}), Target()).keep_numbers()
    assert the_change(plan.changes).after == 50
    assert plan.notes == ["a/7: the target has no new/7, so its offset 3 is not moved"]
    with pytest.raises(NotFoundError, match="none of the partitions"):
        await planner(committed({gone: 3}), Target()).keep_numbers()
    with pytest.raises(NotFoundError, match="committed no offsets of 'd'"):
        await planner(source, Target(), "d").keep_numbers()


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (30, 40, None),
        (40, 40, None),
        (41, 40, "new/0: it would move backwards by 1"),
        (None, 9, "new/0: the broker has 10 to 100"),
        (None, 101, "new/0: the broker has 10 to 100"),
    ],
)
async def test_never_moves_an_offset_back_or_beyond_the_log(before: int | None, after: int, says: str | None) -> None:
    view = GroupView("h", offsets={} if before is None else {NEW: before})
    plan = await planner(committed({TopicPartition.numbered("t", 0): after}), Target(view)).keep_numbers()
    assert plan.refusals == ([] if says is None else [says])
    assert the_change(plan.changes).moves == (before != after)


async def test_live_members_and_unreadable_offsets_are_problems() -> None:
    member = {"x": LiveMember("", StaticSubscription({"t": 1, "new": 1}))}
    source = committed({OLD[0]: 5}, members=member, problems=["a node is damaged"])
    log = Log(start=10)
    log.add(0, OLD[0], 0)
    plan = await planner(source, Target(GroupView("h", members=member))).translate(log)  # type: ignore[arg-type]
    assert plan.refusals == [
        "group 'g': member x is alive and subscribes",
        "group 'g': a node is damaged",
        "group 'h' on the target: member x is alive and subscribes",
    ]


async def test_names_a_topic_that_the_target_lacks() -> None:
    with pytest.raises(NotFoundError, match="no topic 't': forward to it, name it by --rename, or leave it out"):
        await MovePlanner(committed({OLD[0]: 5}), Target(), MoveRequest("g", "h")).translate(Log())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to-zookeeper", "z:1"], "give --from-zookeeper, --from-bootstrap-server, or --from-config"),
        (["--from-zookeeper", "z:1"], "give --to-zookeeper, --to-bootstrap-server, or --to-config"),
        (
            ["--from-zookeeper", "z:1", "--from-bootstrap-server", "k:1", "--to-zookeeper", "z:1"],
            "either --from-zookeeper or --from-bootstrap-server",
        ),
        (["--from-zookeeper", "z:1", "--to-zookeeper", "z:1"], "give --group"),
        (["--from-zookeeper", "z:1", "--to-zookeeper", "z:1", "--group", "g", "--rename", "a"], "OLD=NEW"),
        (["--from-zookeeper", "z:1", "--to-zookeeper", "z:1", "--group", ""], "--group: must not be empty"),
        (
            ["--from-zookeeper", "z:1", "--to-zookeeper", "z:1", "--group", "g", "--to-group", ""],
            "--to-group: must not be empty",
        ),
    ],
)
def test_rejects_wrong_options(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["migrate", "offsets", *arguments]) == ExitCode.USAGE
    assert words in capsys.readouterr().err


# -- whether numbers are kept or translated


class Cluster(Target):
    """A cluster whose one broker is at `address`, with a group that committed offsets."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    async def snapshot(self, group: str) -> V08GroupSnapshot:
        committed = {TopicPartition.numbered("t", 0): 5}
        return V08GroupSnapshot(GroupView(group, offsets=committed), {"new": (0,)}, self.coordinator)

    async def addresses(self) -> dict[int, str]:
        return {1: self._address}


def request(**options: Any) -> MoveRequest:
    return MoveRequest("g", "g", renames={"t": "new"}, **options)


async def plan(source: Cluster, target: Target, **options: Any) -> Any:
    return await plan_move(source, target, request(**options))  # type: ignore[arg-type]


async def test_keeps_numbers_within_one_cluster() -> None:
    (move,) = (await plan(Cluster("a:1"), Cluster("a:1"))).moves
    assert move.change.after == 5


async def test_requires_a_choice_between_two_clusters() -> None:
    with pytest.raises(TranslationChoiceError, match="no broker in common"):
        await plan(Cluster("a:1"), Cluster("b:1"))
    (move,) = (await plan(Cluster("a:1"), Cluster("b:1"), translate=False)).moves
    assert move.change.after == 5


async def test_rejects_same_numbers_for_byte_positions() -> None:
    class Old(Cluster):
        dialect = Dialect.V07

        async def snapshot(self, group: str) -> Any:
            return V07GroupSnapshot(GroupView(group, offsets={OLD[0]: 5}), {})

    with pytest.raises(TranslationChoiceError, match="byte positions"):
        await plan(Old("a:1"), Cluster("a:1"), translate=False)

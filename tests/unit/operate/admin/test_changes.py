from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from consumerd.base.partition import TopicPartition
from consumerd.net.cluster.view import ClusterView
from consumerd.operate.admin.changes import OffsetChange, OffsetTarget, OffsetTargetKind, V07ChangePlanner
from consumerd.operate.admin.snapshot import V07GroupSnapshot
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.v07 import Codec
from tests.unit.conftest import Cluster

T0, T1, GONE = TopicPartition("t", 0, 0), TopicPartition("t", 0, 1), TopicPartition("t", 9, 0)
TOPICS = {"t": {0: 2}}


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    zookeeper = MemoryZooKeeper()
    zookeeper.put("/consumers/g/offsets/t/0-0", b"30")
    zookeeper.put("/consumers/g/offsets/t/9-0", b"5")
    return zookeeper


@pytest_asyncio.fixture
async def planner(cluster: Cluster, zookeeper: MemoryZooKeeper) -> AsyncIterator[V07ChangePlanner]:
    """Broker 0 with t/0-0 of messages at 0, 30, 60, 90 and a wrapper of five from 120 on; nothing in t/0-1."""
    await cluster.start(0)
    ends = await cluster.fill(T0, ([b"x" * 20] * 4, Codec.NONE), ([b"y" * 40] * 5, Codec.GZIP))
    assert ends[:5] == [0, 30, 60, 90, 120]
    async with zookeeper.session() as zk:
        view = await ClusterView(zk).read_group("g")
    yield V07ChangePlanner(V07GroupSnapshot(view, TOPICS, cluster.brokers), cluster.logs)


async def test_plans_set(planner: V07ChangePlanner, cluster: Cluster) -> None:
    end = cluster.boundaries[T0][-1]
    changes = await planner.set_to({T0: 60, T1: 0, GONE: 7})
    assert changes == [
        OffsetChange("g", T0, 30, 60, 0),
        OffsetChange("g", T1, None, 0, None),
        OffsetChange("g", GONE, 5, 7, 0, note="not checked: broker 9 is not registered"),
    ]
    assert all(change.moves for change in changes)
    (inside,) = await planner.set_to({T0: 61})
    assert inside.problem == "inside a message that begins at 60"
    (inside,) = await planner.set_to({T0: 121})
    assert inside.problem == "inside a message that begins at 120"
    (outside,) = await planner.set_to({T0: end + 1})
    assert outside.problem == f"the broker has 0 to {end}"
    (last,) = await planner.set_to({T0: end})
    assert (last.problem, last.note) == (None, None)
    (missing,) = await planner.set_to({TopicPartition("t", 0, 2): 0})
    assert missing.problem == "broker 0 has no such partition"


async def test_ignores_offsets_that_stay(planner: V07ChangePlanner) -> None:
    changes = await planner.set_to({T0: 30, T1: None, GONE: 5})
    assert [(change.moves, change.problem, change.note) for change in changes] == [(False, None, None)] * 3


async def test_deletes_without_a_broker(planner: V07ChangePlanner) -> None:
    assert await planner.set_to({GONE: None}) == [OffsetChange("g", GONE, 5, None, 0)]


async def test_plans_reset_to_the_ends(planner: V07ChangePlanner, cluster: Cluster) -> None:
    end = cluster.boundaries[T0][-1]
    assert [change.after for change in await planner.reset([T0, T1], OffsetTarget(OffsetTargetKind.LATEST))] == [end, 0]
    assert [change.after for change in await planner.reset([T0, T1], OffsetTarget(OffsetTargetKind.EARLIEST))] == [0, 0]
    (unknown,) = await planner.reset([GONE], OffsetTarget(OffsetTargetKind.LATEST))
    assert (unknown.unknown, unknown.moves, unknown.problem) == (True, False, "broker 9 is not registered")
    assert [change.after for change in await planner.reset([T0], OffsetTarget(OffsetTargetKind.OFFSET, 90))] == [90]


@pytest.mark.parametrize(
    ("by", "after", "note"),
    [
        (30, 60, None),
        (29, 30, "a message starts there, 29 bytes before 59"),
        (-1, 0, "a message starts there, 29 bytes before 29"),
        (-30, 0, None),
        (-31, 0, "limited to the range of the log"),
        (95, 120, "a message starts there, 5 bytes before 125"),
    ],
)
async def test_shift_ends_at_a_boundary(planner: V07ChangePlanner, by: int, after: int, note: str | None) -> None:
    (change,) = await planner.reset([T0], OffsetTarget(OffsetTargetKind.SHIFT, by))
    assert (change.after, change.note, change.problem) == (after, note, None)


async def test_shift_needs_a_committed_offset(planner: V07ChangePlanner, cluster: Cluster) -> None:
    (change,) = await planner.reset([T1], OffsetTarget(OffsetTargetKind.SHIFT, 5))
    assert (change.unknown, change.problem) == (True, "no committed offset to shift")
    (change,) = await planner.reset([T0], OffsetTarget(OffsetTargetKind.SHIFT, 1 << 40))
    assert change.after == cluster.boundaries[T0][-1]


async def test_plans_reset_by_time(planner: V07ChangePlanner, cluster: Cluster) -> None:
    (before,) = await planner.reset([T0], OffsetTarget(OffsetTargetKind.TIME, 1000))
    assert (before.after, before.note) == (0, "all messages in the log are younger")
    (after,) = await planner.reset([T0], OffsetTarget(OffsetTargetKind.TIME, 1 << 50))
    assert (after.after, after.note) == (cluster.boundaries[T0][-1], None)


async def test_plans_to_overwrite_an_unreadable_offset(cluster: Cluster, zookeeper: MemoryZooKeeper) -> None:
    zookeeper.put("/consumers/g/offsets/t/9-0", b"?")
    async with zookeeper.session() as zk:
        view = await ClusterView(zk).read_group("g")
    planner = V07ChangePlanner(V07GroupSnapshot(view, {}), cluster.logs)
    (change,) = await planner.set_to({GONE: None})
    assert (change.before, change.moves) == (None, True)

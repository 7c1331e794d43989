from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.net.zk.errors import ConnectionLost, NotConnected
from consumerd.operate.admin import editing, removal
from consumerd.operate.admin.changes import OffsetChange
from consumerd.operate.admin.doctor import take_step
from consumerd.operate.admin.editing import backup_of, in_the_way, write_changes
from consumerd.operate.admin.errors import ChangedMeanwhileError, IncompleteWriteError, RefusedError
from consumerd.operate.admin.findings import NudgeGroup
from consumerd.operate.admin.removal import as_backup, delete_tree, read_tree, require_dead
from consumerd.operate.admin.snapshot import read_v07_snapshot
from consumerd.operate.admin.v08.topic_nodes import TopicPlan, TopicsByNodes
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.registry.v08.broker import BrokerNode

Sessions = Callable[[MemoryZooKeeper], AbstractAsyncContextManager[MemorySession]]


T = [TopicPartition("t", 0, number) for number in range(5)]
LEASE = 0xA


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    """A dead group: offsets, an empty list of members, and the parents of deleted owner nodes."""
    zookeeper = MemoryZooKeeper()
    zookeeper.make("/consumers/g/ids")
    zookeeper.make("/consumers/g/owners/t")
    for partition in T[:3]:
        zookeeper.put(f"/consumers/g/offsets/t/{partition.name}", b"10")
    return zookeeper


@pytest.fixture(params=[True, False], ids=["multi", "no multi"])
def session(request: pytest.FixtureRequest) -> Sessions:
    """Opens sessions with a server as it is, and with one before 3.4, which carries out no multi."""

    @asynccontextmanager
    async def opened(zookeeper: MemoryZooKeeper) -> AsyncIterator[MemorySession]:
        async with zookeeper.session() as zk:
            zk._lifecycle.has_multi = request.param
            yield zk

    return opened


def owners(zookeeper: MemoryZooKeeper) -> list[str]:
    """The owner nodes of the group: those of an edit must be deleted again."""
    return [path for path in zookeeper.dump() if path.startswith("/consumers/g/owners/t/")]


def offset(zookeeper: MemoryZooKeeper, partition: TopicPartition) -> bytes | None:
    return zookeeper.dump().get(f"/consumers/g/offsets/t/{partition.name}")


async def test_sets_creates_and_deletes_offsets(zookeeper: MemoryZooKeeper, session: Sessions) -> None:
    changes = [
        OffsetChange("g", T[0], 10, 20, 0),
        OffsetChange("g", T[1], 10, None, 0),
        OffsetChange("g", T[2], 10, 10, 0),
        OffsetChange("g", T[3], None, 5, None),
        OffsetChange("g", T[4], None, None, None, problem="?", unknown=True),
        OffsetChange("new", TopicPartition("u", 1, 1), None, 7, None),
    ]
    async with session(zookeeper) as zk:
        assert await write_changes(zk, changes, force=False) == 4
    assert [offset(zookeeper, partition) for partition in T] == [b"20", None, b"10", b"5", None]
    assert zookeeper.dump()["/consumers/new/offsets/u/1-1"] == b"7"
    assert [path for path in zookeeper.dump() if path.startswith("/consumers/g/owners/")] == ["/consumers/g/owners/t"]
    assert backup_of(changes) == {
        "g": {T[0]: 10, T[1]: 10, T[2]: 10, T[3]: None, T[4]: None},
        "new": {TopicPartition("u", 1, 1): None},
    }


async def test_server_rejects_the_write_after_a_claim(zookeeper: MemoryZooKeeper, session: Sessions) -> None:
    changes = [OffsetChange("g", T[0], 10, 20, 0), OffsetChange("g", T[1], 10, 20, 0)]
    zookeeper.put("/consumers/g/owners/t/0-1", b"g_a-0", session_id=LEASE)
    async with session(zookeeper) as zk:
        with pytest.raises(ChangedMeanwhileError, match="t/0-1 of group g was claimed") as refused:
            await write_changes(zk, changes, force=False)
        assert f"{0 if zk.has_multi else 1} of 2 offsets were written" in str(refused.value)
        # Without multi the changes before the refused one are made, and only these.
        assert offset(zookeeper, T[0]) == (b"10" if zk.has_multi else b"20")
        assert owners(zookeeper) == ["/consumers/g/owners/t/0-1"]
        await write_changes(zk, changes, force=True)
    assert offset(zookeeper, T[1]) == b"20"
    assert zookeeper.dump()["/consumers/g/owners/t/0-1"] == b"g_a-0"


async def test_does_not_overwrite_a_commit_after_the_snapshot(zookeeper: MemoryZooKeeper, session: Sessions) -> None:
    zookeeper.put("/consumers/g/offsets/t/0-0", b"11")  # version 1 now
    async with session(zookeeper) as zk:
        with pytest.raises(ChangedMeanwhileError, match="modified concurrently"):
            await write_changes(zk, [OffsetChange("g", T[0], 10, 20, 0)], force=False)
        with pytest.raises(ChangedMeanwhileError, match="already exists"):
            await write_changes(zk, [OffsetChange("g", T[1], None, 20, None)], force=False)
        assert offset(zookeeper, T[0]) == b"11"
        assert owners(zookeeper) == []
        assert await write_changes(zk, [OffsetChange("g", T[0], 10, 20, 0)], force=True) == 1
    assert offset(zookeeper, T[0]) == b"20"


async def test_writes_many_changes_in_several_transactions(
    zookeeper: MemoryZooKeeper, session: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(editing, "CHANGES_PER_MULTI", 2)
    changes = [OffsetChange("g", partition, 10, 20, 0) for partition in T[:3]]
    zookeeper.put("/consumers/g/offsets/t/0-2", b"11")
    async with session(zookeeper) as zk:
        with pytest.raises(ChangedMeanwhileError, match="2 of 3 offsets were written"):
            await write_changes(zk, changes, force=False)
    assert [offset(zookeeper, partition) for partition in T[:3]] == [b"20", b"20", b"11"]


async def test_first_member_of_a_group_cannot_claim_a_partition_unseen(
    zookeeper: MemoryZooKeeper, session: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(editing, "CHANGES_PER_MULTI", 1)
    partitions = [TopicPartition("u", 0, number) for number in range(2)]
    changes = [OffsetChange("new", partition, None, 20, None) for partition in partitions]
    write = editing.write_together

    async def claiming(zk: MemorySession, operations: Sequence[Any]) -> None:
        await write(zk, operations)
        if "/consumers/new/owners/u/0-1" not in zookeeper.dump():
            zookeeper.put("/consumers/new/owners/u/0-1", b"new_a-0", session_id=LEASE)

    monkeypatch.setattr(editing, "write_together", claiming)
    async with session(zookeeper) as zk:
        with pytest.raises(ChangedMeanwhileError, match=r"u/0-1 of group new was claimed .* 1 of 2 offsets were"):
            await write_changes(zk, changes, force=False)
    assert "/consumers/new/offsets/u/0-1" not in zookeeper.dump()


async def test_says_how_many_offsets_were_written_when_the_session_fails(
    zookeeper: MemoryZooKeeper, session: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(editing, "CHANGES_PER_MULTI", 1)
    write = editing.write_together
    written: list[Sequence[Any]] = []

    async def failing(zk: MemorySession, operations: Sequence[Any]) -> None:
        if written:
            raise NotConnected("no connection to ZooKeeper")
        written.append(operations)
        await write(zk, operations)

    monkeypatch.setattr(editing, "write_together", failing)
    async with session(zookeeper) as zk:
        with pytest.raises(IncompleteWriteError, match="; 1 of 3 offsets were written before that, and perhaps"):
            await write_changes(zk, [OffsetChange("g", partition, 10, 20, 0) for partition in T[:3]], force=False)
    assert [offset(zookeeper, partition) for partition in T[:3]] == [b"20", b"10", b"10"]


async def test_names_members_that_prevent_a_write(zookeeper: MemoryZooKeeper) -> None:
    async with zookeeper.session() as zk:
        assert in_the_way(await read_v07_snapshot(zk, "g"), T) == []
        zookeeper.put("/consumers/g/ids/g_other", b'{ "u": 1 }', session_id=LEASE)
        assert in_the_way(await read_v07_snapshot(zk, "g"), T) == []
        zookeeper.put("/consumers/g/owners/t/0-1", b"g_a-0", session_id=LEASE)
        assert in_the_way(await read_v07_snapshot(zk, "g"), T[:1]) == []
        assert in_the_way(await read_v07_snapshot(zk, "g"), T) == ["t/0-1 is owned by g_a-0"]
        zookeeper.put("/consumers/g/owners/t/0-2", b"?", session_id=LEASE)
        zookeeper.put("/consumers/g/ids/g_a", b"*1*t", session_id=LEASE)
        zookeeper.put("/consumers/g/ids/g_b", b"?", session_id=LEASE)
        assert in_the_way(await read_v07_snapshot(zk, "g"), T) == [
            "member g_a is alive and subscribes",
            "member g_b is alive, and its subscription cannot be read",
            "t/0-1 is owned by g_a-0",
            "t/0-2 is owned by an unknown owner",
        ]


async def test_deletes_a_dead_group(zookeeper: MemoryZooKeeper, session: Sessions) -> None:
    zookeeper.put("/consumers/g/owner/strange", b"\xff")
    zookeeper.put("/consumers/h/offsets/t/0-0", b"1")
    async with session(zookeeper) as zk:
        tree = await read_tree(zk, "g")
        require_dead("g", tree)
        assert {(node["path"], node["data_base64"]) for node in as_backup(tree)} == {
            ("/consumers/g/owner/strange", "/w=="),
            *((f"/consumers/g/offsets/t/0-{number}", "MTA=") for number in range(3)),
        }
        assert await delete_tree(zk, "g", tree) == len(tree) == 11
        with pytest.raises(NotFoundError, match="no group 'g'"):
            await read_tree(zk, "g")
    assert sorted(zookeeper.dump()) == [
        "/consumers", "/consumers/h", "/consumers/h/offsets", "/consumers/h/offsets/t", "/consumers/h/offsets/t/0-0",
    ]  # fmt: skip


async def test_rejects_deletion_of_a_live_group(
    zookeeper: MemoryZooKeeper, session: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "NODES_PER_MULTI", 2)
    async with session(zookeeper) as zk:
        tree = await read_tree(zk, "g")
        zookeeper.put("/consumers/g/ids/g_a", b"*1*t", session_id=LEASE)
        with pytest.raises(ChangedMeanwhileError, match="0 of 9 nodes were deleted"):
            await delete_tree(zk, "g", tree)
        with pytest.raises(RefusedError, match="it has /consumers/g/ids/g_a and 0 more"):
            require_dead("g", await read_tree(zk, "g"))
        zookeeper.remove("/consumers/g/ids/g_a")
        zookeeper.put("/consumers/g/owners/t/0-0", b"g_a-0", session_id=LEASE)
        with pytest.raises(RefusedError, match="owners/t/0-0"):
            require_dead("g", await read_tree(zk, "g"))
    assert offset(zookeeper, T[0]) == b"10"


def cut_write(zookeeper: MemoryZooKeeper, zk: MemorySession, *, carried_out: bool) -> None:
    """Cut the connection at the next write."""
    pending = ["the cut"]

    def cut(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def first_cut(*arguments: Any, **options: Any) -> Any:
            if pending:
                pending.clear()
                zookeeper.cut_next_call(zk, carried_out=carried_out)
            return await call(*arguments, **options)

        return first_cut

    for name in ("multi", "create", "set", "delete"):
        setattr(zk, name, cut(getattr(zk, name)))


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize("write", ["group", "offsets", "created topic", "deleted topic"])
async def test_a_write_whose_answer_is_lost_succeeds_if_it_was_carried_out(
    zookeeper: MemoryZooKeeper, session: Sessions, write: str, carried_out: bool
) -> None:
    zookeeper.put("/brokers/topics/t", b"{}")
    async with session(zookeeper) as zk:
        tree = await read_tree(zk, "g")
        changes = [OffsetChange("g", T[0], 10, 20, 0), OffsetChange("g", T[1], 10, None, 0)]
        topics = TopicsByNodes(zk, {1: BrokerNode(1, 2, "localhost", 9092, ())})
        writes: dict[str, Callable[[], Awaitable[object]]] = {
            "group": lambda: delete_tree(zk, "g", tree),
            "offsets": lambda: write_changes(zk, changes, force=False),
            "created topic": lambda: topics.create(TopicPlan("u", assignment={0: (1,)}), timeout=0),
            "deleted topic": lambda: topics.delete("t", timeout=0),
        }
        cut_write(zookeeper, zk, carried_out=carried_out)
        task = asyncio.ensure_future(writes[write]())
        async with asyncio.timeout(60):
            while zk.link is not None:
                await asyncio.sleep(0)
        zookeeper.reconnect(zk)
        if carried_out:
            await task
        else:
            with pytest.raises(IncompleteWriteError if write == "offsets" else ConnectionLost):
                await task
    done = {
        "group": "/consumers/g" not in zookeeper.dump(),
        "offsets": (offset(zookeeper, T[0]), offset(zookeeper, T[1])) == (b"20", None),
        "created topic": {"/brokers/topics/u", "/config/topics/u"} <= zookeeper.dump().keys(),
        "deleted topic": "/admin/delete_topics/t" in zookeeper.dump(),
    }
    assert [name for name, is_done in done.items() if is_done] == [write] * carried_out
    assert owners(zookeeper) == []


async def test_nudges_no_member_without_multi(zookeeper: MemoryZooKeeper) -> None:
    """A peer could read the id, which exists for a moment then, and assign partitions to it."""
    async with zookeeper.session() as zk:
        zk._lifecycle.has_multi = False
        before = zookeeper.dump()
        with pytest.raises(RefusedError, match=r"older than 3\.4 and has no multi"):
            await take_step(zk, "g", NudgeGroup(), name="g_x")
        assert zookeeper.dump() == before
        zk._lifecycle.has_multi = True
        await take_step(zk, "g", NudgeGroup(), name="g_x")

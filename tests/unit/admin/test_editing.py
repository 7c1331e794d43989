from __future__ import annotations

import pytest

from consumerd.admin import (
    ChangedMeanwhileError,
    OffsetChange,
    RefusedError,
    as_backup,
    backup_of,
    delete_tree,
    editing,
    in_the_way,
    read_tree,
    read_v07_snapshot,
    removal,
    require_dead,
    write_changes,
)
from consumerd.errors import NotFoundError
from consumerd.partition import TopicPartition
from consumerd.testing.memory_zookeeper import MemoryZooKeeper

pytestmark = pytest.mark.asyncio

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


def offset(zookeeper: MemoryZooKeeper, partition: TopicPartition) -> bytes | None:
    return zookeeper.dump().get(f"/consumers/g/offsets/t/{partition.name}")


async def test_sets_creates_and_deletes_in_one_transaction(zookeeper: MemoryZooKeeper) -> None:
    changes = [
        OffsetChange("g", T[0], 10, 20, 0),
        OffsetChange("g", T[1], 10, None, 0),
        OffsetChange("g", T[2], 10, 10, 0),
        OffsetChange("g", T[3], None, 5, None),
        OffsetChange("g", T[4], None, None, None, problem="?", unknown=True),
        OffsetChange("new", TopicPartition("u", 1, 1), None, 7, None),
    ]
    async with zookeeper.session() as zk:
        assert await write_changes(zk, changes, force=False) == 4
    assert [offset(zookeeper, partition) for partition in T] == [b"20", None, b"10", b"5", None]
    assert zookeeper.dump()["/consumers/new/offsets/u/1-1"] == b"7"
    assert [path for path in zookeeper.dump() if path.startswith("/consumers/g/owners/")] == ["/consumers/g/owners/t"]
    assert backup_of(changes) == {
        "g": {T[0]: 10, T[1]: 10, T[2]: 10, T[3]: None, T[4]: None},
        "new": {TopicPartition("u", 1, 1): None},
    }


async def test_server_rejects_the_write_after_a_claim(zookeeper: MemoryZooKeeper) -> None:
    changes = [OffsetChange("g", T[0], 10, 20, 0), OffsetChange("g", T[1], 10, 20, 0)]
    zookeeper.put("/consumers/g/owners/t/0-1", b"g_a-0", session_id=LEASE)
    async with zookeeper.session() as zk:
        with pytest.raises(ChangedMeanwhileError, match=r"t/0-1 of group g was claimed .* 0 of 2 offsets were written"):
            await write_changes(zk, changes, force=False)
        assert offset(zookeeper, T[0]) == b"10"
        await write_changes(zk, changes, force=True)
    assert offset(zookeeper, T[1]) == b"20"
    assert zookeeper.dump()["/consumers/g/owners/t/0-1"] == b"g_a-0"


async def test_does_not_overwrite_a_commit_after_the_snapshot(zookeeper: MemoryZooKeeper) -> None:
    zookeeper.put("/consumers/g/offsets/t/0-0", b"11")  # version 1 now
    async with zookeeper.session() as zk:
        with pytest.raises(ChangedMeanwhileError, match="modified concurrently"):
            await write_changes(zk, [OffsetChange("g", T[0], 10, 20, 0)], force=False)
        with pytest.raises(ChangedMeanwhileError, match="already exists"):
            await write_changes(zk, [OffsetChange("g", T[1], None, 20, None)], force=False)
        assert offset(zookeeper, T[0]) == b"11"
        assert await write_changes(zk, [OffsetChange("g", T[0], 10, 20, 0)], force=True) == 1
    assert offset(zookeeper, T[0]) == b"20"


async def test_writes_many_changes_in_several_transactions(
    zookeeper: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(editing, "CHANGES_PER_MULTI", 2)
    changes = [OffsetChange("g", partition, 10, 20, 0) for partition in T[:3]]
    zookeeper.put("/consumers/g/offsets/t/0-2", b"11")
    async with zookeeper.session() as zk:
        with pytest.raises(ChangedMeanwhileError, match="2 of 3 offsets were written"):
            await write_changes(zk, changes, force=False)
    assert [offset(zookeeper, partition) for partition in T[:3]] == [b"20", b"20", b"11"]


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


async def test_deletes_a_dead_group(zookeeper: MemoryZooKeeper) -> None:
    zookeeper.put("/consumers/g/owner/strange", b"\xff")
    zookeeper.put("/consumers/h/offsets/t/0-0", b"1")
    async with zookeeper.session() as zk:
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


async def test_rejects_deletion_of_a_live_group(zookeeper: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "NODES_PER_MULTI", 2)
    async with zookeeper.session() as zk:
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

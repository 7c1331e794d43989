"""The name of a cluster: one for all of its members, and another one for a tree that was built again."""

from __future__ import annotations

from typing import Any

from consumerd.net.cluster.directory import TreeName
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper


class Counted:
    """A session that counts its requests."""

    def __init__(self, zk: Any) -> None:
        self.zk, self.session_id, self.asked = zk, 7, 0

    async def exists(self, path: str) -> Any:
        self.asked += 1
        return await self.zk.exists(path)


async def test_name_is_read_once_in_a_session_and_is_the_same_for_all_members(
    server: MemoryZooKeeper, zk: MemorySession
) -> None:
    session: Any = Counted(zk)
    name = TreeName(session)
    assert await name.read() is None
    assert await name.read() is None
    server.put("/brokers/ids/0", b"h:1")
    stat = await zk.exists("/brokers/ids")
    assert stat is not None
    expected = f"zk-{stat.created_zxid:x}-{stat.modified_ms:x}"
    assert [await name.read() for _ in range(3)] == [expected] * 3
    assert session.asked == 3
    assert await TreeName(zk).read() == expected


async def test_tree_that_was_built_again_has_another_name() -> None:
    zookeeper, again = MemoryZooKeeper(), MemoryZooKeeper()
    zookeeper.put("/brokers/ids", b"")
    again.put("/something", b"")
    again.put("/brokers/ids", b"")
    async with zookeeper.session() as zk, again.session() as other:
        session: Any = Counted(zk)
        name = TreeName(session)
        first = await name.read()
        session.zk, session.session_id = other, 8
        second = await name.read()
        assert second is not None
        assert second != first
        again.remove("/brokers/ids")
        session.session_id = 9
        assert await name.read() is None

from __future__ import annotations

from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.registry.nudge import NUDGE_VALUE, nudge_operations
from consumerd.wire.registry.paths import ids_path
from consumerd.wire.registry.subscription import parse_subscription


def test_nudge_value_is_a_member_without_streams() -> None:
    assert parse_subscription(NUDGE_VALUE).streams_for("t") == 0


async def test_nudge_notifies_watchers_and_leaves_no_node(server: MemoryZooKeeper, zk: MemorySession) -> None:
    server.put("/consumers/g/ids/g_a", b'{ "t": 1 }')
    told: list[None] = []
    zk.watch(ids_path("g"), lambda: told.append(None))
    assert await zk.children(ids_path("g"), watch=True) == ["g_a"]
    before = len(told)
    await zk.multi(nudge_operations("g", "g_b"))
    assert len(told) > before
    assert await zk.children(ids_path("g")) == ["g_a"]

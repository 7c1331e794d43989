from __future__ import annotations

import asyncio

from consumerd.net.cluster.reading import children, data, node, watched_children
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper


async def test_returns_none_for_missing_nodes(server: MemoryZooKeeper, zk: MemorySession) -> None:
    server.put("/a/null", None)
    assert await children(zk, "/a") == ["null"]
    assert await children(zk, "/x") == []
    assert await data(zk, "/a/null") == b""
    assert await data(zk, "/x") is None
    found = await node(zk, "/a/null")
    assert found is not None
    assert found[0] == b""
    assert await node(zk, "/x") is None


async def test_watches_a_node_on_request_only(server: MemoryZooKeeper, zk: MemorySession) -> None:
    server.put("/a", b"1")
    told: list[str] = []
    zk.watch("/a", lambda: told.append("a"))
    for watched in (False, True):
        await data(zk, "/a", watch=watched) if watched else await data(zk, "/a")
        server.put("/a", b"2")
        await zk.exists("/")
        assert told == ["a"] * watched


async def test_watches_missing_parent(server: MemoryZooKeeper, zk: MemorySession) -> None:
    told: list[str] = []
    zk.watch("/a", lambda: told.append("a"))
    assert await watched_children(zk, "/a") == []
    server.put("/a", None)
    await asyncio.sleep(0)
    assert told == ["a"]
    assert await watched_children(zk, "/a") == []
    server.put("/a/b", None)
    await asyncio.sleep(0)
    assert told == ["a", "a"]
    assert await watched_children(zk, "/a") == ["b"]

from __future__ import annotations

import asyncio

import pytest

from consumerd.net.cluster.reading import children, data, node, read_all, watched_children
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper


async def test_bounds_concurrent_reads_and_keeps_order() -> None:
    under_way = most = 0

    async def read(item: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(item % 3):
            await asyncio.sleep(0)
        under_way -= 1
        return item * 2

    assert list((await read_all(range(50), read, at_once=7)).items()) == [(item, item * 2) for item in range(50)]
    assert most == 7
    assert await read_all([], read) == {}


async def test_stops_remaining_reads_after_error() -> None:
    begun: list[int] = []

    async def read(item: int) -> None:
        begun.append(item)
        await asyncio.sleep(0)
        if item == 1:
            raise OSError(item)

    with pytest.raises(OSError, match="1"):
        await read_all(range(50), read, at_once=3)
    assert len(begun) < 10


async def test_propagates_cancellation_despite_error() -> None:
    async def fail_on_cancel(item: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise KeyError(item) from None

    task = asyncio.create_task(read_all(range(3), fail_on_cancel))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


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

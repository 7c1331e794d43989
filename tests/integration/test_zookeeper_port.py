"""One contract, two implementations: what holds for the real ZooKeeper has to hold for the one in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
import pytest_asyncio

from consumerd.base.clock import SystemClock
from consumerd.base.ports import Check, Create, Delete, SetData, ZooKeeper
from consumerd.net.zk.errors import (
    BadVersion,
    InvalidPath,
    MultiFailed,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionChanged,
)
from consumerd.net.zk.session import Session
from consumerd.testing.memory_zookeeper import MemoryZooKeeper

Connect = Callable[[], AbstractAsyncContextManager[ZooKeeper]]


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.zookeeper)])
def connect(request: pytest.FixtureRequest) -> Connect:
    """Opens sessions in a chroot of this test's own."""
    if request.param == "memory":
        zookeeper = MemoryZooKeeper()
        return lambda: zookeeper.session(chroot="/t")
    root: str = request.getfixturevalue("zk_root")
    return lambda: Session(root, clock=SystemClock(), rng=random.Random(1), session_timeout=4)


@pytest_asyncio.fixture
async def zk(connect: Connect) -> AsyncIterator[ZooKeeper]:
    async with connect() as session:
        yield session


class Told:
    """Counts calls of a watcher and waits for them."""

    def __init__(self) -> None:
        self.count = 0
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self._event.set()

    async def wait(self) -> None:
        async with asyncio.timeout(60):
            await self._event.wait()
        self._event.clear()


async def settle(*sessions: ZooKeeper) -> None:
    """Everything that was sent to these sessions has arrived: an answer comes after all earlier events."""
    for session in sessions:
        await session.exists("/")
    await asyncio.sleep(0)


async def test_creates_reads_changes_and_deletes_nodes(zk: ZooKeeper) -> None:
    assert await zk.exists("/a") is None
    await zk.create("/a", None)
    await zk.create("/a/y", b"1")
    await zk.create("/a/x", b"", ephemeral=True)
    assert await zk.children("/a") == ["x", "y"]
    data, stat = await zk.get("/a")
    assert (data, stat.version, stat.ephemeral_owner, stat.children_count) == (None, 0, 0, 2)
    data, stat = await zk.get("/a/x")
    assert (data, stat.ephemeral_owner) == (b"", zk.session_id)
    written = await zk.set("/a/y", b"2", version=0)
    assert written.version == 1
    assert (await zk.get("/a/y"))[1] == written
    await zk.delete("/a/x")
    assert await zk.children("/a") == ["y"]


async def test_raises_the_declared_errors(zk: ZooKeeper) -> None:
    await zk.create("/a", b"")
    await zk.create("/a/e", b"", ephemeral=True)
    for call, error in (
        (lambda: zk.get("/x"), NoNode),
        (lambda: zk.children("/x"), NoNode),
        (lambda: zk.set("/x", b""), NoNode),
        (lambda: zk.delete("/x"), NoNode),
        (lambda: zk.create("/x/y", b""), NoNode),
        (lambda: zk.create("/a", b""), NodeExists),
        (lambda: zk.create("/a/e/c", b""), NoChildrenForEphemerals),
        (lambda: zk.delete("/a"), NotEmpty),
        (lambda: zk.set("/a", b"", version=5), BadVersion),
        (lambda: zk.delete("/a/e", version=5), BadVersion),
        (lambda: zk.create("/a//b", b""), NoNode),
        (lambda: zk.create("/a/..", b""), InvalidPath),
        (lambda: zk.create("/a/", b""), InvalidPath),
        (lambda: zk.create("a", b""), InvalidPath),
    ):
        with pytest.raises(error):
            await call()


async def test_ensure_creates_parents_with_null_data(zk: ZooKeeper) -> None:
    await zk.create("/a", b"kept")
    await zk.ensure("/a/b/c")
    await zk.ensure("/a/b/c")
    assert [(await zk.get(path))[0] for path in ("/a", "/a/b", "/a/b/c")] == [b"kept", None, None]


async def test_ephemeral_nodes_end_with_their_session(zk: ZooKeeper, connect: Connect) -> None:
    async with connect() as peer:
        await peer.create("/e", b"", ephemeral=True)
        gone = Told()
        zk.watch("/e", gone)
        assert await zk.exists("/e", watch=True) is not None
    await gone.wait()
    assert await zk.exists("/e") is None


async def test_creates_and_deletes_owned_nodes(zk: ZooKeeper, connect: Connect) -> None:
    async with connect() as peer:
        await peer.create_ephemeral("/g/ids/a", b"peer", wait=0)
        with pytest.raises(NodeExists):
            await zk.create_ephemeral("/g/ids/a", b"ours", wait=0)
        assert not await zk.delete_owned("/g/ids/a")
        waiting = asyncio.create_task(zk.create_ephemeral("/g/ids/a", b"ours", wait=10))
        await settle(zk, peer)
        assert not waiting.done()
    await waiting
    assert (await zk.get("/g/ids/a"))[0] == b"ours"
    await zk.create_ephemeral("/g/ids/a", b"again", wait=0)
    assert (await zk.get("/g/ids/a"))[0] == b"again"
    assert await zk.delete_owned("/g/ids/a")
    assert not await zk.delete_owned("/g/ids/a")
    assert (await zk.get("/g/ids"))[0] is None


async def test_multi_applies_all_operations_or_none(zk: ZooKeeper) -> None:
    await zk.multi([])
    await zk.multi([Create("/a", b"1"), Create("/a/e", b"", ephemeral=True), SetData("/a", b"2"), Check("/a", 1)])
    assert (await zk.get("/a/e"))[1].ephemeral_owner == zk.session_id
    with pytest.raises(MultiFailed) as failed:
        await zk.multi([SetData("/a", b"3"), Delete("/a/e"), Check("/gone"), SetData("/a", b"4")])
    assert failed.value.index == 2
    assert isinstance(failed.value.cause, NoNode)
    assert failed.value.cause.path == "/gone"
    assert (await zk.get("/a"))[0] == b"2"
    assert await zk.children("/a") == ["e"]
    await zk.multi([Delete("/a/e")], session_id=zk.session_id)
    with pytest.raises(SessionChanged):
        await zk.multi([Delete("/a")], session_id=zk.session_id + 1)
    assert await zk.children("/a") == []


async def test_watches_fire_once_for_their_event(zk: ZooKeeper, connect: Connect) -> None:
    async with connect() as peer:
        data, children, missing = Told(), Told(), Told()
        await peer.create("/d", b"")
        await peer.create("/c", b"")
        forget = zk.watch("/d", data)
        zk.watch("/c", children)
        zk.watch("/m", missing)
        await zk.get("/d", watch=True)
        await zk.children("/c", watch=True)
        assert await zk.exists("/m", watch=True) is None

        await peer.create("/d/child", b"")  # no change of data
        await peer.set("/c", b"2")  # no change of children
        await settle(peer, zk)
        assert (data.count, children.count, missing.count) == (0, 0, 0)

        await peer.set("/d", b"2")
        await peer.create("/c/child", b"")
        await peer.create("/m", b"")
        await data.wait()
        await children.wait()
        await missing.wait()

        await peer.set("/d", b"3")
        await peer.delete("/c/child")
        await peer.delete("/m")
        await settle(peer, zk)
        assert (data.count, children.count, missing.count) == (1, 1, 1)

        await zk.get("/d", watch=True)
        forget()
        forget()
        await peer.set("/d", b"4")
        await settle(peer, zk)
        assert data.count == 1


async def test_read_of_a_missing_node_sets_no_watch(zk: ZooKeeper, connect: Connect) -> None:
    async with connect() as peer:
        told = Told()
        zk.watch("/m", told)
        for read in (zk.get, zk.children):
            with pytest.raises(NoNode):
                await read("/m", watch=True)
        await peer.create("/m", b"")
        await settle(peer, zk)
        assert told.count == 0


async def test_deletion_fires_data_and_child_watches(zk: ZooKeeper, connect: Connect) -> None:
    async with connect() as peer:
        await peer.create("/d", b"")
        told = Told()
        zk.watch("/d", told)
        await zk.children("/d", watch=True)
        await peer.delete("/d")
        await told.wait()

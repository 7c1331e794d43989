"""Nodes that are read once: what costs a request, what makes them stale, and what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from consumerd.net.cluster.watched import WatchedNodes
from consumerd.net.zk.errors import NotConnected
from consumerd.testing.clock import FakeClock
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper


class Counted:
    """A session that notes what is asked of it; `behind` is done once, behind the next answer."""

    def __init__(self, zk: MemorySession) -> None:
        self._zk = zk
        self.asked: list[tuple[str, str]] = []
        self.behind: Callable[[], None] | None = None

    def __getattr__(self, name: str) -> Any:
        if name not in ("get", "exists", "children"):
            return getattr(self._zk, name)

        async def call(path: str, *, watch: bool = False) -> Any:
            self.asked.append((name, path))
            assert watch
            try:
                return await getattr(self._zk, name)(path, watch=True)
            finally:
                if self.behind is not None:
                    behind, self.behind = self.behind, None
                    behind()
                    await self._zk.exists("/")  # the watch event comes before this answer

        return call


class Setup:
    def __init__(self, zk: MemorySession) -> None:
        self.zk = zk
        self.session = Counted(zk)
        self.clock = FakeClock()
        self.told: list[str] = []
        self.nodes = WatchedNodes(self.session, self.clock, self.told.append)

    def asked(self) -> list[tuple[str, str]]:
        """The requests since the last call."""
        asked, self.session.asked = self.session.asked, []
        return asked

    async def events(self) -> None:
        """Return when the events of the fired watches are delivered."""
        await self.zk.exists("/")


@pytest.fixture
def setup(zk: MemorySession) -> Setup:
    return Setup(zk)


async def test_serves_fresh_nodes_without_request(server: MemoryZooKeeper, setup: Setup) -> None:
    server.put("/a/b", b"1")
    node = None
    first = await setup.nodes.node("/a/b")
    for _ in range(3):
        node = await setup.nodes.node("/a/b")
        assert node is not None
        assert (node.data, node.stat.version) == (b"1", 0)
        assert await setup.nodes.children("/a") == ["b"]
    assert setup.asked() == [("get", "/a/b"), ("children", "/a")]
    assert setup.nodes.known_node("/a/b") == first
    assert setup.told == []


async def test_reports_change_and_reads_once(server: MemoryZooKeeper, setup: Setup) -> None:
    server.put("/a", b"1")
    await setup.nodes.node("/a")
    server.put("/a", None)
    assert not setup.told
    await setup.events()
    assert setup.told == ["/a"]
    assert not setup.nodes.is_fresh("/a")
    assert setup.nodes.known_node("/a") is None
    for _ in range(2):
        node = await setup.nodes.node("/a")
        assert node is not None
        assert node.data == b""
    assert setup.asked() == [("get", "/a")] * 2


@pytest.mark.parametrize("kind", ["node", "children"])
async def test_marks_node_stale_when_watch_fires_during_read(server: MemoryZooKeeper, setup: Setup, kind: str) -> None:
    server.put("/a", b"1")
    setup.session.behind = lambda: server.put("/a" if kind == "node" else "/a/b", b"2")
    await getattr(setup.nodes, kind)("/a")
    assert setup.told == ["/a"]
    assert not setup.nodes.is_fresh("/a")
    after = await getattr(setup.nodes, kind)("/a")
    assert after == ["b"] if kind == "children" else after.data == b"2"
    assert setup.nodes.is_fresh("/a")


async def test_marks_all_nodes_stale_on_reconnect(server: MemoryZooKeeper, setup: Setup) -> None:
    server.put("/a", b"1")
    await setup.nodes.node("/a")
    await setup.nodes.children("/b")
    server.disconnect(setup.zk)
    server.put("/a", b"2")
    server.reconnect(setup.zk)
    await setup.events()
    assert not setup.nodes.is_fresh("/a")
    assert not setup.nodes.is_fresh("/b")
    node = await setup.nodes.node("/a")
    assert node is not None
    assert node.data == b"2"


async def test_keeps_node_stale_after_failed_read(server: MemoryZooKeeper, setup: Setup) -> None:
    server.put("/a", b"1")
    setup.zk._lifecycle._wait = 0.0
    server.disconnect(setup.zk)
    with pytest.raises(NotConnected):
        await setup.nodes.node("/a")
    assert not setup.nodes.is_fresh("/a")
    server.reconnect(setup.zk)
    assert (await setup.nodes.node("/a")) is not None


async def test_caches_missing_node_and_reports_its_creation(server: MemoryZooKeeper, setup: Setup) -> None:
    for _ in range(2):
        assert await setup.nodes.node("/a") is None
        assert await setup.nodes.children("/b") == []
    assert setup.asked() == [("get", "/a"), ("exists", "/a"), ("children", "/b"), ("exists", "/b")]
    assert setup.nodes.is_fresh("/a")
    assert setup.nodes.known_node("/a") is None
    server.put("/a", b"1")
    server.put("/b/c", None)
    await setup.events()
    assert sorted(setup.told) == ["/a", "/b"]
    assert await setup.nodes.children("/b") == ["c"]


@pytest.mark.parametrize("kind", ["node", "children"])
async def test_reads_node_created_between_reads(server: MemoryZooKeeper, setup: Setup, kind: str) -> None:
    setup.session.behind = lambda: server.put("/a/b", b"")
    found = await getattr(setup.nodes, kind)("/a")
    assert found == ["b"] if kind == "children" else found is not None


async def test_skips_watch_of_missing_node_on_request(server: MemoryZooKeeper, setup: Setup) -> None:
    assert await setup.nodes.node_if_there("/a") is None
    assert setup.asked() == [("get", "/a")]
    assert len(setup.nodes.paths()) == 0
    server.put("/a", b"1")
    await setup.events()
    assert setup.told == []
    assert await setup.nodes.node_if_there("/a") is not None
    assert setup.nodes.paths() == {"/a"}
    server.remove("/a")
    await setup.events()
    assert setup.told == ["/a"]
    assert await setup.nodes.node_if_there("/a") is None
    assert len(setup.nodes.paths()) == 0


async def test_reports_nothing_of_forgotten_nodes(server: MemoryZooKeeper, setup: Setup) -> None:
    for path in ("/a", "/b", "/c"):
        server.put(path, b"1")
        await setup.nodes.node(path)
    setup.nodes.forget("/a")
    setup.nodes.forget("/nothing")
    assert setup.nodes.paths() == {"/b", "/c"}
    setup.nodes.close()
    assert len(setup.nodes.paths()) == 0
    for path in ("/a", "/b", "/c"):
        server.put(path, b"2")
    await setup.events()
    assert setup.told == []


async def test_rereads_refreshed_nodes_without_watch_event(server: MemoryZooKeeper, setup: Setup) -> None:
    server.put("/a", b"1")
    await setup.nodes.node("/a")
    assert setup.nodes.age("/a") == 0.0
    setup.clock.jump(3.0)
    assert setup.nodes.age("/a") == 3.0
    setup.nodes.refresh("/a")
    setup.nodes.refresh("/nothing")
    assert setup.nodes.known_node("/a") is None
    await setup.nodes.node("/a")
    assert setup.asked() == [("get", "/a")] * 2
    assert setup.nodes.age("/a") == 0.0
    assert len(setup.nodes.paths()) == 1


async def test_watches_each_node_separately(server: MemoryZooKeeper, setup: Setup) -> None:
    server.put("/a", b"1")
    server.put("/b", b"1")
    await asyncio.gather(setup.nodes.node("/a"), setup.nodes.node("/b"))
    server.put("/a", b"2")
    await setup.events()
    assert (setup.nodes.is_fresh("/a"), setup.nodes.is_fresh("/b")) == (False, True)


async def test_keeps_something_shorter_in_place_of_data_that_are_not_needed(
    server: MemoryZooKeeper, setup: Setup
) -> None:
    server.put("/a", b"large")
    node = await setup.nodes.node("/a")
    assert node is not None
    await setup.nodes.children("/")
    for path in ("/a", "/", "/nothing"):
        setup.nodes.shorten(path, b"")
    assert setup.nodes.known_node("/a") == (b"", node.stat)
    assert await setup.nodes.children("/") == ["a"]
    assert setup.asked() == [("get", "/a"), ("children", "/")]


async def test_read_that_began_before_a_change_does_not_hide_it(server: MemoryZooKeeper, setup: Setup) -> None:
    """Also with two changes, and a second read, behind it."""
    server.put("/a", b"1")
    for _ in range(2):
        setup.session.behind = lambda: server.put("/a", b"2")
        await asyncio.gather(setup.nodes.node("/a"), setup.nodes.node("/a"))
        assert not setup.nodes.is_fresh("/a")

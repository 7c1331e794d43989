"""The faults. What the memory ZooKeeper shares with a real one is in tests/integration/test_zookeeper_port.py."""

from __future__ import annotations

import asyncio

import pytest

from consumerd.base.ports import Clock, SessionEvent, SessionState, SetData
from consumerd.net.zk.errors import ConnectionLost, NoNode, NotConnected, SessionChanged
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.unit.net.zk.test_base_session import StoppedClock


async def test_disconnected_session_keeps_its_nodes_and_id() -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.session(wait_connected=0.01) as zk:
        events: list[tuple[SessionEvent, int]] = []
        zk.subscribe(lambda event, session_id: events.append((event, session_id)))
        await zk.create("/a", b"", ephemeral=True)
        own = zk.session_id
        zookeeper.disconnect(zk)
        assert zk.state is SessionState.SUSPENDED
        with pytest.raises(NotConnected):
            await zk.get("/a")
        zookeeper.reconnect(zk)
        assert (await zk.get("/a"))[1].ephemeral_owner == zk.session_id == own
        assert events == [(SessionEvent.SUSPENDED, own), (SessionEvent.RECONNECTED, own)]


async def test_call_waits_for_the_connection(server: MemoryZooKeeper, zk: MemorySession) -> None:
    server.disconnect(zk)
    waiting = asyncio.create_task(zk.exists("/"))
    await asyncio.sleep(0)
    server.reconnect(zk)
    assert await waiting is not None


async def test_replaces_an_expired_session(server: MemoryZooKeeper, zk: MemorySession) -> None:
    events: list[tuple[SessionEvent, int]] = []
    zk.subscribe(lambda event, session_id: events.append((event, session_id)))
    await zk.create("/a", b"", ephemeral=True)
    first = zk.session_id
    server.expire(zk)
    assert zk.state is SessionState.CONNECTED
    assert events == [
        (SessionEvent.SUSPENDED, first),
        (SessionEvent.EXPIRED, first),
        (SessionEvent.NEW, zk.session_id),
    ]
    assert zk.session_id != first
    with pytest.raises(NoNode):
        await zk.get("/a")
    with pytest.raises(SessionChanged):
        await zk.multi([SetData("/", b"")], session_id=first)


async def test_reports_expiry_on_reconnect(server: MemoryZooKeeper, zk: MemorySession) -> None:
    async with server.session() as peer:
        await zk.create("/a", b"", ephemeral=True)
        first = zk.session_id
        server.disconnect(zk)
        server.expire(zk)
        assert await peer.exists("/a") is None
        assert zk.session_id == first
        server.reconnect(zk)
        assert zk.session_id not in (0, first)


@pytest.mark.parametrize("carried_out", [False, True])
async def test_lost_call_may_have_been_executed(carried_out: bool, server: MemoryZooKeeper, zk: MemorySession) -> None:
    server.cut_next_call(zk, carried_out=carried_out)
    with pytest.raises(ConnectionLost):
        await zk.create("/a", b"")
    assert zk.state is SessionState.SUSPENDED
    assert server.tree.has("/a") is carried_out


@pytest.mark.parametrize("carried_out", [False, True])
async def test_real_session_resolves_a_lost_reply(
    carried_out: bool, server: MemoryZooKeeper, zk: MemorySession
) -> None:
    server.make("/g")
    server.cut_next_call(zk, carried_out=carried_out)
    creating = asyncio.create_task(zk.create_ephemeral("/g/a", b"x", wait=0))
    while zk.state is SessionState.CONNECTED:
        await asyncio.sleep(0)
    server.reconnect(zk)
    await creating
    assert server.tree.stat("/g/a").ephemeral_owner == zk.session_id


async def test_watches_end_with_the_connection(server: MemoryZooKeeper, zk: MemorySession) -> None:
    told: list[str] = []
    zk.watch("/a", lambda: told.append("a"))
    await zk.exists("/a", watch=True)
    server.disconnect(zk)
    server.put("/a", b"")
    await asyncio.sleep(0)
    assert told == []
    server.reconnect(zk)
    assert told == ["a"]
    server.put("/a", b"2")
    await asyncio.sleep(0)
    assert told == ["a"]


async def test_can_lose_watches(server: MemoryZooKeeper, zk: MemorySession) -> None:
    told: list[str] = []
    zk.watch("/a", lambda: told.append("a"))
    await zk.exists("/a", watch=True)
    zk.lose_watches = True
    server.put("/a", b"")
    await asyncio.sleep(0)
    assert told == []


async def test_lease_runs_only_while_disconnected() -> None:
    clock = StoppedClock()
    zookeeper = MemoryZooKeeper(clock)
    async with zookeeper.session(session_timeout=6) as zk:
        clock.now += 60
        assert zk.lease_left() == 6
        zookeeper.disconnect(zk)
        clock.now += 7
        assert zk.lease_left() == -1


async def test_close_deletes_ephemeral_nodes_and_rejects_calls() -> None:
    zookeeper = MemoryZooKeeper()
    zk = zookeeper.session()
    await zk.start()
    await zk.create("/a", b"", ephemeral=True)
    await zk.close()
    await zk.close()
    assert zk.state is SessionState.CLOSED
    assert not zookeeper.tree.has("/a")
    with pytest.raises(NotConnected):
        await zk.get("/")
    zookeeper.reconnect(zk)
    assert zk.state is SessionState.CLOSED


async def test_keeps_nodes_of_a_dead_process_until_expiry() -> None:
    zookeeper = MemoryZooKeeper()
    zk = zookeeper.session()
    await zk.start()
    await zk.create("/a", b"", ephemeral=True)
    zookeeper.disconnect(zk)
    await zk.close()
    assert zookeeper.tree.has("/a")
    zookeeper.expire(zk)
    assert not zookeeper.tree.has("/a")


def test_creates_nodes_without_a_loop() -> None:
    zookeeper = MemoryZooKeeper()
    zookeeper.put("/a/b", b"1", session_id=9)
    zookeeper.put("/a/b", b"2")
    zookeeper.put("/a/c/d", None)
    assert zookeeper.dump() == {"/a": None, "/a/b": b"2", "/a/c": None, "/a/c/d": None}
    zookeeper.remove("/a/c")
    zookeeper.remove("/x")
    assert zookeeper.dump() == {"/a": None, "/a/b": b"2"}


def test_uses_the_given_clock() -> None:
    clock: Clock = StoppedClock()
    assert MemoryZooKeeper(clock).dump() == {}

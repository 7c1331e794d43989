"""What only a real server tells of a session under faults; all else is in `tests/unit/net/zk`, and in memory."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.ports import Create, Delete, SessionEvent, SessionState, SetData
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.net.zk.errors import ConnectionLost, InvalidPath, NoAuth, RequestTooLarge
from consumerd.net.zk.session import Session
from consumerd.testing.fault_proxy import Direction
from consumerd.wire.registry.errors import NameRefusedError
from consumerd.wire.registry.paths import check_name
from tests.faults.conftest import ZkRig
from tests.support.zookeeper_retry import retry

GET_DATA, AUTH = 4, 100


async def gone(zk: ZkRig, path: str, within: float) -> None:
    """Return when the server has no such node any more."""
    changed = asyncio.Event()
    forget = zk.observer.watch(path, changed.set)
    async with asyncio.timeout(within):
        while await zk.observer.exists(path, watch=True):
            await changed.wait()
            changed.clear()
    forget()


# -- the lease


@pytest.mark.parametrize("direction", list(Direction))
async def test_lease_ends_before_the_server_expires_a_stalled_session(zk: ZkRig, direction: Direction) -> None:
    session = await zk.session(4.0)
    session_id = session.session_id
    await session.create_ephemeral("/mine", b"", wait=0)
    zk.proxy.stall(direction)
    zk.proxy.refuse()
    call = asyncio.create_task(session.get("/"))
    expiry = asyncio.create_task(gone(zk, "/mine", within=60))
    assert await zk.event(SessionEvent.SUSPENDED) == session_id
    assert not expiry.done()  # after 2/3 of the session, and before it ends
    with pytest.raises(ConnectionLost, match="heartbeat"):
        await call
    assert session.state is SessionState.SUSPENDED
    assert session.session_id == session_id
    zk.proxy.cut()
    await expiry
    assert session.lease_left() < 0
    zk.proxy.heal()
    assert await zk.event(SessionEvent.EXPIRED) == session_id
    assert await zk.event(SessionEvent.NEW) not in (0, session_id)
    assert session.lease_left() > 0


# -- names, sizes, credentials


async def test_server_refuses_the_names_that_we_refuse(zk: ZkRig) -> None:
    """Java looks at UTF-16 units: it takes a character above U+FFFF for two surrogates, which it refuses."""
    session = await zk.session()
    edges = "\x1f\x20\x7e\x7f\x9f\xa0\ud7ff\ue000\uf8ff\uf900\uffef\ufff0\ufffd\U00010000\U0001f600"
    for name in [f"a{edge}" for edge in edges]:
        try:
            check_name("topic", name)
            ours = True
        except NameRefusedError:
            ours = False
        try:
            await session.create(f"/{name}", b"")
            theirs = True
        except InvalidPath:
            theirs = False
        assert (name, ours) == (name, theirs)


async def test_rejects_a_request_above_the_server_limit_and_keeps_the_connection(zk: ZkRig) -> None:
    session = await zk.session()
    with pytest.raises(RequestTooLarge):
        await session.create("/huge", bytes(0xFFFFF))
    with pytest.raises(RequestTooLarge):
        await session.multi([SetData(f"/node-{i}", bytes(300_000)) for i in range(4)])
    room = 0xFFFFF - len(zk.chroot + "/fits") - 47  # xid, opcode, lengths, flags and the open ACL
    await session.create("/fits", bytes(room))
    with pytest.raises(RequestTooLarge):
        await session.create("/fits-not", bytes(room))
    assert zk.proxy.accepted == 1


async def test_sends_credentials_first_on_every_connection(zk: ZkRig) -> None:
    session = await zk.session(auth=[("digest", "bob:secret"), ("digest", b"eve:other")], acl="creator-all")
    await session.create("/secret", b"s")
    with pytest.raises(NoAuth):
        await zk.observer.get("/secret")
    for _ in range(2):
        zk.requests.clear()
        zk.proxy.cut()
        early = asyncio.create_task(retry(lambda: session.get("/secret"), deadline=60))
        await zk.event(SessionEvent.RECONNECTED)
        assert (await early)[0] == b"s"
        assert zk.requests[zk.requests.index(None) :][1:3] == [AUTH, AUTH]
        assert GET_DATA in zk.requests


# -- cancellation, many reconnects, restarts


async def test_session_works_after_calls_are_cancelled_at_any_moment(zk: ZkRig) -> None:
    """Ownership calls are cancelled after 0, 1, 2 ... steps of the loop; the next one must see the truth."""
    session = await zk.session()
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: session.create_ephemeral("/a/b/c", b"x", wait=1),
        lambda: session.delete_owned("/a/b/c"),
        lambda: session.multi([Create("/m", None), Delete("/m")]),
        lambda: retry(lambda: session.children("/", watch=True), deadline=1),
    ]
    for steps in range(25):
        for call in calls:
            task = asyncio.ensure_future(call())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    await session.create_ephemeral("/a/b/c", b"x", wait=60)
    assert await zk.owner("/a/b/c") == session.session_id
    assert await session.delete_owned("/a/b/c")
    assert await session.exists("/m") is None
    assert len(session._watches) == 0
    assert zk.proxy.accepted == 1


async def test_keeps_the_session_when_the_handshake_reply_is_lost(zk: ZkRig) -> None:
    session = await zk.session(4.0, connect_timeout=0.4)
    session_id = session.session_id
    await session.create_ephemeral("/mine", b"", wait=0)
    swallowed = zk.once(lambda direction, frame: direction is Direction.TO_CLIENT, lambda frame: b"")
    zk.proxy.cut()
    assert await zk.event(SessionEvent.RECONNECTED) == session_id
    assert swallowed.is_set()
    assert session.session_id == await zk.owner("/mine") == session_id


async def test_reconnects_leave_no_tasks_and_no_connections(zk: ZkRig) -> None:
    session = await zk.session()
    session_id, before = session.session_id, len(zk.session_tasks())
    for _ in range(6):
        zk.proxy.cut()
        assert await zk.event(SessionEvent.RECONNECTED) == session_id
        await session.get("/")
    assert len(zk.session_tasks()) == before > 0
    assert zk.proxy.open_connections == 1


async def test_cancelled_start_leaves_no_tasks_and_no_connections(zk: ZkRig) -> None:
    before = zk.session_tasks()
    for steps in range(1, 13):
        session = Session(zk.proxy.connect + zk.chroot, clock=SystemClock(), rng=random.Random(1))
        starting = asyncio.create_task(session.start())
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert session.state is SessionState.CLOSED
        assert zk.session_tasks() == before


async def test_starts_a_new_session_after_the_server_lost_its_data(zookeeper_factory: Any) -> None:
    server: ZooKeeperServer = await zookeeper_factory(tick_ms=1000)
    events: asyncio.Queue[tuple[SessionEvent, int]] = asyncio.Queue()
    session = Session(server.connect + "/app", clock=SystemClock(), rng=random.Random(1), session_timeout=6.0)
    async with session, asyncio.timeout(90):
        first = session.session_id
        session.subscribe(lambda event, session_id: events.put_nowait((event, session_id)))
        for number in range(20):  # so that our zxid is ahead of what a new server has
            await session.create(f"/{number}", None)
        server.kill()
        shutil.rmtree(server.data_directory)
        await server.start()
        assert [await events.get() for _ in range(2)] == [
            (SessionEvent.SUSPENDED, first),
            (SessionEvent.EXPIRED, first),
        ]
        event, second = await events.get()
        assert event is SessionEvent.NEW
        assert second == session.session_id
        assert await session.children("/") == []  # the chroot was made again

"""Lease, fencing, expiry, refusals and restarts of a session under faults, against a real server."""

from __future__ import annotations

import asyncio
import random
import shutil
import statistics
import time
from typing import TYPE_CHECKING, Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.ports import SessionEvent, SessionState, SetData
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.net.zk import (
    AuthFailed,
    ConnectionLost,
    NoAuth,
    NoNode,
    NotConnected,
    RequestTooLarge,
    Session,
    SessionChanged,
)
from consumerd.testing.fault_proxy import Direction
from tests.support.zookeeper_retry import retry

if TYPE_CHECKING:
    from tests.faults.conftest import ZkRig

pytestmark = pytest.mark.asyncio

DELETE, MULTI = 2, 14


class SkippingClock(SystemClock):
    """Time as a process sees it that was stopped for a while."""

    skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped


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


async def test_lease_of_a_healthy_session_stays_between_half_and_three_quarters(zk: ZkRig) -> None:
    session = await zk.session(4.0)
    started = time.monotonic()
    seen: list[tuple[float, float]] = []
    while (age := time.monotonic() - started) < 6.4:
        await asyncio.sleep(0.02)
        seen.append((age, session.lease_left()))
    assert statistics.median(left for _, left in seen) > 2.0
    assert min(left for _, left in seen) > 0.0  # 2.0, but for what a busy machine takes
    assert max(left for age, left in seen if age > 2.8) <= 3.04
    assert session.state is SessionState.CONNECTED


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


async def test_suspended_process_notices_the_ended_lease_at_once(zk: ZkRig) -> None:
    clock = SkippingClock()
    session = await zk.session(2.0, clock=clock)
    clock.skipped = 4.0
    assert session.state is SessionState.CONNECTED
    assert session.lease_left() < -2.0


async def test_keeps_the_session_through_a_shorter_stall(zk: ZkRig) -> None:
    session = await zk.session(6.0)  # a third of it is left when the stall is noticed
    session_id = session.session_id
    zk.proxy.stall()
    await zk.event(SessionEvent.SUSPENDED)
    zk.proxy.cut()
    zk.proxy.heal()
    assert await zk.event(SessionEvent.RECONNECTED) == session_id


# -- expiry and fencing


async def test_starts_a_new_session_after_expiry(zk: ZkRig) -> None:
    session = await zk.session()
    first = session.session_id
    told = asyncio.Event()
    session.watch("/", told.set)
    await session.create_ephemeral("/mine", b"", wait=0)
    zk.drain()
    states: list[tuple[SessionEvent, int, SessionState, int]] = []
    session.subscribe(lambda event, sid: states.append((event, sid, session.state, session.session_id)))
    told.clear()
    await zk.expire(session)
    second = await zk.event(SessionEvent.NEW)
    assert states == [
        (SessionEvent.SUSPENDED, first, SessionState.SUSPENDED, first),
        (SessionEvent.EXPIRED, first, SessionState.LOST, 0),
        (SessionEvent.NEW, second, SessionState.CONNECTED, second),
    ]
    assert second not in (0, first)
    assert told.is_set()
    assert await zk.owner("/mine") is None


async def test_sends_a_multi_only_in_the_session_it_names(zk: ZkRig) -> None:
    session = await zk.session()
    first = session.session_id
    await session.create("/offset", b"0")
    await session.multi([SetData("/offset", b"1")], session_id=first)
    zk.proxy.refuse()
    zk.proxy.cut()
    await zk.event(SessionEvent.SUSPENDED)
    waiting = asyncio.create_task(session.multi([SetData("/offset", b"2")], session_id=first))
    await zk.expire(session)
    zk.requests.clear()
    zk.proxy.heal()
    with pytest.raises(SessionChanged) as error:
        await waiting
    assert error.value.expected == first
    await zk.event(SessionEvent.NEW)
    with pytest.raises(SessionChanged):
        await session.multi([SetData("/offset", b"3")], session_id=first)
    assert zk.requests.count(MULTI) == 1  # the new session asked whether there are any
    assert (await session.get("/offset"))[0] == b"1"


async def test_multi_waits_for_its_suspended_session(zk: ZkRig) -> None:
    session = await zk.session()
    await session.create("/offset", b"0")
    zk.proxy.refuse()
    zk.proxy.cut()
    await zk.event(SessionEvent.SUSPENDED)
    waiting = asyncio.create_task(session.multi([SetData("/offset", b"2")], session_id=session.session_id))
    zk.proxy.heal()
    await waiting
    assert (await session.get("/offset"))[0] == b"2"


async def test_calls_without_a_connection_time_out_unsent(zk: ZkRig) -> None:
    session = await zk.session(40.0, wait_connected=0.2)
    zk.proxy.refuse()
    zk.proxy.cut()
    await zk.event(SessionEvent.SUSPENDED)
    zk.requests.clear()
    started = time.monotonic()
    with pytest.raises(NotConnected, match=r"no connection to ZooKeeper at 127\.0\.0\.1:\d+ \("):
        await session.set("/", b"")
    assert 0.2 <= time.monotonic() - started < 20.0  # and not when the session ends, after 40 s
    assert zk.requests == []


async def test_retry_raises_the_last_error_at_its_deadline(zk: ZkRig) -> None:
    session = await zk.session(40.0, wait_connected=0.05)
    zk.proxy.refuse()
    zk.proxy.cut()
    await zk.event(SessionEvent.SUSPENDED)
    started = time.monotonic()
    with pytest.raises(NotConnected):
        await retry(lambda: session.get("/"), deadline=0.5)
    assert 0.4 < time.monotonic() - started < 20.0
    zk.proxy.heal()
    with pytest.raises(NoNode):
        await retry(lambda: session.get("/missing"), deadline=60)


# -- sizes, credentials, defects


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


async def test_reports_refused_credentials(zk: ZkRig) -> None:
    session = Session(zk.proxy.connect, clock=SystemClock(), rng=random.Random(1), auth=[("no-such-scheme", "x")])
    with pytest.raises(AuthFailed, match="'no-such-scheme' credentials"):
        await session.start(60)
    assert session.state is SessionState.CLOSED
    with pytest.raises(AuthFailed):
        await session.get("/")
    with pytest.raises(AuthFailed):
        await session.wait_closed()
    await session.close()


async def test_reports_a_chroot_that_cannot_be_created(zk: ZkRig) -> None:
    owner = await zk.session(auth=[("digest", "bob:secret")], acl="creator-all")
    await owner.create("/closed", None)
    session = Session(
        f"{zk.proxy.connect}{zk.chroot}/closed/app", clock=SystemClock(), rng=random.Random(1), session_timeout=2
    )
    await owner.ensure("/closed/there")
    async with Session(f"{zk.proxy.connect}{zk.chroot}/closed", clock=SystemClock(), rng=random.Random(1)) as inside:
        with pytest.raises(NoAuth):  # a chroot that is there is taken as it is
            await inside.children("/")
    with pytest.raises(NoAuth, match=f"denies access to {zk.chroot}/closed/app;"):
        await session.start()
    await session.close()


async def test_reports_an_unreachable_server() -> None:
    session = Session("127.0.0.1:1", clock=SystemClock(), rng=random.Random(1))
    with pytest.raises(NotConnected, match=r"127\.0\.0\.1:1 .*refused|Connect call failed.*check that it runs"):
        await session.start(0.3)
    assert session.state is SessionState.CLOSED


async def test_keeps_the_session_when_a_listener_fails(zk: ZkRig) -> None:
    session = await zk.session()

    def broken(event: SessionEvent, session_id: int) -> None:
        raise RuntimeError("a defect")

    unsubscribe = session.subscribe(broken)
    zk.proxy.cut()
    await zk.event(SessionEvent.RECONNECTED)
    unsubscribe()
    unsubscribe()
    await session.get("/")


# -- many reconnects, restarts


async def test_reconnects_leave_no_tasks_and_no_connections(zk: ZkRig) -> None:
    session = await zk.session()
    session_id, before = session.session_id, len(zk.session_tasks())
    for _ in range(6):
        zk.proxy.cut()
        assert await zk.event(SessionEvent.RECONNECTED) == session_id
        await session.get("/")
    assert len(zk.session_tasks()) == before
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


async def test_keeps_the_session_when_the_server_is_killed_and_restarted(zookeeper_factory: Any) -> None:
    """Its session outlasts what a JVM takes to start on a busy machine."""
    server: ZooKeeperServer = await zookeeper_factory(tick_ms=3000)
    async with Session(server.connect, clock=SystemClock(), rng=random.Random(1), session_timeout=60.0) as session:
        first = session.session_id
        await session.create_ephemeral("/mine", b"", wait=0)
        server.kill()
        await server.start()
        await retry(lambda: session.get("/mine"), deadline=60)
        assert session.session_id == first


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

"""The fourteen faults that aiozk's own session was seen to fail under, against a real server through a fault proxy.

Each test is named by the fault's number and says what a session must do instead.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.ports import Check, Create, Operation, SessionEvent, SessionState, SetData
from consumerd.net.zk import BadVersion, ConnectionLost, MultiFailed, NoAuth, NoNode, NotConnected, Session
from consumerd.testing.fault_proxy import Direction, FaultProxy
from tests.support.zookeeper_retry import retry

if TYPE_CHECKING:
    from tests.faults.conftest import ZkRig

pytestmark = pytest.mark.asyncio

GET_DATA, AUTH, SET_WATCHES, SET_WATCHES_2 = 4, 100, 101, 105


def to_client(direction: Direction, frame: bytes) -> bool:
    return direction is Direction.TO_CLIENT


class InOrder(random.Random):
    """Hosts are tried in the order of the connect string."""

    def sample(self, population: object, k: int, *, counts: object = None) -> list[object]:  # type: ignore[override]
        return list(population)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("rst", [False, True])
async def test_01_notices_a_closed_connection_at_once(zk: ZkRig, rst: bool) -> None:
    session = await zk.session(30.0)
    session_id = session.session_id
    zk.proxy.stall(Direction.TO_CLIENT)
    calls = [asyncio.create_task(session.get("/")) for _ in range(10)]
    await asyncio.sleep(0.05)
    started = time.monotonic()
    zk.proxy.cut(rst=rst)
    for call in calls:
        with pytest.raises(ConnectionLost):
            await call
    assert await zk.event(SessionEvent.SUSPENDED) == session_id
    zk.proxy.heal()
    assert await zk.event(SessionEvent.RECONNECTED) == session_id
    await session.get("/")
    assert time.monotonic() - started < 18.0  # and not when a heartbeat stays out, after 20 s


async def test_02_six_thousand_watches_survive_a_disconnect_while_they_are_set_again(zk: ZkRig) -> None:
    # On a busy machine 6000 calls take seconds; only the connection that we break is to break.
    session = await zk.session(60.0)
    paths = [f"/a-rather-long-name-as-in-owners-and-offsets-{i:06}-{'x' * 150}" for i in range(6000)]
    stale = set(paths)
    woken = asyncio.Event()

    def watcher(path: str) -> Callable[[], None]:
        def changed() -> None:
            stale.add(path)
            woken.set()

        return changed

    for path in paths:
        session.watch(path, watcher(path))
    found: dict[str, bool] = {}

    async def look(path: str) -> None:
        try:
            found[path] = await session.exists(path, watch=True) is not None
        except (NotConnected, ConnectionLost):
            stale.add(path)

    async def settle() -> None:
        while stale:
            now = list(stale)
            stale.clear()
            await asyncio.gather(*map(look, now))

    await settle()
    zk.drain()
    zk.requests.clear()
    dropped = zk.once(lambda direction, frame: direction is Direction.TO_SERVER and len(frame) > 150, zk.cut_instead)
    zk.proxy.cut()
    await zk.event(SessionEvent.RECONNECTED)
    assert len(stale) == 6000
    await asyncio.wait_for(settle(), 200)
    assert dropped.is_set()
    assert session.state is SessionState.CONNECTED
    woken.clear()
    await zk.observer.create(paths[4321], None)
    await asyncio.wait_for(woken.wait(), 60)
    assert stale == {paths[4321]}
    assert not {SET_WATCHES, SET_WATCHES_2} & set(zk.requests)


@pytest.mark.parametrize("how", ["stall", "blackhole"])
async def test_03_skips_a_silent_host_after_one_connect_timeout(zk: ZkRig, how: str) -> None:
    async with FaultProxy(zk.proxy.target_host, zk.proxy.target_port) as silent:
        getattr(silent, how)()
        started = time.monotonic()
        session = await zk.session(hosts=f"{silent.connect},{zk.proxy.connect}", connect_timeout=1.5, rng=InOrder())
        assert time.monotonic() - started >= 1.5
        assert silent.accepted == 1
        await session.get("/")


async def test_04_keeps_the_session_when_the_server_closes_during_the_handshake(zk: ZkRig) -> None:
    session = await zk.session(4.0)
    session_id = session.session_id
    await session.create_ephemeral("/mine", b"", wait=0)
    cut = zk.once(to_client, zk.cut_instead)
    zk.proxy.cut()
    assert await zk.event(SessionEvent.RECONNECTED) == session_id
    assert cut.is_set()
    assert await zk.owner("/mine") == session_id
    await session.create_ephemeral("/mine", b"again", wait=0)


async def test_05_keeps_the_session_when_the_handshake_reply_is_lost(zk: ZkRig) -> None:
    session = await zk.session(4.0, connect_timeout=0.4)
    session_id = session.session_id
    await session.create_ephemeral("/mine", b"", wait=0)
    swallowed = zk.once(to_client, lambda frame: b"")
    zk.proxy.cut()
    assert await zk.event(SessionEvent.RECONNECTED) == session_id
    assert swallowed.is_set()
    assert session.session_id == await zk.owner("/mine") == session_id


async def test_05_leaves_one_session_when_the_first_handshake_reply_is_lost(zk: ZkRig) -> None:
    swallowed = zk.once(to_client, lambda frame: b"")
    session = await zk.session(4.0, connect_timeout=0.3)
    assert swallowed.is_set()
    assert zk.drain() == [(SessionEvent.NEW, session.session_id)]


async def test_06_reconnects_within_a_second_after_an_outage(zk: ZkRig) -> None:
    session = await zk.session(30.0)
    session_id = session.session_id
    zk.proxy.refuse()
    zk.proxy.cut()
    await asyncio.sleep(2.5)
    assert session.state is SessionState.SUSPENDED
    zk.proxy.heal()
    started = time.monotonic()
    assert await zk.event(SessionEvent.RECONNECTED) == session_id
    assert time.monotonic() - started < 15.0  # a second, and what a busy machine takes


async def test_07_creates_the_chroot_of_the_connect_string(zk: ZkRig) -> None:
    base = zk.chroot
    zk.chroot = f"{base}/deep/er"
    session = await zk.session()
    await session.create("/node", b"x")
    for path in ("/deep", "/deep/er"):
        data, stat = await zk.observer.get(path)
        assert (data, stat.ephemeral_owner) == (None, 0)
    assert await zk.observer.children("/deep/er") == ["node"]
    assert await session.children("/") == ["node"]
    again = await zk.session()  # it is there already
    assert await again.children("/") == ["node"]


@pytest.mark.parametrize("how", ["refused", "mid-connect", "stalled"])
async def test_08_closes_quickly_while_the_server_is_unavailable(zk: ZkRig, how: str) -> None:
    before = zk.session_tasks()
    session = Session(zk.proxy.connect + zk.chroot, clock=SystemClock(), rng=random.Random(1), session_timeout=40.0)
    await session.start()
    if how == "refused":
        zk.proxy.refuse()
    if how != "refused":
        zk.proxy.stall()
    if how != "stalled":
        zk.proxy.cut()
    waiting = asyncio.create_task(session.get("/"))
    await asyncio.sleep(0.1)
    started = time.monotonic()
    await session.close()
    assert time.monotonic() - started < 10.0
    assert session.state is SessionState.CLOSED
    with pytest.raises((NotConnected, ConnectionLost)):
        await waiting
    with pytest.raises(NotConnected, match="closed"):
        await session.get("/")
    await session.close()
    assert zk.session_tasks() == before


async def test_09_cancelled_calls_do_not_poison_later_ones(zk: ZkRig) -> None:
    session = await zk.session()

    async def storm(calls: int) -> None:
        for _ in range(calls):
            call = asyncio.create_task(session.get("/"))
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    await storm(300)  # in flight
    zk.proxy.refuse()
    zk.proxy.cut()
    await zk.event(SessionEvent.SUSPENDED)
    await storm(300)  # waiting for the connection
    zk.proxy.heal()
    await zk.event(SessionEvent.RECONNECTED)
    await asyncio.gather(*(session.get("/") for _ in range(300)))
    while session._lifecycle._connection.pending:  # type: ignore[union-attr]  # at most a heartbeat
        await asyncio.sleep(0.01)


async def test_10_reconnects_after_a_truncated_reply(zk: ZkRig) -> None:
    session = await zk.session()
    await zk.observer.create("/large", bytes(300_000))
    cut = zk.once(
        lambda direction, frame: to_client(direction, frame) and len(frame) > 100_000,
        lambda frame: (asyncio.get_running_loop().call_later(0.05, zk.proxy.cut), frame[:5000])[1],
    )
    used = time.process_time()
    with pytest.raises(ConnectionLost):
        await session.get("/large")
    data, _ = await retry(lambda: session.get("/large"), deadline=60)
    assert data == bytes(300_000)
    assert cut.is_set()
    assert time.process_time() - used < 1.0  # the library spun for 3 s


async def test_11_checks_versions_of_the_caller_under_a_chroot(zk: ZkRig) -> None:
    session = await zk.session()
    await session.create("/node", b"0")
    _, stat = await session.get("/node")
    await zk.observer.set("/node", b"foreign")
    with pytest.raises(BadVersion) as error:
        await session.set("/node", b"mine", version=stat.version)
    assert error.value.path == "/node"
    assert (await session.get("/node"))[0] == b"foreign"
    with pytest.raises(BadVersion):
        await session.delete("/node", version=stat.version)
    assert (await session.set("/node", b"mine")).version == 2


async def test_12_failed_multi_names_the_operation_and_writes_nothing(zk: ZkRig) -> None:
    session = await zk.session()
    await session.create("/a", b"0")
    operations: list[Operation] = [
        SetData("/a", b"1"),
        Create("/b", None),
        Check("/gone"),
        SetData("/a", b"2"),
        Check("/gone-too"),
    ]
    with pytest.raises(MultiFailed) as error:
        await session.multi(operations)
    assert error.value.index == 2
    assert isinstance(error.value.cause, NoNode)
    assert error.value.cause.path == "/gone"
    assert (await session.get("/a"))[0] == b"0"
    assert await session.exists("/b") is None
    with pytest.raises(MultiFailed) as error:
        await session.multi([SetData("/a", b"3", version=9)])
    assert (error.value.index, type(error.value.cause)) == (0, BadVersion)


async def test_13_watcher_survives_missing_nodes_and_removes_its_watches(zk: ZkRig) -> None:
    session = await zk.session()
    changed = asyncio.Event()
    forget = session.watch("/topic", changed.set)

    async def next_state() -> list[str] | None:
        async with asyncio.timeout(60):
            await changed.wait()
        changed.clear()
        return await look()

    async def look() -> list[str] | None:
        try:
            return await session.children("/topic", watch=True)
        except NoNode:
            return await look() if await session.exists("/topic", watch=True) else None

    assert await look() is None
    await zk.observer.create("/topic", None)
    assert await next_state() == []
    await zk.observer.create("/topic/0", b"4")
    assert await next_state() == ["0"]
    await zk.observer.multi([Create("/topic/1", b"4"), Create("/topic/2", b"4")])
    assert await next_state() == ["0", "1", "2"]
    for name in ("0", "1", "2"):
        await zk.observer.delete(f"/topic/{name}")
    await zk.observer.delete("/topic")
    while await next_state() is not None:
        pass
    zk.proxy.refuse()
    zk.proxy.cut()
    await zk.event(SessionEvent.SUSPENDED)
    await zk.observer.create("/topic", None)
    zk.proxy.heal()
    assert await next_state() == []  # noticed by the reconnect alone
    waiting = asyncio.create_task(changed.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    forget()
    assert len(session._watches) == 0


async def test_14_sends_credentials_first_on_every_connection(zk: ZkRig) -> None:
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

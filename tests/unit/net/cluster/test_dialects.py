"""The dialect at a path in ZooKeeper is detected by the registrations there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.clock import SystemClock
from consumerd.base.errors import reason_of
from consumerd.net.cluster.dialects import look_for_dialect, read_dialect, wait_for_dialect
from consumerd.net.zk.errors import NoAuth
from consumerd.testing.clock import FakeClock
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.errors import DialectError

OLD_BROKER = b"host-1:host:9092"
NEW_BROKER = b'{"jmx_port":-1,"host":"127.0.0.1","version":1,"port":19151}'
OLD_MEMBER = b'{ "t": 1 }'
OLD_FILTER = b"*1*t.*"
NEW_MEMBER = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'
BROKER, MEMBER = "/brokers/ids/0", "/consumers/g/ids/g_a"
OLD_OFFSET, NEW_OFFSET = "/consumers/g/offsets/t/0-0", "/consumers/g/offsets/t/0"
V07, V08 = Dialect.V07, Dialect.V08


@pytest.mark.parametrize(
    ("nodes", "spoken"),
    [
        ({}, None),
        ({BROKER: OLD_BROKER}, V07),
        ({BROKER: NEW_BROKER}, V08),
        ({MEMBER: OLD_MEMBER}, V07),
        ({MEMBER: OLD_FILTER}, V07),
        ({MEMBER: NEW_MEMBER}, V08),
        ({BROKER: NEW_BROKER, MEMBER: NEW_MEMBER}, V08),
        ({BROKER: OLD_BROKER, "/consumers/other/ids/x": NEW_MEMBER}, V07),
        # Damaged nodes show no dialect, and do not prevent others from being read.
        ({BROKER: b"damaged", MEMBER: b"{ }"}, None),
        ({BROKER: NEW_BROKER, "/brokers/ids/1": b"", MEMBER: b"\xff"}, V08),
        ({BROKER: OLD_BROKER, "/brokers/ids/1": b'{"version":1}', MEMBER: b'{"t": 0}'}, V07),
    ],
)
async def test_detects_dialect(
    nodes: dict[str, bytes], spoken: Dialect | None, server: MemoryZooKeeper, zk: MemorySession
) -> None:
    for path, text in nodes.items():
        server.put(path, text)
    assert await read_dialect(zk, "g") is spoken


@pytest.mark.parametrize(
    "nodes",
    [{BROKER: OLD_BROKER, "/brokers/ids/1": NEW_BROKER}, {BROKER: NEW_BROKER, MEMBER: OLD_MEMBER}],
    ids=["brokers", "broker and member"],
)
async def test_rejects_mixed_dialects(nodes: dict[str, bytes], server: MemoryZooKeeper, zk: MemorySession) -> None:
    for path, text in nodes.items():
        server.put(path, text)
    with pytest.raises(DialectError, match="cannot share the group 'g'"):
        await wait_for_dialect(zk, "g", SystemClock())


@pytest.mark.parametrize(("path", "text"), [(BROKER, NEW_BROKER), (MEMBER, NEW_MEMBER)])
async def test_waits_for_first_broker(path: str, text: bytes, server: MemoryZooKeeper, zk: MemorySession) -> None:
    told: list[str] = []
    waiting = asyncio.create_task(wait_for_dialect(zk, "g", SystemClock(), lambda: told.append("nobody")))
    async with asyncio.timeout(60):
        while not told:
            await asyncio.sleep(0.001)
    assert not waiting.done()
    assert told == ["nobody"]
    server.put(path, text)
    async with asyncio.timeout(60):
        assert await waiting is V08
    assert len(zk._watches) == 0


async def test_waits_for_a_node_that_may_not_be_read_and_names_it_once(
    server: MemoryZooKeeper, zk: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put(BROKER, OLD_BROKER)
    server.put(MEMBER, OLD_MEMBER)
    get, asked, denied = zk.get, asyncio.Queue[str](), True

    async def checked(path: str, **options: Any) -> Any:
        if path == MEMBER and denied:
            asked.put_nowait(path)
            raise NoAuth(path)
        return await get(path, **options)

    monkeypatch.setattr(zk, "get", checked)
    told: list[str] = []
    with capture_logs() as logs:
        waiting = asyncio.create_task(wait_for_dialect(zk, "g", SystemClock(), lambda: told.append("started")))
        async with asyncio.timeout(60):
            for number in range(1, 4):
                await asked.get()
                server.put(f"/brokers/ids/{number}", OLD_BROKER)
            denied = False
            server.put("/brokers/ids/4", OLD_BROKER)
            assert await waiting is V07
    assert told == ["started"]
    assert [(each["event"], each["log_level"], each["reason"]) for each in logs] == [
        ("dialect_unknown", "warning", reason_of(NoAuth(MEMBER)))
    ]


@pytest.mark.parametrize(
    ("nodes", "groups", "spoken"),
    [
        ({}, [], None),
        ({}, ["g"], None),
        # The brokers' nodes decide, unless none of them can be read.
        ({BROKER: NEW_BROKER, MEMBER: OLD_MEMBER}, ["g"], V08),
        ({BROKER: OLD_BROKER, MEMBER: NEW_MEMBER}, [], V07),
        ({BROKER: b"damaged", MEMBER: NEW_MEMBER}, ["g"], V08),
        # Groups outlive brokers: their members, or the names of their offsets.
        ({MEMBER: NEW_MEMBER, OLD_OFFSET: b"1"}, [], V08),
        ({MEMBER: b"{ }", NEW_OFFSET: b"1"}, ["g"], V08),
        ({OLD_OFFSET: b"1"}, [], V07),
        ({"/consumers/g/offsets/t/x": b"1"}, [], None),
        ({"/consumers/g/offsets/a/x": b"1", OLD_OFFSET: b"1"}, [], V07),
        ({"/consumers/f/ids/f_a": OLD_MEMBER, MEMBER: NEW_MEMBER}, [], V07),
        ({"/consumers/f/ids/f_a": b"{ }", MEMBER: NEW_MEMBER}, [], V08),
        # Members of one group tell more than the offsets of another before it; a named group is looked at alone.
        ({"/consumers/f/offsets/t/0": b"1", MEMBER: OLD_MEMBER}, [], V07),
        ({"/consumers/f/offsets/t/0": b"1", MEMBER: OLD_MEMBER}, ["f"], V08),
    ],
)
async def test_detects_dialect_without_waiting(
    nodes: dict[str, bytes], groups: list[str], spoken: Dialect | None
) -> None:
    zookeeper = MemoryZooKeeper()
    for path, text in nodes.items():
        zookeeper.put(path, text)
    async with zookeeper.session() as zk:
        assert await look_for_dialect(zk, groups) is spoken


@pytest.mark.parametrize(
    "nodes",
    [
        {BROKER: OLD_BROKER, "/brokers/ids/1": NEW_BROKER},
        {MEMBER: NEW_MEMBER, "/consumers/g/ids/g_b": OLD_MEMBER},
        {NEW_OFFSET: b"1", OLD_OFFSET: b"1"},
    ],
    ids=["brokers", "members", "offsets"],
)
async def test_detects_mixed_dialects_without_waiting(
    nodes: dict[str, bytes], server: MemoryZooKeeper, zk: MemorySession
) -> None:
    for path, text in nodes.items():
        server.put(path, text)
    with pytest.raises(DialectError, match="give each a ZooKeeper chroot"):
        await look_for_dialect(zk)


class Reading:
    """A session that counts its listings, and deletes the nodes named by `vanishing` behind them."""

    def __init__(self, zookeeper: MemoryZooKeeper, zk: MemorySession) -> None:
        self._zookeeper, self._zk = zookeeper, zk
        self.listings = 0
        self.vanishing: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._zk, name)

    async def children(self, path: str, *, watch: bool = False) -> list[str]:
        self.listings += 1
        names = await self._zk.children(path, watch=watch)
        for name in self.vanishing & set(names):
            self._zookeeper.remove(f"{path}/{name}")
        return names


async def test_broker_that_vanishes_while_it_is_read_has_no_dialect(server: MemoryZooKeeper, zk: MemorySession) -> None:
    server.put(BROKER, OLD_BROKER)
    session: Any = Reading(server, zk)
    session.vanishing = {"0"}
    assert await look_for_dialect(session) is None


async def test_looks_once_for_each_change_while_it_waits(server: MemoryZooKeeper, zk: MemorySession) -> None:
    """And reports once that it waits."""
    server.put(BROKER, b"damaged")
    server.put(MEMBER, b"{ }")
    session: Any = Reading(server, zk)
    clock, told = FakeClock(auto=True), list[str]()
    waiting = asyncio.create_task(wait_for_dialect(session, "g", clock, lambda: told.append("nobody")))

    async def settled() -> int:
        before = -1
        while session.listings != before:
            before = session.listings
            for _ in range(100):
                await asyncio.sleep(0)
        return before

    assert await settled() == 2
    for number in (1, 2):
        server.put(f"/brokers/ids/{number}", b"")
        assert await settled() == 2 + 2 * number
    assert told == ["nobody"]
    assert clock.sleeps == []
    server.put("/brokers/ids/3", NEW_BROKER)
    assert await asyncio.wait_for(waiting, 60) is V08


async def test_waits_for_zookeeper_as_well() -> None:
    zookeeper = MemoryZooKeeper()
    zookeeper.put(BROKER, NEW_BROKER)
    async with zookeeper.session(wait_connected=0.001) as zk:
        zookeeper.disconnect(zk)
        clock = FakeClock(auto=True)
        waiting = asyncio.create_task(wait_for_dialect(zk, "g", clock))
        while len(clock.sleeps) < 3:
            await asyncio.sleep(0.001)
        assert len(set(clock.sleeps)) == 1
        zookeeper.reconnect(zk)
        assert await asyncio.wait_for(waiting, 60) is V08

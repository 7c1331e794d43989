from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from consumerd.base.clock import SystemClock
from consumerd.net.cluster.directory import BrokerDirectory, V08BrokerDirectory
from consumerd.testing.clock import FakeClock
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.registry.errors import DialectError
from consumerd.wire.registry.values import RegisteredBroker
from tests.support.waiting import cancel

NEW_BROKER = b'{"jmx_port":-1,"host":"127.0.0.1","version":1,"port":19151}'


class Changes:
    """A listener whose calls can be awaited."""

    def __init__(self) -> None:
        self.seen: list[dict[int, RegisteredBroker]] = []
        self._event = asyncio.Event()

    def __call__(self, brokers: Mapping[int, RegisteredBroker]) -> None:
        self.seen.append(dict(brokers))
        self._event.set()

    async def next(self) -> dict[int, RegisteredBroker]:
        async with asyncio.timeout(60):
            await self._event.wait()
        self._event.clear()
        return self.seen[-1]


@asynccontextmanager
async def following(
    zk: MemorySession, *, poll: float = 60.0, settle: float = 0.001
) -> AsyncIterator[tuple[BrokerDirectory, Changes]]:
    directory = BrokerDirectory(zk, clock=SystemClock(), settle=settle, poll=poll, retry=0.001)
    changes = Changes()
    directory.subscribe(changes)
    task = asyncio.create_task(directory.run())
    try:
        yield directory, changes
    finally:
        await cancel(task)
        assert task.cancelled()
    assert len(zk._watches) == 0


async def test_follows_brokers_that_come_move_and_go(server: MemoryZooKeeper, zk: MemorySession) -> None:
    async with following(zk) as (directory, changes):
        assert directory.address(0) is None
        await asyncio.sleep(0)
        server.put("/brokers/ids/0", b"a-1:a:9092")  # the parents come with it
        await changes.next()
        assert directory.address(0) == ("a", 9092)
        server.put("/brokers/ids/1", b"b-1:b:9092")
        await changes.next()
        assert set(directory.brokers) == {0, 1}
        server.put("/brokers/ids/0", b"a-2:c:9093")
        await changes.next()
        assert directory.address(0) == ("c", 9093)
        server.remove("/brokers/ids/1")
        await changes.next()
        assert directory.address(1) is None


async def test_notices_restart_at_another_address(server: MemoryZooKeeper, zk: MemorySession) -> None:
    server.put("/brokers/ids/0", b"a-1:a:9092")
    async with following(zk) as (directory, changes):
        await changes.next()
        server.remove("/brokers/ids/0")
        server.put("/brokers/ids/0", b"a-2:a:9999")
        await changes.next()
        assert directory.address(0) == ("a", 9999)
        assert len(changes.seen) == 2


async def test_reads_few_times_in_burst_of_changes(server: MemoryZooKeeper, zk: MemorySession) -> None:
    async with following(zk, settle=0.02) as (_, changes):
        await asyncio.sleep(0)
        for broker in range(200):
            server.put(f"/brokers/ids/{broker}", b"h:9092")
            await asyncio.sleep(0)
        while len(await changes.next()) < 200:
            pass
        assert len(changes.seen) <= 20


async def test_polls_after_lost_watch(server: MemoryZooKeeper, zk: MemorySession) -> None:
    async with following(zk, poll=0.01) as (directory, changes):
        zk.lose_watches = True
        server.put("/brokers/ids/0", b"h:9092")
        await changes.next()
        assert directory.address(0) == ("h", 9092)


async def test_keeps_last_addresses_while_zookeeper_is_unavailable() -> None:
    zookeeper = MemoryZooKeeper()
    zookeeper.put("/brokers/ids/0", b"h:9092")
    async with zookeeper.session(wait_connected=0.005) as zk, following(zk, poll=0.005) as (directory, changes):
        await changes.next()
        zookeeper.disconnect(zk)
        zookeeper.put("/brokers/ids/0", b"h:9999")
        await asyncio.sleep(0.03)
        assert directory.address(0) == ("h", 9092)
        zookeeper.expire(zk)
        zookeeper.reconnect(zk)
        await changes.next()
        assert directory.address(0) == ("h", 9999)


async def test_returns_addresses_once_brokers_are_registered(server: MemoryZooKeeper, zk: MemorySession) -> None:
    async with following(zk) as (directory, changes):
        await asyncio.sleep(0)
        server.put("/brokers/ids/0", b"h:9092")
        await changes.next()
        assert directory.address(0) == ("h", 9092)
        assert directory.address(1) is None
        server.put("/brokers/ids/1", b"h:9093")
        await changes.next()
        assert directory.address(1) == ("h", 9093)
        assert directory.address(7) is None
        assert set(directory.brokers) == {0, 1}


async def test_skips_unreadable_broker_with_one_warning(server: MemoryZooKeeper, zk: MemorySession) -> None:
    server.put("/brokers/ids/0", b"damaged")
    server.put("/brokers/ids/x", b"h:1")
    server.put("/brokers/ids/1", b"h:9092")
    with patch("consumerd.net.cluster.directory.log") as log:
        async with following(zk) as (directory, changes):
            assert list(await changes.next()) == [1]
            server.put("/brokers/ids/1", b"h:9093")
            await changes.next()
            server.put("/brokers/ids/2", NEW_BROKER)  # too late to be refused
            server.put("/brokers/ids/3", b"h:9094")
            assert list(await changes.next()) == [1, 3]
            assert directory.address(0) is directory.address(2) is None
    told = [call.kwargs["broker"] for call in log.warning.call_args_list if "broker" in call.kwargs]
    assert told == [0, 2]


async def test_rejects_v08_brokers_on_first_read(server: MemoryZooKeeper, zk: MemorySession) -> None:
    server.put("/brokers/ids/0", NEW_BROKER)
    with pytest.raises(DialectError):
        await BrokerDirectory(zk, clock=SystemClock()).run()


@pytest.mark.parametrize(
    ("directory", "broker"), [(BrokerDirectory, NEW_BROKER), (V08BrokerDirectory, b"host-1:host:9092")]
)
async def test_rejects_late_first_broker_of_other_dialect(
    directory: Any, broker: bytes, server: MemoryZooKeeper, zk: MemorySession
) -> None:
    """A member that knew its dialect by its configuration, or by other members, stands where all peers trip over it."""
    server.put("/brokers/ids", b"")
    following = asyncio.create_task(directory(zk, clock=SystemClock(), settle=0.001, poll=0.001).run())
    await asyncio.sleep(0.02)  # several reads without a broker
    assert not following.done()
    server.put("/brokers/ids/0", broker)
    with pytest.raises(DialectError):
        await asyncio.wait_for(following, 60)


async def test_notifies_listeners_of_changes_until_unsubscribed(server: MemoryZooKeeper, zk: MemorySession) -> None:
    server.put("/brokers/ids/0", b"h:9092")
    async with following(zk, poll=0.001) as (directory, changes):
        other = Changes()
        leave = directory.subscribe(other)
        await changes.next()
        leave()
        leave()
        await asyncio.sleep(0.02)  # several polls
        assert len(changes.seen) == 1
        server.remove("/brokers/ids/0")
        assert await changes.next() == {}
        assert len(other.seen) == 1


async def test_lists_v08_brokers_by_security_protocol(server: MemoryZooKeeper, zk: MemorySession) -> None:
    server.put("/brokers/ids/2", NEW_BROKER)
    server.put(
        "/brokers/ids/1",
        b'{"version":4,"host":null,"port":-1,"endpoints":["INSIDE://a:9093","OUT://[::1]:9094"],'
        b'"listener_security_protocol_map":{"INSIDE":"SSL","OUT":"SASL_SSL"}}',
    )
    directory = V08BrokerDirectory(zk, clock=SystemClock(), settle=0.001)
    news = asyncio.Event()
    directory.subscribe(lambda _: news.set())
    task = asyncio.create_task(directory.run())
    async with asyncio.timeout(60):
        await news.wait()
        assert directory.addresses("PLAINTEXT") == [("127.0.0.1", 19151)]
        assert directory.addresses("SSL") == [("a", 9093)]
        assert directory.addresses("SASL_SSL") == [("::1", 9094)]
        news.clear()
        server.put("/brokers/ids/3", NEW_BROKER.replace(b"19151", b"19152"))
        server.put("/brokers/ids/4", b"host-1:host:9092")  # of 0.7, and too late to be refused
        await news.wait()
        assert directory.addresses("PLAINTEXT") == [("127.0.0.1", 19151), ("127.0.0.1", 19152)]
    await cancel(task)
    assert task.cancelled()
    server.remove("/brokers/ids/1")
    with pytest.raises(DialectError, match=r"in the format of Kafka 0\.7"):
        await V08BrokerDirectory(zk, clock=SystemClock()).run()


async def test_reads_once_for_a_change_and_watches_the_brokers_that_are_there(
    server: MemoryZooKeeper, zk: MemorySession
) -> None:
    server.put("/brokers/ids/0", b"a-1:a:9092")
    clock, listed = FakeClock(auto=True), 0
    children = zk.children

    async def counted(path: str, *, watch: bool = False) -> list[str]:
        nonlocal listed
        listed += 1
        return await children(path, watch=watch)

    async def settled() -> int:
        before = -1
        while listed != before:
            before = listed
            for _ in range(100):
                await asyncio.sleep(0)
        return listed

    with patch.object(zk, "children", counted):
        directory = BrokerDirectory(zk, clock=clock, settle=0.25)
        following = asyncio.create_task(directory.run())
        assert await settled() == 1
        server.put("/brokers/ids/1", b"b-1:b:9092")
        assert await settled() == 2
        assert len(zk._watches) == 3
        server.remove("/brokers/ids/0")
        assert await settled() == 3
        assert set(directory.brokers) == {1}
        assert len(zk._watches) == 2
        assert clock.sleeps == [0.25] * 2
        await cancel(following)
        assert following.cancelled()


async def test_pauses_while_zookeeper_cannot_be_read() -> None:
    zookeeper = MemoryZooKeeper()
    zookeeper.put("/brokers/ids/0", b"a-1:a:9092")
    async with zookeeper.session(wait_connected=0.001) as zk:
        zookeeper.disconnect(zk)
        clock, changes = FakeClock(auto=True), Changes()
        directory = BrokerDirectory(zk, clock=clock, retry=7.5)
        directory.subscribe(changes)
        following = asyncio.create_task(directory.run())
        while len(clock.sleeps) < 3:
            await asyncio.sleep(0.001)
        assert set(clock.sleeps) == {7.5}
        zookeeper.reconnect(zk)
        assert list(await changes.next()) == [0]
        await cancel(following)
        assert following.cancelled()


async def test_logs_each_broker_that_comes_moves_or_goes() -> None:
    hidden = b'{"version":4,"host":null,"port":-1,"endpoints":["SSL://a:9093"],"listener_security_protocol_map":{}}'
    zookeeper = MemoryZooKeeper()
    zookeeper.put("/brokers/ids/2", NEW_BROKER)
    zookeeper.put("/brokers/ids/3", NEW_BROKER)
    async with zookeeper.session() as zk:
        directory, changes = V08BrokerDirectory(zk, clock=SystemClock(), settle=0.001), Changes()
        directory.subscribe(cast("Any", changes))
        with capture_logs() as logs:
            task = asyncio.create_task(directory.run())
            await changes.next()
            for path, text in (("1", hidden), ("2", NEW_BROKER.replace(b"19151", b"19152")), ("3", None)):
                zookeeper.put(f"/brokers/ids/{path}", text) if text else zookeeper.remove(f"/brokers/ids/{path}")
                await changes.next()
            await cancel(task)
            assert task.cancelled()
    assert [(line["broker"], line["before"], line["now"]) for line in logs if line["event"] == "broker_changed"] == [
        (2, "gone", "127.0.0.1:19151"),
        (3, "gone", "127.0.0.1:19151"),
        (1, "gone", "there, not in plaintext"),
        (2, "127.0.0.1:19151", "127.0.0.1:19152"),
        (3, "127.0.0.1:19151", "gone"),
    ]

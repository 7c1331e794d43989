"""Routes over a list of brokers, and by ZooKeeper in memory: when nodes are read again, and what serves until then."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import ConfigError
from consumerd.net.zk.errors import ConnectionLost, NotConnected
from consumerd.producer import ANY_PARTITION, StaticRouter
from consumerd.producer.errors import NoBrokerError, NoPartitionError
from consumerd.producer.v07.routing import ZooKeeperRouter
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.registry.errors import DialectError

BROKERS = [("a", 1), ("b", 2), ("c", 3)]


async def test_lets_a_random_broker_choose_the_partition() -> None:
    router = StaticRouter(BROKERS, rng=random.Random(1))
    routes = [await router.route("t", None, None) for _ in range(300)]
    assert {route.partition for route in routes} == {ANY_PARTITION}
    counts = Counter((route.host, route.port) for route in routes)
    assert sorted(counts) == BROKERS
    assert min(counts.values()) > 50
    # As in 0.7.2 a key has no influence.
    assert len({(await router.route("t", "key", None)).host for _ in range(100)}) == 3
    await router.close()


async def test_keeps_an_explicit_partition() -> None:
    router = StaticRouter(BROKERS[:1], rng=random.Random(1))
    assert await router.route("t", None, 7) == ("a", 1, 7)
    assert await router.route("t", None, -1) == ("a", 1, -1)
    assert await router.route("t", None, 2**31 - 1) == ("a", 1, 2**31 - 1)
    for wrong in (-2, 2**31):
        with pytest.raises(NoPartitionError, match=f"{wrong} is not a partition"):
            await router.route("t", None, wrong)


def test_rejects_an_empty_list() -> None:
    with pytest.raises(ConfigError, match="list of brokers is empty"):
        StaticRouter([], rng=random.Random())


class Session:
    """A session whose reads are counted, and whose watchers too. `before` is called with a path before its data."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.reads = 0
        self.watchers = 0
        self.before: Callable[[str], None] = lambda path: None

    async def children(self, path: str, *, watch: bool = False) -> Any:
        self.reads += 1
        return await self._session.children(path, watch=watch)

    async def exists(self, path: str, *, watch: bool = False) -> Any:
        return await self._session.exists(path, watch=watch)

    async def get(self, path: str, *, watch: bool = False) -> Any:
        self.before(path)
        return await self._session.get(path, watch=watch)

    def watch(self, path: str, changed: Any) -> Callable[[], None]:
        end = self._session.watch(path, changed)
        self.watchers += 1

        def ended() -> None:
            self.watchers -= 1
            end()

        return ended


class Cluster:
    """Two brokers, and a topic with one partition on each."""

    def __init__(self) -> None:
        self.zookeeper = MemoryZooKeeper()
        for number in (1, 2):
            self.broker(number)
            self.partitions(number, b"1")
        self.own = self.zookeeper.session(wait_connected=0.0)
        self.session = Session(self.own)
        zk: Any = self.session
        self.router = ZooKeeperRouter(zk, rng=random.Random(1))

    def broker(self, number: int, port: int = 9092) -> None:
        self.zookeeper.put(f"/brokers/ids/{number}", b"creator:h%d:%d" % (number, port))

    def partitions(self, broker: int, count: bytes) -> None:
        self.zookeeper.put(f"/brokers/topics/t/{broker}", count)

    async def routes(self, partition: int | None = None) -> set[tuple[str, int, int]]:
        """What is chosen in many attempts."""
        for _ in range(3):
            await asyncio.sleep(0)  # watches fire
        return {await self.router.route("t", None, partition) for _ in range(60)}


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    await cluster.own.start()
    try:
        yield cluster
    finally:
        await cluster.own.close()


BOTH = {("h1", 9092, 0), ("h2", 9092, 0)}


async def test_reads_nodes_once_until_one_of_them_changes() -> None:
    async with running() as cluster:
        assert await cluster.routes() == BOTH
        assert cluster.session.reads == 2
        assert await cluster.routes() == BOTH
        assert cluster.session.reads == 2
        watchers = cluster.session.watchers
        cluster.partitions(2, b"2")
        assert await cluster.routes() == {*BOTH, ("h2", 9092, 1)}
        cluster.partitions(2, b"1")
        assert await cluster.routes() == BOTH
        cluster.broker(1, port=9093)
        assert await cluster.routes() == {("h1", 9093, 0), ("h2", 9092, 0)}
        assert cluster.session.reads == 5
        assert cluster.session.watchers == watchers
        cluster.broker(3)
        assert await cluster.routes() == {("h1", 9093, 0), ("h2", 9092, 0), ("h3", 9092, 0)}
        await cluster.router.close()
        assert cluster.session.watchers == 0


async def test_change_while_nodes_are_read_has_them_read_again() -> None:
    async with running() as cluster:

        def change(path: str) -> None:
            if path == "/brokers/topics/t/2":
                cluster.session.before = lambda path: None
                cluster.partitions(1, b"2")

        await cluster.routes()
        cluster.partitions(1, b"3")
        cluster.session.before = change
        await cluster.routes()
        assert await cluster.routes() == {*BOTH, ("h1", 9092, 1)}


async def test_last_knowledge_serves_while_zookeeper_is_unavailable_and_is_read_again_afterwards() -> None:
    async with running() as cluster:
        assert await cluster.routes() == BOTH
        cluster.partitions(1, b"2")
        await cluster.routes()
        cluster.partitions(1, b"3")
        await asyncio.sleep(0)
        cluster.zookeeper.disconnect(cluster.own)
        with capture_logs() as logs:
            assert await cluster.routes() == {*BOTH, ("h1", 9092, 1)}
        assert "route_refresh_failed" in {each["event"] for each in logs}
        cluster.zookeeper.reconnect(cluster.own)
        assert await cluster.routes() == {*BOTH, ("h1", 9092, 1), ("h1", 9092, 2)}


async def test_nothing_is_known_before_zookeeper_was_read_once() -> None:
    async with running() as cluster:
        cluster.zookeeper.disconnect(cluster.own)
        for _ in range(2):
            with pytest.raises((NotConnected, ConnectionLost)):
                await cluster.router.route("t", None, None)
        cluster.zookeeper.reconnect(cluster.own)
        assert await cluster.routes() == BOTH


async def test_brokers_of_a_later_kafka_are_an_error_each_time_and_invalid_nodes_are_left_out() -> None:
    async with running() as cluster:
        cluster.zookeeper.put("/brokers/ids/1", b"nonsense")
        cluster.zookeeper.put("/brokers/ids/x", b"creator:h3:9092")
        with capture_logs() as logs:
            assert await cluster.routes() == {("h2", 9092, 0)}
        assert {each["path"] for each in logs} == {"/brokers/ids/1", "/brokers/ids/x"}
        cluster.broker(1)
        cluster.partitions(2, b"many")
        assert await cluster.routes() == BOTH  # as if that broker did not have the topic yet
        cluster.zookeeper.put("/brokers/ids/1", b'{"host": "h1", "port": 9092, "version": 1, "jmx_port": -1}')
        for _ in range(2):
            await asyncio.sleep(0)
            with pytest.raises(DialectError):
                await cluster.router.route("t", None, None)


async def test_broker_that_is_gone_before_its_node_is_read_is_left_out() -> None:
    async with running() as cluster:
        cluster.session.before = lambda path: cluster.zookeeper.remove("/brokers/ids/1")
        with capture_logs() as logs:
            assert await cluster.routes() == {("h2", 9092, 0)}
        assert logs == []


async def test_rejects_what_no_broker_can_have() -> None:
    async with running() as cluster:
        with pytest.raises(NoPartitionError, match="-2 is not a partition"):
            await cluster.router.route("t", None, -2)
        for number in (1, 2):
            cluster.zookeeper.remove(f"/brokers/ids/{number}")
        with pytest.raises(NoBrokerError, match="no live broker is registered"):
            await cluster.router.route("t", None, None)

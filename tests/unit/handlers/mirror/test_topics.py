from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from consumerd.handlers.mirror.topics import MirrorTopics
from consumerd.net.errors import ConnectError, ConnectionClosedError
from consumerd.testing.clock import FakeClock
from consumerd.testing.memory_broker import MemoryBroker
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.v07 import ProduceRequest, Request


class Cluster:
    """Brokers that register a topic when something was produced to it; by default at once."""

    def __init__(self) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.clock = FakeClock(auto=True)
        self.broker = MemoryBroker()
        self.made: list[tuple[str, int]] = []
        self.register: Callable[[str, int], None] = self.registered
        for number in (0, 1):
            self.zookeeper.put(f"/brokers/ids/{number}", b"x-1:h:%d" % (9000 + number))

    def registered(self, topic: str, port: int) -> None:
        self.zookeeper.put(f"/brokers/topics/{topic}/{port - 9000}", b"4")

    async def connect(self, host: str, port: int) -> Any:
        def produced(request: Request) -> None:
            if isinstance(request, ProduceRequest):
                assert (request.partition, request.messages) == (0, b"")
                self.made.append((request.topic, port))
                self.register(request.topic, port)

        self.broker.on_request = produced
        return await self.broker.connect(host, port)


async def test_creates_a_new_topic_once_on_all_brokers() -> None:
    cluster = Cluster()
    async with cluster.zookeeper.session() as zk:
        topics = MirrorTopics(zk, connect=cluster.connect, clock=cluster.clock)
        await asyncio.gather(*[topics.ensure("t") for _ in range(5)])
        await topics.ensure("t")
        assert cluster.made == [("t", 9000), ("t", 9001)]
        assert not cluster.broker.connections


async def test_creates_a_topic_on_the_brokers_that_lack_it() -> None:
    """Else its partition 0 there would take part in the routing, and more of them after the first message."""
    cluster = Cluster()
    cluster.zookeeper.put("/brokers/topics/t/1", b"1")
    async with cluster.zookeeper.session() as zk:
        topics = MirrorTopics(zk, connect=cluster.connect, clock=cluster.clock)
        await topics.ensure("t")
        assert cluster.made == [("t", 9000)]
        await topics.ensure("t")
        assert cluster.made == [("t", 9000)]


async def test_waits_for_registration_until_a_deadline() -> None:
    cluster = Cluster()
    late: list[tuple[str, int]] = []
    cluster.register = lambda topic, port: late.append((topic, port))
    cluster.clock.auto = False
    async with cluster.zookeeper.session() as zk:
        topics = MirrorTopics(zk, connect=cluster.connect, clock=cluster.clock)
        waiting = asyncio.create_task(topics.ensure("t"))
        for _ in range(20):
            await cluster.clock.advance(0.05)
        assert not waiting.done()
        for place in late:
            cluster.registered(*place)
        for _ in range(20):
            await cluster.clock.advance(0.05)
        assert waiting.done()
        await waiting
        cluster.clock.auto = True
        with structlog.testing.capture_logs() as logs:
            await topics.ensure("u")
        assert [entry["event"] for entry in logs] == ["topic_registration_timed_out"]


async def test_reports_brokers_that_reject_or_are_unavailable() -> None:
    cluster = Cluster()
    async with cluster.zookeeper.session() as zk:
        cluster.broker.away = True
        topics = MirrorTopics(zk, connect=cluster.connect, clock=cluster.clock)
        with pytest.raises(ConnectError):
            await topics.ensure("t")

        def refuse(topic: str, port: int) -> None:
            raise ConnectionClosedError("a set without messages")

        cluster.broker.away = False
        cluster.register = refuse
        with structlog.testing.capture_logs() as logs:
            await topics.ensure("t")
        assert [entry["event"] for entry in logs] == [
            "topic_create_failed",
            "topic_create_failed",
            "topic_registration_timed_out",
        ]
        assert not cluster.broker.connections


async def test_raises_without_a_broker() -> None:
    cluster = Cluster()
    for number in (0, 1):
        cluster.zookeeper.remove(f"/brokers/ids/{number}")
    async with cluster.zookeeper.session() as zk:
        topics = MirrorTopics(zk, connect=cluster.connect, clock=cluster.clock)
        await topics.ensure("t")
        cluster.zookeeper.put("/brokers/ids/0", b"x-1:h:9000")
        await topics.ensure("t")
        assert cluster.made == [("t", 9000)]

"""The view and the directory on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import random

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.net.cluster import BrokerDirectory, ClusterView
from consumerd.net.zk import Session


def session(connect: str) -> Session:
    return Session(connect, clock=SystemClock(), rng=random.Random(1), session_timeout=4)


@pytest.mark.asyncio
async def test_directory_follows_brokers(zk_root: str) -> None:
    async with session(zk_root) as zk, session(zk_root) as broker, asyncio.TaskGroup() as group:
        directory = BrokerDirectory(zk, clock=SystemClock())
        running = group.create_task(directory.run())
        came, moved = asyncio.Event(), asyncio.Event()
        directory.subscribe(lambda brokers: came.set() if brokers else None)
        await broker.create_ephemeral("/brokers/ids/3", b"vm-1:127.0.0.1:9092", wait=0)
        async with asyncio.timeout(60):
            await came.wait()
        assert directory.address(3) == ("127.0.0.1", 9092)
        directory.subscribe(lambda brokers: moved.set() if directory.address(3) == ("127.0.0.1", 9093) else None)
        await broker.delete("/brokers/ids/3")
        await broker.create_ephemeral("/brokers/ids/3", b"vm-2:127.0.0.1:9093", wait=0)
        async with asyncio.timeout(60):
            await moved.wait()
        gone = asyncio.Event()
        directory.subscribe(lambda brokers: None if brokers else gone.set())
        await broker.close()
        async with asyncio.timeout(60):
            await gone.wait()
        running.cancel()


@pytest.mark.asyncio
async def test_reads_a_thousand_topics_and_a_group(zk_root: str) -> None:
    async with session(zk_root) as zk:
        view = ClusterView(zk)
        assert await view.read_topics() == {}
        await zk.ensure("/brokers/topics")
        for start in range(0, 1000, 100):
            await asyncio.gather(*(zk.ensure(f"/brokers/topics/t{number}") for number in range(start, start + 100)))
        await zk.create_ephemeral("/brokers/topics/t7/0", b"2", wait=0)
        await zk.create_ephemeral("/consumers/g/ids/g_a", b'{ "t7": 1 }', wait=0)
        await zk.create_ephemeral("/consumers/g/owners/t7/0-1", b"g_a-0", wait=0)
        await zk.ensure("/consumers/g/offsets/t7")
        await zk.create("/consumers/g/offsets/t7/0-1", b"12")
        topics = await view.read_topics()
        assert len(topics) == 1000
        assert {name: brokers for name, brokers in topics.items() if brokers} == {"t7": {0: 2}}
        group = await view.read_group("g")
        assert group.owners == {TopicPartition("t7", 0, 1): ("g_a", 0)}
        assert group.offsets == {TopicPartition("t7", 0, 1): 12}
        assert list(group.plan(topics)) == [TopicPartition("t7", 0, 0), TopicPartition("t7", 0, 1)]

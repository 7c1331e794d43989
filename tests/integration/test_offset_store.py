"""Fenced commits against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.member.offsets.store import CommitResult, ZooKeeperOffsetStore
from consumerd.net.zk import Session
from consumerd.wire.registry.paths import offset_path, offsets_path, owner_path

GROUP = "g"


@contextlib.asynccontextmanager
async def session(root: str) -> AsyncIterator[Session]:
    async with Session(root, clock=SystemClock(), rng=random.Random(1), session_timeout=4) as zk:
        yield zk


async def claim(zk: Session, partitions: list[TopicPartition]) -> None:
    for partition in partitions:
        await zk.create_ephemeral(owner_path(GROUP, partition), b"g_me-0", wait=1)


def many(count: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, number % 3, number) for number in range(count)]


async def test_writes_first_and_later_commits(zk_root: str) -> None:
    async with session(zk_root) as zk:
        store = ZooKeeperOffsetStore(zk, GROUP)
        partitions = many(130) + many(3, "другая тема")
        assert await store.load(partitions) == {}
        await claim(zk, partitions)
        for base in (0, 10**15):
            positions = {partition: base + index for index, partition in enumerate(partitions)}
            result = await store.commit(positions, session_id=zk.session_id)
            assert result == CommitResult(frozenset(partitions), frozenset())
            assert await store.load(partitions) == positions
        data, stat = await zk.get(offset_path(GROUP, partitions[5]))
        assert data == b"%d" % (10**15 + 5)  # decimal text, as 0.7.2 writes it
        assert (stat.ephemeral_owner, stat.version) == (0, 1)
        assert await zk.get(offsets_path(GROUP, "t")) == (None, (await zk.get(offsets_path(GROUP, "t")))[1])


async def test_cancelled_commit_leaves_no_task_behind(zk_root: str) -> None:
    async with session(zk_root) as zk:
        store = ZooKeeperOffsetStore(zk, GROUP)
        partitions = many(100)
        await claim(zk, partitions)
        before = len(asyncio.all_tasks())
        task = asyncio.create_task(store.commit(dict.fromkeys(partitions, 1), session_id=zk.session_id))
        await asyncio.sleep(0.002)
        task.cancel()
        await asyncio.wait([task])
        assert len(asyncio.all_tasks()) == before
        assert (await store.commit(dict.fromkeys(partitions, 2), session_id=zk.session_id)).lost == frozenset()

"""Fenced commits against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.member.offsets import CommitResult, ZooKeeperOffsetStore
from consumerd.net.zk import Session
from consumerd.net.zk.errors import SessionChanged
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.paths import offset_path, offsets_path, owner_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio

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


async def test_lost_owner_node_rejects_only_its_partition(zk_root: str) -> None:
    async with session(zk_root) as zk, session(zk_root) as peer:
        store = ZooKeeperOffsetStore(zk, GROUP)
        partitions = many(60)
        gone, taken = partitions[7], partitions[52]
        await claim(zk, partitions)
        await store.commit(dict.fromkeys(partitions, 1), session_id=zk.session_id)
        await peer.delete(owner_path(GROUP, gone))
        await peer.delete(owner_path(GROUP, taken))
        await claim(peer, [taken])
        result = await store.commit(dict.fromkeys(partitions, 2), session_id=zk.session_id)
        assert result.lost == {gone, taken}
        assert result.committed == set(partitions) - {gone, taken}
        stored = await store.load(partitions)
        assert {partition for partition, offset in stored.items() if offset == 1} == {gone, taken}


async def test_rejects_a_commit_after_the_owner_node_was_lost(zk_root: str) -> None:
    """The server has the last word: the node goes after the owner was checked, and before the multi arrives."""
    async with session(zk_root) as zk, session(zk_root) as peer:
        partitions = many(5)
        await claim(zk, partitions)
        store = ZooKeeperOffsetStore(_Meddler(zk, peer, owner_path(GROUP, partitions[2])), GROUP)  # type: ignore[arg-type]
        result = await store.commit(dict.fromkeys(partitions, 9), session_id=zk.session_id)
        assert result.lost == {partitions[2]}
        assert set(await store.load(partitions)) == set(partitions) - {partitions[2]}


class _Meddler:
    """Passes everything on; before the first multi it lets a peer delete a node."""

    def __init__(self, zk: Session, peer: Session, victim: str) -> None:
        self._zk = zk
        self._peer = peer
        self._victim: str | None = victim

    def __getattr__(self, name: str) -> object:
        return getattr(self._zk, name)

    async def multi(self, operations: object, *, session_id: int | None = None) -> None:
        if self._victim is not None:
            victim, self._victim = self._victim, None
            await self._peer.delete(victim)
        await self._zk.multi(operations, session_id=session_id)  # type: ignore[arg-type]


async def test_handles_offset_nodes_that_come_and_go(zk_root: str) -> None:
    async with session(zk_root) as zk:
        store = ZooKeeperOffsetStore(zk, GROUP)
        partitions = many(10)
        await claim(zk, partitions)
        await store.commit(dict.fromkeys(partitions, 1), session_id=zk.session_id)
        for partition in partitions[::3]:
            await zk.delete(offset_path(GROUP, partition))
        result = await store.commit(dict.fromkeys(partitions, 2), session_id=zk.session_id)
        assert result.committed == set(partitions)
        assert await store.load(partitions) == dict.fromkeys(partitions, 2)


async def test_writes_nothing_for_an_expired_session(zk_root: str) -> None:
    async with session(zk_root) as zk:
        store = ZooKeeperOffsetStore(zk, GROUP)
        partitions = many(3)
        await claim(zk, partitions)
        with pytest.raises(SessionChanged):
            await store.commit(dict.fromkeys(partitions, 1), session_id=zk.session_id + 1)
        assert await store.load(partitions) == {}
        assert await store.commit({}, session_id=zk.session_id) == CommitResult(frozenset(), frozenset())


async def test_rejects_a_non_numeric_offset(zk_root: str) -> None:
    async with session(zk_root) as zk:
        partition = many(1)[0]
        await zk.ensure(offsets_path(GROUP, "t"))
        await zk.create(offset_path(GROUP, partition), b"-7; rm")
        with pytest.raises(RegistryError):
            await ZooKeeperOffsetStore(zk, GROUP).load([partition])


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

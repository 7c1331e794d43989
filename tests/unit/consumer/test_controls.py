"""Requests of a program for its partitions, such as seek and pause."""

from __future__ import annotations

from typing import Any, cast

import pytest

from consumerd.consumer.controls import PartitionControls
from consumerd.offsets import ZooKeeperOffsetStore
from consumerd.partition import TopicPartition
from consumerd.registry.paths import offset_path, owner_path
from consumerd.testing.memory_zookeeper import MemoryZooKeeper

pytestmark = pytest.mark.asyncio

PLACE = TopicPartition("t", 0, 0)


async def test_reading_committed_offsets_does_not_affect_next_commit() -> None:
    server, unused = MemoryZooKeeper(), cast("Any", None)
    async with server.session() as zk:
        server.put(owner_path("g", PLACE), b"g_me-0", session_id=zk.session_id)
        store = ZooKeeperOffsetStore(zk, "g")
        await store.commit({PLACE: 10}, session_id=zk.session_id)
        server.put(offset_path("g", PLACE), b"20")
        assert await PartitionControls(unused, unused, store).committed(PLACE) == {PLACE: 20}
        await store.commit({PLACE: 12}, session_id=zk.session_id)
        assert server.tree.data(offset_path("g", PLACE)) == b"20"

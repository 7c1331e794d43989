"""A ZooKeeper in memory, and a session of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    return MemoryZooKeeper()


@pytest_asyncio.fixture
async def zk(zookeeper: MemoryZooKeeper) -> AsyncIterator[MemorySession]:
    async with zookeeper.session() as session:
        yield session

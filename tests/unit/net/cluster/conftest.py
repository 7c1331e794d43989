"""A ZooKeeper in memory, and a session of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    return MemoryZooKeeper()


@pytest_asyncio.fixture
async def zk(zookeeper: MemoryZooKeeper) -> AsyncIterator[MemorySession]:
    async with zookeeper.session() as session:
        yield session

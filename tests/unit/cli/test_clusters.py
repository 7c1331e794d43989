"""Commands detect the kind of a cluster by the nodes in ZooKeeper."""

from __future__ import annotations

import pytest

from consumerd.cli.clusters import dialect_at
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.registry.dialect import Dialect


@pytest.mark.asyncio
async def test_assumes_v07_if_both_dialects_are_registered() -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.session() as zk:
        assert await dialect_at(zk) is None
        zookeeper.put("/consumers/g/offsets/t/0", b"1")
        assert await dialect_at(zk, ["g"]) is Dialect.V08
        assert await dialect_at(zk, ["h"]) is None
        zookeeper.put("/consumers/g/offsets/t/0-0", b"1")
        assert await dialect_at(zk, ["g"]) is Dialect.V07

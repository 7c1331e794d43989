"""The parts of a member since Kafka 0.8: where it keeps its offsets, and from which brokers its client begins."""

from __future__ import annotations

import asyncio
import json
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from consumerd.consumer.backends_v08 import ClusterBackend, V08Backend
from consumerd.offsets import (
    ClaimedStore,
    DualOffsetStore,
    KafkaOffsetStore,
    OffsetSettings,
    UnclaimedZooKeeperOffsetStore,
    ZooKeeperOffsetStore,
)
from consumerd.testing.clock import FakeClock
from consumerd.testing.memory_zookeeper import MemoryZooKeeper

if TYPE_CHECKING:
    from consumerd.client import ClusterClient
    from consumerd.consumer.backends import FetchOwner
    from consumerd.offsets import Storage
    from consumerd.offsets.guards import Ownership

pytestmark = pytest.mark.asyncio


class Client:
    """Notes the brokers with which it is to begin."""

    def __init__(self) -> None:
        self.begins: list[list[tuple[str, int]]] = []

    def begin_with(self, addresses: list[tuple[str, int]]) -> None:
        self.begins.append(addresses)


@pytest.mark.parametrize(
    ("storage", "in_group", "fixed"),
    [
        (None, ZooKeeperOffsetStore, KafkaOffsetStore),
        ("zookeeper", ZooKeeperOffsetStore, UnclaimedZooKeeperOffsetStore),
        ("kafka", ClaimedStore, KafkaOffsetStore),
        ("both", DualOffsetStore, DualOffsetStore),
    ],
)
async def test_commits_are_fenced_by_owner_nodes_in_groups_of_zookeeper_only(
    storage: Storage | None, in_group: type, fixed: type
) -> None:
    client = cast("ClusterClient", Client())
    offsets = None if storage is None else OffsetSettings(storage)
    async with MemoryZooKeeper().session() as zk:
        claimed = V08Backend(client, offsets=offsets).store(zk, "g", cast("Ownership", None))
        assert type(claimed) is in_group
        assert type(ClusterBackend(client, offsets=offsets, zk=zk).store("g")) is fixed


@pytest.mark.parametrize(
    ("protocol", "begins"), [("PLAINTEXT", [("plain", 9092)]), ("SSL", [("secret", 9093)]), (None, None)]
)
async def test_client_begins_with_brokers_in_zookeeper_that_listen_for_its_protocol(
    protocol: str | None, begins: list[tuple[str, int]] | None
) -> None:
    zookeeper, client = MemoryZooKeeper(), Client()
    node = {"version": 2, "host": "plain", "port": 9092, "jmx_port": -1, "timestamp": "1"}
    endpoints = ["PLAINTEXT://plain:9092", "SSL://secret:9093"]
    zookeeper.put("/brokers/ids/1", json.dumps(node | {"endpoints": endpoints}).encode())
    owner: Any = SimpleNamespace(clock=FakeClock(), settings=SimpleNamespace(fetch=None))
    async with zookeeper.session() as zk:
        backend = V08Backend(cast("ClusterClient", client), protocol=protocol)
        fetching = backend.fetching(zk, cast("FetchOwner", owner), random.Random(1))
        works = [asyncio.create_task(work()) for work in fetching.works]
        for _ in range(100):
            await asyncio.sleep(0)
        assert client.begins[-1:] == ([] if begins is None else [begins])
        for task in works:
            assert not task.done()
            task.cancel()
        await asyncio.gather(*works, return_exceptions=True)

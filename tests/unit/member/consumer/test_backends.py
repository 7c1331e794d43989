"""The parts of a member since Kafka 0.8: where it keeps its offsets, and from which brokers its client begins."""

from __future__ import annotations

import asyncio
import json
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumerd.member.consumer.backends import V07Backend
from consumerd.member.consumer.backends_v08 import ClusterBackend, V08Backend
from consumerd.member.offsets.choice import OffsetSettings, Storage
from consumerd.member.offsets.dual_store import DualOffsetStore
from consumerd.member.offsets.guards import Ownership
from consumerd.member.offsets.kafka_store import ClaimedStore, KafkaOffsetStore
from consumerd.member.offsets.store import UnclaimedZooKeeperOffsetStore, ZooKeeperOffsetStore
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.metadata import ClusterMetadata
from consumerd.testing.clock import FakeClock
from consumerd.testing.memory_zookeeper import MemoryZooKeeper


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
    offsets = None if storage is None else OffsetSettings(storage=storage)
    async with MemoryZooKeeper().session() as zk:
        claimed = V08Backend(client, offsets=offsets).store(zk, "g", cast("Ownership", None))
        assert type(claimed) is in_group
        assert type(ClusterBackend(client, offsets=offsets, zk=zk).store("g")) is fixed


async def test_names_the_cluster_by_its_id_or_by_the_tree_in_zookeeper() -> None:
    known: Any = SimpleNamespace(metadata=ClusterMetadata(cluster_id="abc"))
    unknown: Any = SimpleNamespace(metadata=ClusterMetadata())
    assert await ClusterBackend(known).cluster() == "abc"
    assert await ClusterBackend(unknown).cluster() is None
    names: list[str | None] = []
    for _ in range(2):  # two trees, the second of which was built later
        zookeeper = MemoryZooKeeper()
        for _ in names:
            zookeeper.put("/earlier", b"")
        async with zookeeper.session() as zk:
            ours = V07Backend(cast("Any", None)).cluster(zk)
            assert await ours() is None  # no broker has registered yet
            zookeeper.put("/brokers/ids/1", b"")
            names.append(await ours())
            zookeeper.put("/brokers/ids/2", b"")
            async with zookeeper.session() as other:
                assert await V07Backend(cast("Any", None)).cluster(other)() == names[-1] == await ours()
                assert await V08Backend(unknown).cluster(other)() == names[-1]
                assert await V08Backend(known).cluster(other)() == "abc"
    assert len(set(names)) == 2
    assert all(name is not None and name.startswith("zk-") for name in names)


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
        fetching = backend.fetching(zk, owner, random.Random(1))
        works = [asyncio.create_task(work()) for work in fetching.works]
        for _ in range(100):
            await asyncio.sleep(0)
        assert client.begins[-1:] == ([] if begins is None else [begins])
        for task in works:
            assert not task.done()
            task.cancel()
        await asyncio.gather(*works, return_exceptions=True)

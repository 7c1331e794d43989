"""Whom a client asks, and how often, when many want to know the same."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from consumerd.client import (
    BrokerRelease,
    BrokerVersions,
    ClientSettings,
    ClusterClient,
    UnavailableError,
    topic_partitions,
)
from consumerd.clock import SystemClock
from consumerd.errors import BrokerError
from consumerd.wire.v08.apis import APIS, GROUP_COORDINATOR, HEARTBEAT, METADATA
from consumerd.wire.v08.error_codes import ErrorCode

pytestmark = pytest.mark.asyncio
VERSIONS = BrokerVersions("", BrokerRelease.V0_10_OR_NEWER, {key: api.versions for key, api in APIS.items()})
NODES = (1, 2, 3)


class OneOfThree:
    """The channel to one of three brokers, all of which say that `leader` leads; one that hangs never answers."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        self.address, self.port = f"h:{port}", port
        self.versions = VERSIONS
        self.closed = False
        self.in_flight = 0
        self.cluster = cluster

    async def call(self, api: Any, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        if api is GROUP_COORDINATOR:
            return {"error_code": 0, "coordinator": {"node_id": self.cluster.leader, "host": "h", "port": 9}}
        if api is not METADATA:
            return {"error_code": 0}
        self.cluster.asked += 1
        if self.port in self.cluster.sends_away:
            return {"error_code": ErrorCode.REBOOTSTRAP_REQUIRED, "brokers": [], "topic_metadata": []}
        self.in_flight += 1
        await asyncio.sleep(3600 if self.port == self.cluster.hangs else 0)
        self.in_flight -= 1
        part = {"partition_error_code": 0, "partition_id": 0, "leader": self.cluster.leader, "replicas": [], "isr": []}
        return {
            "brokers": [{"node_id": node, "host": "h", "port": node} for node in self.cluster.nodes],
            "topic_metadata": [
                {"topic_error_code": 0, "topic": each["topic"], "partition_metadata": [part]} for each in body["topics"]
            ],
        }

    async def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class Cluster:
    """Opens channels to the brokers."""

    def __init__(self) -> None:
        self.leader, self.hangs, self.asked = 1, 0, 0
        self.nodes = set(NODES)
        #: Ports of those that demand to bootstrap again, and the port of each connection that was made.
        self.sends_away: set[int] = set()
        self.dialed: list[int] = []

    async def open(self, host: str, port: int) -> Any:
        self.dialed.append(port)
        return OneOfThree(self, port)

    def forget(self, host: str, port: int) -> None:
        """Nothing is remembered."""


def client_of(cluster: Cluster, *ports: int, seed: int = 1) -> ClusterClient:
    opener: Any = cluster
    return ClusterClient(
        [("h", port) for port in ports or (1,)],
        opener,
        ClientSettings(retry_backoff_min=0.001),
        clock=SystemClock(),
        rng=random.Random(seed),
    )


async def test_shares_one_metadata_refresh_between_callers() -> None:
    cluster = Cluster()
    async with client_of(cluster) as client:
        await client.leader("t", 0)
        cluster.leader, cluster.asked = 2, 0
        client.stale(["t"])
        found = await asyncio.gather(*(client.leader("t", 0) for _ in range(100)))
        assert {node.id for node in found} == {2}
        assert cluster.asked == 1


async def test_asks_other_brokers_while_one_hangs() -> None:
    cluster = Cluster()
    async with client_of(cluster) as client:
        await client.leader("t", 0)
        for node in NODES:
            await client.node_channel(node)
        cluster.hangs = 1
        hanging = asyncio.create_task(client.call_node(1, METADATA, {"topics": []}))
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            for _ in range(10):
                client.stale(["t"])
                await client.leader("t", 0)
        hanging.cancel()
        await asyncio.wait([hanging])


async def test_retries_until_broker_is_known_again() -> None:
    cluster = Cluster()
    heartbeat = {"group_id": "g", "group_generation_id": 1, "member_id": "m"}
    async with client_of(cluster) as client:
        await client.refresh(["t"])
        cluster.leader = 3
        cluster.nodes.discard(3)
        await client.refresh()
        client.stale(["t"])
        asyncio.get_running_loop().call_later(0.05, cluster.nodes.add, 3)
        answer = await client.retrying("beat", lambda: client.call_coordinator("g", HEARTBEAT, heartbeat))
        assert answer == {"error_code": 0}
        cluster.nodes.discard(3)
        await client.refresh()
        asyncio.get_running_loop().call_later(0.05, cluster.nodes.add, 3)
        assert (await client.retrying("lead", lambda: client.leader("t", 0))).id == 3


async def test_closes_channel_opened_during_close() -> None:
    cluster = Cluster()
    client = client_of(cluster)
    await client.leader("t", 0)
    await client.close()
    with pytest.raises(BrokerError, match="was closed"):
        await client.node_channel(2)


@pytest.mark.parametrize("seed", range(8))
async def test_asks_the_other_servers_when_one_demands_to_bootstrap_again(seed: int) -> None:
    cluster = Cluster()
    cluster.sends_away = {7, 8}
    async with client_of(cluster, 7, 8, 9, seed=seed) as client:
        assert (await client.leader("t", 0)).id == 1
        assert cluster.dialed[-1] == 9
        assert len(cluster.dialed) == len(set(cluster.dialed)) == cluster.asked
        dialed = len(cluster.dialed)
        await client.refresh()
        assert len(cluster.dialed) == dialed


async def test_closes_every_connection_when_a_broker_demands_to_bootstrap_again() -> None:
    cluster = Cluster()
    async with client_of(cluster) as client:
        assert await client.coordinator("g") == 1
        await client.topics(["t"])
        channels = [await client.node_channel(1), await client.node_channel(2), await client.private_channel(3)]
        cluster.sends_away = {1}
        with pytest.raises(UnavailableError, match="REBOOTSTRAP_REQUIRED"):  # there is no other server yet
            await client.refresh()
        assert [channel.closed for channel in channels] == [True] * 3
        assert (client.metadata.nodes, client.metadata.topics) == ({}, {})
        cluster.sends_away, cluster.leader = set(), 2
        assert await client.coordinator("g") == 2
        assert not (await client.private_channel(3)).closed


async def test_waits_for_a_server_that_does_not_demand_to_bootstrap_again() -> None:
    cluster = Cluster()
    cluster.sends_away = {1}
    async with client_of(cluster) as client:
        asyncio.get_running_loop().call_later(0.02, cluster.sends_away.clear)
        metadata = await client.retrying("ask", client.refresh, timeout=60)
        assert set(metadata.nodes) == set(NODES)


async def test_lists_the_partitions_of_each_topic() -> None:
    cluster = Cluster()
    async with client_of(cluster) as client:
        assert await topic_partitions(client, ["t", "u"]) == {"t": [0], "u": [0]}
        assert cluster.asked == 1

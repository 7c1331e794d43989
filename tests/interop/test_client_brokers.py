"""The client against real brokers of several generations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from consumerd.client import BrokerRelease, error_of
from consumerd.errors import BrokerError
from consumerd.wire.v08.apis import OFFSETS
from tests.support.kafka import RELEASES

if TYPE_CHECKING:
    from consumerd.client import ClusterClient

pytestmark = pytest.mark.interop
EVERYDAY = ("0.8.2.2", "0.10.1.1", "3.9.1")
BROKER_RELEASES = {"0.8.2.2": BrokerRelease.V0_8, "0.9.0.1": BrokerRelease.V0_9}


async def end_of(client: ClusterClient, topic: str, partition: int) -> int:
    """The partition's end, asked of its leader."""
    leader = await client.leader(topic, partition)
    versions = (await client.node_channel(leader.id)).versions
    asked: dict[str, Any] = {"partition": partition, "timestamp": -1}
    if versions.pick(OFFSETS) == 0:
        asked["max_num_offsets"] = 1
    body = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [asked]}]}
    answer = await client.call_node(leader.id, OFFSETS, body)
    told = answer["responses"][0]["partition_responses"][0]
    if error := error_of(told["error_code"], f"{topic}/{partition}"):
        raise error
    return int(told.get("offsets", [told.get("offset")])[0])


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "version", [pytest.param(name, marks=[] if name in EVERYDAY else [pytest.mark.long]) for name in RELEASES]
)
async def test_reads_versions_metadata_leaders_and_coordinators(version: str, kafka: Any, cluster_client: Any) -> None:
    broker = await kafka(version, broker_id=3)
    async with cluster_client(broker) as client:
        channel = await client.any_channel()
        assert channel.versions.release is BROKER_RELEASES.get(version, BrokerRelease.V0_10_OR_NEWER)

        with pytest.raises(BrokerError, match=r"returned no metadata of the topic|UNKNOWN_TOPIC|LEADER_NOT_AVAILABLE"):
            await client.leader("events", 0)

        async def led() -> int:
            await client.refresh(["events"], create=True)
            return int((await client.leader("events", 1)).id)

        assert await client.retrying("create a topic", led) == 3
        assert sorted(client.metadata.topics["events"].partitions) == [0, 1]
        assert client.metadata.nodes[3].port == broker.port

        assert await client.retrying("ask for the end", lambda: end_of(client, "events", 1)) == 0

        assert await client.retrying("find the coordinator", lambda: client.coordinator("group")) == 3

        channel.abort()
        await channel.wait_closed()
        again = await client.any_channel()
        assert again is not channel
        assert again.versions == channel.versions
        await client.refresh(["events"])


@pytest.mark.asyncio
async def test_retries_an_unavailable_broker_until_the_timeout(kafka: Any, cluster_client: Any) -> None:
    broker = await kafka("3.9.1")
    async with cluster_client(broker) as client:
        await client.refresh()
        await broker.stop()
        with pytest.raises(BrokerError, match="no broker of the cluster can be reached"):
            await client.retrying("look", client.refresh, timeout=0.5)

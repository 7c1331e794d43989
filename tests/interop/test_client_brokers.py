"""The client against real brokers of several generations."""

from __future__ import annotations

import asyncio
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import BrokerError, ExitCode
from consumerd.demo.processes import DaemonProcess, clean_environment, consumerd_command
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.wire.v08 import ResponseHeader, ResponseMessage, decode_request, encode_response
from consumerd.wire.v08.apis import API_VERSIONS, APIS, LIST_OFFSETS, METADATA
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.message_types import ListOffsetsRequest, ListOffsetsRequestPartition
from consumerd.wire.v08.versions import BrokerRelease
from tests.support.kafka import RELEASES

pytestmark = pytest.mark.interop
EVERYDAY = ("0.8.2.2", "3.9.1")
BROKER_RELEASES = {"0.8.2.2": BrokerRelease.V0_8, "0.9.0.1": BrokerRelease.V0_9}


async def end_of(client: ClusterClient, topic: str, partition: int) -> int:
    """The partition's end, asked of its leader."""
    leader = await client.leader(topic, partition)
    versions = (await client.node_channel(leader.id)).versions
    asked: ListOffsetsRequestPartition = {"partition_index": partition, "timestamp": -1}
    if versions.pick(LIST_OFFSETS) == 0:
        asked["max_num_offsets"] = 1
    body: ListOffsetsRequest = {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked]}]}
    answer = await client.call_node(leader.id, LIST_OFFSETS, body)
    told = answer["topics"][0]["partitions"][0]
    if error := error_of(told["error_code"], f"{topic}/{partition}"):
        raise error
    return told["old_style_offsets"][0] if "old_style_offsets" in told else told["offset"]


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


async def test_retries_an_unavailable_broker_until_the_timeout(kafka: Any, cluster_client: Any) -> None:
    broker = await kafka("3.9.1")
    async with cluster_client(broker) as client:
        await client.refresh()
        await broker.stop()
        with pytest.raises(BrokerError, match="no broker of the cluster can be reached"):
            await client.retrying("look", client.refresh, timeout=0.5)


async def send_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection as a server that demands to bootstrap again (KIP-1102)."""
    ranges = [
        {"api_key": api.key, "min_version": 0, "max_version": api.versions[1]} for api in (API_VERSIONS, METADATA)
    ]
    try:
        while True:
            frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            key, version = struct.unpack_from(">hh", frame)
            header, _ = decode_request(APIS[key], frame)
            answer: dict[str, Any] = {"error_code": 0, "api_keys": ranges}
            if key == METADATA.key:
                code = ErrorCode.REBOOTSTRAP_REQUIRED
                answer = {"error_code": code, "brokers": [], "cluster_id": None, "controller_id": -1}
                answer["topics"] = []
            message = ResponseMessage(ResponseHeader(header.correlation_id), answer)
            writer.write(encode_response(APIS[key], version, message))
    except (OSError, EOFError):
        writer.close()


async def test_member_and_tools_leave_a_server_that_sends_them_away(kafka: Any, tmp_path: Path) -> None:
    broker = await kafka("3.9.1", partitions=1)
    server = await asyncio.start_server(send_away, "127.0.0.1", 0)
    bootstrap = [f"127.0.0.1:{server.sockets[0].getsockname()[1]}", broker.address]
    async with server:
        command = consumerd_command("topics", "list", "--bootstrap-server", ",".join(bootstrap))
        for _ in range(4):  # they begin with either one
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, env=clean_environment(), timeout=60, check=False
            )
            assert done.returncode == ExitCode.OK, done
        daemon = DaemonProcess(
            tmp_path,
            {
                "group": {"id": "g", "coordination": "kafka", "topics": {"events": 1}},
                "kafka": {"bootstrap": bootstrap},
                "handler": {"name": "print"},
            },
        )
        for _ in range(3):
            async with daemon:
                assert await daemon.stop() == ExitCode.OK

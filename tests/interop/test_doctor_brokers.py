"""The doctor and a group that a real broker coordinates, whose members behave as no correct member does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.java import JavaRuntime, MissingRuntimeError
from consumerd.demo.children import Child
from consumerd.net.client.cluster import ClusterClient
from consumerd.wire.v08.apis import JOIN_GROUP, SYNC_GROUP
from consumerd.wire.v08.message_types import JoinGroupRequest, JoinGroupResponse, SyncGroupRequest
from consumerd.wire.v08.subscription import PROTOCOL_TYPE, MemberAssignment, MemberMetadata
from tests.interop.test_tools_brokers import EACH, GROUP, TOPIC, Tool, fill, versions
from tests.support.jafka import java_command
from tests.support.jafka_clients import compile_java
from tests.support.kafka import RELEASES, KafkaRelease, kafka_jars

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


async def join(client: ClusterClient) -> JoinGroupResponse:
    """Become a member that never sends a heartbeat; waits for the members that there are."""

    async def attempt() -> JoinGroupResponse:
        body: JoinGroupRequest = {
            "group_id": GROUP,
            "session_timeout_ms": 60_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": "",
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [
                {"name": "range", "metadata": MemberMetadata((TOPIC,)).encode()},
            ],
        }
        node = await client.coordinator(GROUP)
        channel = await client.node_channel(node)
        answer = await channel.call(JOIN_GROUP, body, version=channel.versions.pick(JOIN_GROUP, at_most=2), timeout=90)
        assert answer["error_code"] == 0
        return answer

    return await client.retrying("join", attempt)


async def deal(client: ClusterClient, joined: JoinGroupResponse, *partitions: int) -> None:
    """As the leader and only member, take `partitions`."""
    assignment = MemberAssignment(((TOPIC, partitions),)).encode()
    body: SyncGroupRequest = {
        "group_id": GROUP,
        "generation_id": joined["generation_id"],
        "member_id": joined["member_id"],
        "assignments": [{"member_id": joined["member_id"], "assignment": assignment}],
    }
    channel = await client.node_channel(await client.coordinator(GROUP))
    answer = await channel.call(SYNC_GROUP, body, version=channel.versions.pick(SYNC_GROUP, at_most=2))
    assert answer["error_code"] == 0


@pytest.mark.parametrize("version", versions(("3.9.1",), "0.10.1.1"))
async def test_doctor_finds_what_a_broker_does_not_report(
    version: str,
    kafka: Any,
    cluster_client: Any,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    broker = await kafka(version)
    tool = Tool(capsys, "--bootstrap-server", f"127.0.0.1:{broker.port}")
    create = ("topics", "create", "--topic", TOPIC, "--timeout", "30")
    await tool.well(*create, "--replica-assignment", ",".join([str(broker.broker_id)] * 4))
    async with cluster_client(broker) as client, cluster_client(broker) as other:
        for partition in range(4):
            await fill(client, TOPIC, partition, int(time.time() * 1000))
        offsets = [f"{TOPIC}/1=5", f"{TOPIC}/2=99"]
        await tool.well("offsets", "set", "--group", GROUP, *offsets, "--execute", "--force")
        doctor = ("group", "doctor", "--group", GROUP)
        done = await tool(*doctor)
        assert [row[1:3] for row in done.rows] == [["no-members", GROUP], ["offset-out-of-range", f"{TOPIC}/2"]]

        await deal(client, await join(client), 0, 1, 2)
        looking = asyncio.create_task(tool(*doctor, "--interval", "2", "--fix", "--execute"))
        while not looking.done():
            for partition in (0, 1):
                await fill(client, TOPIC, partition, int(time.time() * 1000))
            await asyncio.wait([looking], timeout=0.2)
        done = await looking
        assert (done.code, [row[1:3] for row in done.rows]) == (ExitCode.CHECK_FAILED, [
            ["unowned", f"{TOPIC}/3"],
            ["offset-out-of-range", f"{TOPIC}/2"],
            ["black-hole", f"{TOPIC}/0"],
            ["black-hole", f"{TOPIC}/1"],
        ])  # fmt: skip
        assert f"{99 - EACH} messages beyond the log end" in done.rows[1][3]
        assert "no offset is committed" in done.rows[2][3]
        assert "at 127.0.0.1" in done.rows[3][4]

        waiting = asyncio.create_task(join(other))
        await tool.until(lambda found: found["state"] == "PreparingRebalance", *doctor[:1], "describe", *doctor[2:])
        done = await tool(*doctor, "--interval", "0.5")
        assert [row[1:3] for row in done.rows if row[1] != "offset-out-of-range"] == [["rebalancing", GROUP]]
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting


@pytest.mark.parametrize("version", versions(("3.9.1",), "4.1.0"))
async def test_shows_and_checks_members_of_the_consumer_protocol(
    version: str,
    kafka: Any,
    broker_java: Callable[[KafkaRelease], JavaRuntime],
    java: JavaRuntime,
    missing: Callable[[str], Any],
    cluster_client: Any,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Java's own members with group.protocol=consumer (KIP-848), a preview in 3.9."""
    release = RELEASES[version]
    classes, source = tmp_path / "classes", Path(__file__).with_name("java") / "KafkaMember.java"
    try:
        jars = kafka_jars(release)
        compile_java(java, [source], jars, classes)
    except MissingRuntimeError as error:
        missing(str(error))
    monkeypatch.chdir(tmp_path)
    # 3.9 needs it; in 4.1 it is the default.
    broker = await kafka(version, config={"group.coordinator.rebalance.protocols": "classic,consumer"})
    tool = Tool(capsys, "--bootstrap-server", f"127.0.0.1:{broker.port}")
    create = ("topics", "create", "--topic", TOPIC, "--timeout", "30")
    await tool.well(*create, "--replica-assignment", ",".join([str(broker.broker_id)] * 3))
    group = ("--group", GROUP)

    def member(number: int) -> Child:
        command = java_command(
            broker_java(release), [classes, *jars], tmp_path / f"member-{number}", "KafkaMember", broker.address, GROUP,
            TOPIC, "group.protocol=consumer", f"client.id=number-{number}", "max.poll.records=5",
        )  # fmt: skip
        return Child(command, log=tmp_path / f"member-{number}.log", name=f"member-{number}", pipe=True)

    first, second = member(1), member(2)
    try:
        first.start()
        found = await tool.until(lambda found: found["unowned"] == [], "group", "describe", *group)
        ((name, told),) = found["members"].items()
        assert (told["subscription"], told["client"]) == (TOPIC, "number-1 at 127.0.0.1")
        assert {each["owner"] for each in found["partitions"].values()} == {name}
        assert (found["coordinator"], found["problems"]) == ("broker", [])
        second.start()
        described = "group", "describe", *group
        found = await tool.until(
            lambda found: (
                len({each["owner"] for each in found["partitions"].values()}) == 2 and found["state"] == "Stable"
            ),
            *described,
        )
        assert {each["client"] for each in found["members"].values()} == {f"number-{n} at 127.0.0.1" for n in (1, 2)}
        assert (await tool("offsets", "set", *group, f"{TOPIC}/0=5", "--execute")).code == ExitCode.REFUSED

        # Both are frozen, and stay members as long as their sessions last.
        first.pause()
        second.pause()
        async with cluster_client(broker) as client:
            looking = asyncio.create_task(tool("group", "doctor", *group, "--interval", "2"))
            while not looking.done():
                for partition in range(3):
                    await fill(client, TOPIC, partition, int(time.time() * 1000))
                await asyncio.wait([looking], timeout=0.2)
        done = await looking
        # In the order in which the members were named, which says nothing of the partitions.
        assert (done.code, sorted(row[1:3] for row in done.rows)) == (
            ExitCode.CHECK_FAILED, [["black-hole", f"{TOPIC}/{number}"] for number in range(3)],
        )  # fmt: skip
        assert "number-" in done.rows[0][4]
    finally:
        for child in (first, second):
            child.end_now()

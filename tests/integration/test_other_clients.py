"""Groups of other clients in a real ZooKeeper: the doctor and the tools leave their live nodes alone."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from consumerd.base.clock import SystemClock
from consumerd.demo.processes import consumerd_command
from consumerd.net.zk.session import Session

UUID = "0b7e1f6c-3a52-4d7b-9c1e-5f0a2b3c4d5%d"
BROKER = b'{"jmx_port":-1,"timestamp":"1","host":"127.0.0.1","version":1,"port":1}'
STATE = b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0]}'
KAZOO = b'{"pattern":"static","subscription":{"t":1},"timestamp":"1448000000","version":1}'
KAFKA_NODE = b'{"version":1,"subscription":{"t": 1, "u": 1},"pattern":"white_list","timestamp":"1448000000000"}'
#: Client -> the ids of two members, the data of their id nodes, and the name of a partition's owner node.
CLIENTS = {
    "kazoo-go": ([f"h:{UUID % 1}", f"h:{UUID % 2}"], KAZOO, "{}"),
    "pykafka": ([f"h:{UUID % 1}", f"h:{UUID % 2}"], b"t", "0-{}"),
    "kafka-node": ([f"g_{UUID % 1}", f"g_{UUID % 2}"], KAFKA_NODE, "{}"),
    "poseidon_cluster": (["g-h-4711-1448000000-1", "g-h-4712-1448000000-1"], b"{}", "{}"),
}


async def consumerd(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command; the sessions of the test live on meanwhile."""
    command = consumerd_command(*arguments)
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


@pytest.mark.parametrize("client", CLIENTS)
async def test_live_owners_survive_the_doctor_with_force(zk_root: str, stack: AsyncExitStack, client: str) -> None:
    names, text, form = CLIENTS[client]
    sessions = [
        await stack.enter_async_context(
            Session(zk_root, clock=SystemClock(), rng=random.Random(seed), session_timeout=20)
        )
        for seed in range(2)
    ]
    await sessions[0].create_ephemeral("/brokers/ids/0", BROKER, wait=0)
    await sessions[0].ensure("/brokers/topics")
    await sessions[0].create("/brokers/topics/t", b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0],"3":[0]}}')
    for number in range(4):
        await sessions[0].ensure(f"/brokers/topics/t/partitions/{number}")
        await sessions[0].create(f"/brokers/topics/t/partitions/{number}/state", STATE)
    nodes = {}
    for number, (session, name) in enumerate(zip(sessions, names, strict=True)):
        await session.create_ephemeral(f"/consumers/g/ids/{name}", text, wait=0)
        nodes[f"/consumers/g/ids/{name}"] = text
        for partition in (2 * number, 2 * number + 1):
            path = f"/consumers/g/owners/t/{form.format(partition)}"
            await session.create_ephemeral(path, name.encode(), wait=0)
            nodes[path] = name.encode()
    zxids = {path: (await sessions[0].get(path))[1].created_zxid for path in nodes}

    where = ("--zookeeper", zk_root, "--group", "g")
    done = await consumerd("group", "doctor", *where, "--interval", "0", "--fix", "--execute", "--force", "--json")
    report = json.loads(done.stdout)
    others = {each["subject"]: each for each in report["findings"] if each["kind"] == "other-rule"}
    assert sorted(others) == sorted(names)
    assert all(client in each["says"] for each in others.values())
    assert (report["steps"], report["needs_force"]) == ([], [])
    # Nothing listens at the address of the broker.
    assert {each["kind"] for each in report["findings"]} == {"other-rule", "no-brokers", "silent-broker"}
    assert done.returncode == 11
    for path, data in nodes.items():
        found, stat = await sessions[0].get(path)
        assert (found, stat.created_zxid) == (data, zxids[path])

    described = json.loads((await consumerd("group", "describe", *where, "--json")).stdout)
    owners = {partition: each["owner"] for partition, each in described["partitions"].items()}
    assert owners == {f"t/{number}": names[number // 2] for number in range(4)}
    assert (described["unowned"], described["orphaned"]) == ([], [])
    lines = (await consumerd("group", "describe", *where)).stdout.splitlines()
    assert f"partition\tt/0\t{names[0]}\t\ta client with another assignment rule" in lines

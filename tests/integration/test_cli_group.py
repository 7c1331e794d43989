"""The commands that look at ZooKeeper, as whole processes."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest_asyncio

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.net.zk.session import Session


async def consumerd(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command; the session of the test lives on meanwhile."""
    command = [sys.executable, "-m", "consumerd", *arguments]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)


@pytest_asyncio.fixture
async def registered(zk_root: str) -> AsyncIterator[str]:
    """The address of a ZooKeeper with a topic of three partitions and a group of one member."""
    async with Session(zk_root, clock=SystemClock(), rng=random.Random(1), session_timeout=6) as zk:
        await zk.create_ephemeral("/brokers/ids/0", b"vm-1:127.0.0.1:9092", wait=0)
        await zk.create_ephemeral("/brokers/topics/t/0", b"3", wait=0)
        await zk.create_ephemeral("/consumers/g/ids/g_a", b"*1*t", wait=0)
        for number in (0, 1):
            await zk.create_ephemeral(f"/consumers/g/owners/t/0-{number}", b"g_a-0", wait=0)
        await zk.ensure("/consumers/g/offsets/t")
        await zk.create("/consumers/g/offsets/t/0-0", b"12")
        yield zk_root


async def test_read_only_commands(registered: str) -> None:
    async def output(*arguments: str) -> str:
        done = await consumerd(*arguments, "--zookeeper", registered)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert await output("topics", "list") == "t\t3\t0:3\n"
    assert json.loads(await output("topics", "list", "--json")) == {"topics": {"t": {"0": 3}}}
    assert await output("group", "list") == "g\n"
    assert json.loads(await output("group", "list", "--json")) == {"groups": ["g"]}
    assert (await output("group", "describe", "--group", "g")).splitlines() == [
        "member\tg_a\t*1*t\t2",
        "partition\tt/0-0\tg_a-0\t12\t",
        "partition\tt/0-1\tg_a-0\t\t",
        "partition\tt/0-2\t\t\tunowned, planned: g_a-0",
    ]
    assert json.loads(await output("group", "describe", "--group", "g", "--json"))["unowned"] == ["t/0-2"]
    assert json.loads(await output("group", "plan", "--group", "g", "--json")) == {
        f"t/0-{number}": "g_a-0" for number in range(3)
    }


async def test_names_missing_groups_and_creates_nothing(zookeeper: ZooKeeperServer, registered: str) -> None:
    done = await consumerd("group", "describe", "--zookeeper", registered, "--group", "nobody")
    assert (done.returncode, done.stdout) == (ExitCode.NOT_FOUND, "")
    assert done.stderr.startswith("consumerd: there is no group 'nobody'")
    for _ in range(2):
        done = await consumerd("topics", "list", "--zookeeper", f"{zookeeper.connect}/no/such/chroot")
        assert done.returncode == ExitCode.NOT_FOUND
        assert "/no/such/chroot" in done.stderr
        assert done.stderr.count("\n") == 1

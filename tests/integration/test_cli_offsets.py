"""The tools that change things, as whole processes against a real ZooKeeper, a broker and a living daemon."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.demo.processes import (
    BrokerProcess,
    DaemonProcess,
    clean_environment,
    consumerd_command,
    format_toml,
)
from consumerd.net.connect import connect
from consumerd.net.zk.session import Session
from consumerd.wire.v07 import LATEST, OffsetsRequest, ProduceRequest, encode_message
from tests.support.commands import Done

SIZE = 30
MESSAGES = 40


class Tools:
    """Runs commands at one ZooKeeper, in one directory."""

    def __init__(self, zookeeper: str, directory: Path) -> None:
        self.zookeeper = zookeeper
        self.directory = directory

    async def __call__(self, *arguments: str) -> Done:
        command = consumerd_command(*arguments[:2], "--zookeeper", self.zookeeper, *arguments[2:])
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=self.directory,
            env=clean_environment(),
        )
        return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def tools(zk_root: str, tmp_path: Path) -> Tools:
    (tmp_path / "work").mkdir()
    return Tools(zk_root, tmp_path / "work")


def broker_at(zk_root: str, tmp_path: Path) -> BrokerProcess:
    return BrokerProcess(
        tmp_path / "broker", zk_root, partitions=2, settings={"log.flush.interval": 1, "zk.sessiontimeout.ms": 2000}
    )


def daemon_at(zk_root: str, tmp_path: Path) -> DaemonProcess:
    config: dict[str, dict[str, Any]] = {
        "group": {"id": "g", "topics": {"t": 1}},
        "zookeeper": {"connect": zk_root, "session_timeout": 2.0},
        "fetch": {"idle_backoff": 0.1},
        "commit": {"interval": 0.2},
        "handler": {"name": "null"},
    }
    return DaemonProcess(tmp_path / "daemon", config)


async def produce(broker: BrokerProcess) -> None:
    """Forty messages of 30 bytes to each of the two partitions."""
    connection = await connect("127.0.0.1", broker.port)
    for partition in (0, 1):
        data = encode_message(b"x" * (SIZE - 10)) * MESSAGES
        await connection.send(ProduceRequest("t", partition, data).encode())
        await connection.request(OffsetsRequest("t", partition, LATEST, 1).encode())
    await connection.close()


async def test_sets_offsets_of_stopped_groups_only(zk_root: str, tmp_path: Path, tools: Tools) -> None:
    end = SIZE * MESSAGES
    async with broker_at(zk_root, tmp_path) as broker:
        await produce(broker)
        async with daemon_at(zk_root, tmp_path):
            assert (await tools("group", "verify", "--group", "g", "--wait", "20")).code == 0
            async with asyncio.timeout(60):
                while (lag := await tools("group", "lag", "--group", "g")).rows[-1] != ["total", "0", "0"]:
                    assert lag.code == 0
            assert [row[3:6] for row in lag.rows[:2]] == [[str(end), str(end), "0"]] * 2
            reset = ("offsets", "reset", "--group", "g", "--to", "earliest", "--execute")
            refused = await tools(*reset)
            assert refused.code == ExitCode.REFUSED
            assert "is alive and subscribes" in refused.err
            deleted = await tools("group", "delete", "--group", "g", "--execute")
            assert deleted.code == ExitCode.REFUSED
            assert list(tools.directory.iterdir()) == []
            doctor = await tools("group", "doctor", "--group", "g", "--interval", "0")
            assert (doctor.code, doctor.out) == (0, "")
        done = await tools(*reset)
        assert [row[2:4] for row in done.rows] == [[str(end), "0"]] * 2
        (backup,) = tools.directory.iterdir()
        lag = await tools("group", "lag", "--group", "g", "--json")
        assert json.loads(lag.out)["total"] == 2 * end
        shifted = await tools("offsets", "reset", "--group", "g", "--to", f"+{SIZE + 7}", "--execute", "--json")
        assert {change["after"] for change in json.loads(shifted.out)["changes"]} == {SIZE}
        restored = await tools("offsets", "import", str(backup), "--execute")
        assert restored.code == 0
        exported = await tools("offsets", "export")
        assert exported.out == "".join(f"/consumers/g/offsets/t/0-{number}:{end}\n" for number in (0, 1))
    lag = await tools("group", "lag", "--group", "g")
    assert lag.code == ExitCode.CHECK_FAILED  # the broker is down; the rest is shown all the same
    assert [row[3:6] for row in lag.rows[:2]] == [[str(end), "", ""]] * 2
    imported = tools.directory / "offsets.txt"
    imported.write_text(exported.out)
    done = await tools("offsets", "import", str(imported), "--rename", "g=h", "--execute")
    assert done.code == 0
    assert "not checked: broker 0 is not registered" in done.out
    deleted = await tools("group", "delete", "--group", "h", "--execute")
    assert deleted.code == 0
    assert (await tools("group", "list")).out == "g\n"


async def test_doctor_frees_a_partition_for_a_daemon(zk_root: str, tmp_path: Path, tools: Tools) -> None:
    async with broker_at(zk_root, tmp_path) as broker:
        await produce(broker)
        async with Session(zk_root, clock=SystemClock(), rng=random.Random(1), session_timeout=5) as zk:
            await zk.ensure("/consumers/g/owners/t")
            await zk.create("/consumers/g/owners/t/0-1", b"g_dead-0")
            async with daemon_at(zk_root, tmp_path):
                async with asyncio.timeout(60):
                    while await zk.exists("/consumers/g/owners/t/0-0") is None:
                        await asyncio.sleep(0.05)
                found = await tools("group", "doctor", "--group", "g", "--interval", "0.5", "--fix")
                assert found.code == ExitCode.CHECK_FAILED
                assert ["finding", "stale-owner", "t/0-1"] in [row[:3] for row in found.rows]
                assert ["would", "delete /consumers/g/owners/t/0-1"] in found.rows
                mended = await tools("group", "doctor", "--group", "g", "--interval", "0.5", "--fix", "--execute")
                assert mended.code == 0, mended.out + mended.err
                assert ["done", "nudge the group"] in mended.rows
                assert (await tools("group", "verify", "--group", "g")).code == 0


async def test_nudge_wakes_a_member_that_stopped_rebalancing(zk_root: str, tmp_path: Path, tools: Tools) -> None:
    """A stand-in for a JVM member: it watches the ids, and looks again only when they change."""
    async with Session(zk_root, clock=SystemClock(), rng=random.Random(1), session_timeout=5) as zk:
        await zk.create_ephemeral("/brokers/topics/t/0", b"1", wait=0)
        await zk.create_ephemeral("/consumers/g/ids/g_a", b'{ "t": 1 }', wait=0)
        await zk.ensure("/consumers/g/owners/t")
        woken = asyncio.Event()
        zk.watch("/consumers/g/ids", woken.set)
        await zk.children("/consumers/g/ids", watch=True)
        woken.clear()

        async def member() -> None:
            await woken.wait()
            assert await zk.children("/consumers/g/ids") == ["g_a"]  # the dummy is never seen
            await zk.create_ephemeral("/consumers/g/owners/t/0-0", b"g_a-0", wait=0)

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            waking = tasks.create_task(member())
            found = await tools("group", "doctor", "--group", "g", "--interval", "0")
            outage = ["no-brokers", "/brokers/ids"]
            assert [row[1:3] for row in found.rows] == [outage, ["gave-up", "g_a"], ["unowned", "t/0-0"]]
            assert not waking.done()
            mended = await tools("group", "doctor", "--group", "g", "--interval", "0", "--fix", "--execute")
        assert ["done", "nudge the group"] in mended.rows
        assert [row[1:3] for row in mended.rows if row[0] == "still"] == [outage]


async def test_takes_credentials_from_the_daemon_configuration(zk_root: str, tmp_path: Path, tools: Tools) -> None:
    credentials = ("digest", "user:secret")
    async with Session(zk_root, clock=SystemClock(), rng=random.Random(1), auth=[credentials], acl="creator-all") as zk:
        await zk.ensure("/consumers/g/offsets/t")
        await zk.create("/consumers/g/offsets/t/0-0", b"12")
        denied = await tools("offsets", "get", "--group", "g")
        assert denied.code == ExitCode.ZOOKEEPER
        assert "denies access" in denied.err
        path = tmp_path / "c.toml"
        section = {"connect": zk_root, "auth": [":".join(credentials)], "acl": "creator-all"}
        path.write_text(format_toml({"group": {"id": "g", "topics": {"t": 1}}, "zookeeper": section}))
        done = await tools("offsets", "set", "-c", str(path), "t/0-0=13", "t/0-1=7", "--execute")
        assert done.code == 0, done.err
        assert (await zk.get("/consumers/g/offsets/t/0-0"))[0] == b"13"
        assert (await tools("offsets", "get", "--group", "g")).code == ExitCode.ZOOKEEPER


async def test_doctor_finds_an_offset_inside_a_message(zk_root: str, tmp_path: Path, tools: Tools) -> None:
    async with broker_at(zk_root, tmp_path) as broker:
        await produce(broker)
        async with Session(zk_root, clock=SystemClock(), rng=random.Random(1), session_timeout=6) as zk:
            await zk.ensure("/consumers/g/offsets/t")
            await zk.create("/consumers/g/offsets/t/0-0", str(3 * SIZE).encode())
            await zk.create("/consumers/g/offsets/t/0-1", str(3 * SIZE + 9).encode())
        done = await tools("group", "doctor", "--group", "g")
        found = [row[1:] for row in done.rows if row[1] == "offset-inside-message"]
        assert [row[1] for row in found] == ["t/0-1"]
        assert f"Offset {3 * SIZE + 9} is inside a message that begins at {3 * SIZE}, " in found[0][2]
        assert done.code == ExitCode.CHECK_FAILED


async def test_doctor_finds_an_offset_of_a_topic_that_was_created_again(zk_root: str, tools: Tools) -> None:
    async with Session(zk_root, clock=SystemClock(), rng=random.Random(1), session_timeout=6) as zk:
        await zk.ensure("/brokers/topics")
        await zk.ensure("/brokers/ids")
        await zk.create_ephemeral(
            "/brokers/ids/0", b'{"jmx_port":-1,"timestamp":"1","host":"127.0.0.1","version":1,"port":1}', wait=0
        )
        await zk.create("/brokers/topics/t", b'{"version":1,"partitions":{"0":[0],"1":[0]}}')
        await zk.ensure("/consumers/g/offsets/t")
        for number in range(2):
            await zk.create(f"/consumers/g/offsets/t/{number}", b"150")
        assert "offset-of-former-log" not in (await tools("group", "doctor", "--group", "g")).out
        await zk.delete("/brokers/topics/t")
        await zk.create("/brokers/topics/t", b'{"version":1,"partitions":{"0":[0],"1":[0]}}')
        await zk.set("/consumers/g/offsets/t/1", b"3")  # by a member that knows the new log
        created = (await zk.get("/brokers/topics/t"))[1].created_zxid
        done = await tools("group", "doctor", "--group", "g")
        (found,) = (row[1:] for row in done.rows if row[1] == "offset-of-former-log")
        assert found[1] == "t/0"
        assert f"before transaction {created:#x} created /brokers/topics/t" in found[2]
        assert done.code == ExitCode.CHECK_FAILED

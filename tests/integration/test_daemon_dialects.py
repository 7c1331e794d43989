"""The dialect in which a daemon joins, and groups that it does not join: it registers nothing of the wrong dialect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.demo.processes import DaemonProcess

pytestmark = [pytest.mark.zookeeper]

OLD_BROKER = b"host-1:127.0.0.1:1"
NEW_BROKER = b'{"jmx_port":-1,"host":"127.0.0.1","version":1,"port":1}'
OLD_MEMBER = b'{ "t": 1 }'
BROKER, MEMBER = "/brokers/ids/0", "/consumers/g/ids/g_other"


async def register(world: Any, nodes: Mapping[str, bytes]) -> None:
    for path, text in nodes.items():
        await world.zk.create_ephemeral(path, text, wait=0)


async def members(world: Any) -> list[str]:
    stat = await world.zk.exists("/consumers/g/ids")
    return await world.zk.children("/consumers/g/ids") if stat is not None else []


@pytest.mark.parametrize(
    ("nodes", "group", "code", "sentence"),
    [
        ({BROKER: NEW_BROKER}, {"dialect": "0.7"}, ExitCode.ZOOKEEPER, "speak the dialect of Kafka 0.8+, and"),
        ({BROKER: OLD_BROKER}, {"offsets": "both"}, ExitCode.CONFIG, "brokers of Kafka 0.7 do not store offsets"),
    ],
)
async def test_rejects_a_mismatch_before_registration(
    world: Any, nodes: dict[str, bytes], group: dict[str, str], code: ExitCode, sentence: str
) -> None:
    await register(world, nodes)
    before = await members(world)
    outcome = await world.run(group={"topics": {"t": 1}, **group})
    assert outcome.code == code
    assert len(outcome.sentences) == 1
    assert sentence in outcome.sentences[0]
    assert not outcome.said("member_registered")
    assert await members(world) == before


async def test_waits_for_a_first_broker_and_can_be_stopped(world: Any) -> None:
    daemon = DaemonProcess(world.directory, world.config())
    async with asyncio.timeout(60):
        starting = asyncio.create_task(daemon.start())
        await world.until(
            lambda: daemon.started and any(each["event"] == "dialect_unknown" for each in daemon.events())
        )
        assert await members(world) == []
        daemon.terminate()
        await asyncio.wait([starting])
    assert starting.exception() is not None  # it never was ready
    assert await daemon.wait(60) == ExitCode.OK


async def test_exit_at_end_does_not_wait(world: Any, cli: Any) -> None:
    await world.zk.ensure("/brokers/ids")
    outcome = await cli("consume", "--zookeeper", world.chroot, "--group", "g", "--whitelist", "t.*", "--exit-at-end")
    assert (outcome.code, outcome.stdout) == (ExitCode.OK, "")


async def test_first_broker_decides_the_dialect(world: Any) -> None:
    daemon = DaemonProcess(world.directory, world.config())
    async with asyncio.timeout(60):
        starting = asyncio.create_task(daemon.start())
        await world.until(
            lambda: daemon.started and any(each["event"] == "dialect_unknown" for each in daemon.events())
        )
        await register(world, {BROKER: NEW_BROKER})
        await starting
        (name,) = await members(world)
        data, _ = await world.zk.get(f"/consumers/g/ids/{name}")
        wanted = json.loads(data or b"")
        assert (wanted["version"], wanted["subscription"], wanted["pattern"]) == (1, {"t": 1}, "static")
        # A peer of the other dialect that joins later is reported, and owned partitions are kept.
        await register(world, {MEMBER: OLD_MEMBER})
        warning = await daemon.wait_for_event("group_warning", 60)
        assert "a member of this group speaks the dialect of Kafka 0.7" in warning["reason"]
        assert await members(world) == sorted(["g_other", name])
        daemon.terminate()
        assert await daemon.wait(60) == ExitCode.OK
    assert await members(world) == ["g_other"]

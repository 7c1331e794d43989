"""In which dialect a daemon joins, and that a service manager does not wait with it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConfigError
from consumerd.member.consumer.errors import GroupRefusedError
from consumerd.service.config.model import Config, parse
from consumerd.service.daemon.dialect import find_dialect
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.registry.dialect import Dialect

NEW_BROKER = b'{"jmx_port":-1,"host":"127.0.0.1","version":1,"port":19151}'
CLOCK = SystemClock()


def config(**group: Any) -> Config:
    return parse({"group": {"id": "g", "topics": {"t": 1}, **group}, "handler": {"name": "null"}}, "a test")


async def test_reports_readiness_while_it_waits_for_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        zookeeper = MemoryZooKeeper()
        async with zookeeper.session() as zk, asyncio.timeout(60):
            finding = asyncio.create_task(find_dialect(config(), zk, CLOCK))
            told = await asyncio.get_running_loop().sock_recv(manager, 1000)
            assert told == b"READY=1\nSTATUS=waiting for a first broker"
            assert not finding.done()
            zookeeper.put("/brokers/ids/0", NEW_BROKER)
            assert await finding is Dialect.V08


async def test_configured_dialect_needs_no_broker(server: MemoryZooKeeper, zk: MemorySession) -> None:
    assert await find_dialect(config(dialect="0.7"), zk, CLOCK) is Dialect.V07
    assert await find_dialect(config(dialect="0.8", assignor="roundrobin"), zk, CLOCK) is Dialect.V08
    assert await find_dialect(config(), zk, CLOCK, wait=False) is None
    server.put("/brokers/ids/0", NEW_BROKER)
    with pytest.raises(GroupRefusedError, match=r"group 'g': .* speak the dialect of Kafka 0\.8\+, and group.dialect"):
        await find_dialect(config(dialect="0.7"), zk, CLOCK)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"assignor": "roundrobin"}, "members of Kafka 0.7 support range only"),
        ({"offsets": "both"}, "brokers of Kafka 0.7 do not store offsets"),
    ],
)
async def test_rejects_settings_that_0_7_does_not_support(
    group: dict[str, str], words: str, server: MemoryZooKeeper, zk: MemorySession
) -> None:
    server.put("/brokers/ids/0", b"host-1:127.0.0.1:1")
    with pytest.raises(ConfigError, match=words):
        await find_dialect(config(**group), zk, CLOCK)


@pytest.mark.parametrize("dialect", ["auto", "0.7"])
async def test_further_group_must_speak_the_dialect_of_the_main_one(
    dialect: str, server: MemoryZooKeeper, zk: MemorySession
) -> None:
    server.put("/consumers/g/ids/g_a", b'{ "t": 1 }')
    server.put("/consumers/same/ids/same_a", b'{ "t": 1 }')
    server.put(
        "/consumers/h/ids/h_a", b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1423000000000"}'
    )
    made = config(dialect=dialect)
    assert await find_dialect(made, zk, CLOCK, groups=("g", "same", "empty")) is Dialect.V07
    with pytest.raises(GroupRefusedError, match=r"group 'h': its members speak .* run one daemon for each"):
        await find_dialect(made, zk, CLOCK, groups=("g", "h"))

"""Shared code of the kill tests of mirrors: members as processes, input in every codec, and the end of their work."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.demo.processes import BrokerProcess, Process, consumerd_command, format_toml
from consumerd.net.connect import connect
from consumerd.net.zk import NoNode, Session
from consumerd.producer import Producer, ProducerSettings, StaticRouter
from consumerd.wire.compression import Codec

TOPIC = "events"
#: Settings of brokers whose logs roll within a test, and whose sessions end soon.
BROKER_SETTINGS: dict[str, str | int] = {
    "log.flush.interval": 1,
    "log.file.size": 100_000,
    "zk.sessiontimeout.ms": 2000,
}


class MirrorProcess(Process):
    """One member of the mirror."""

    def __init__(self, directory: Path, name: str, source: str, *arguments: str, commit_interval: float = 0.5) -> None:
        super().__init__(name, directory)
        self.arguments = arguments
        self.config = directory / f"{name}.toml"
        tables: dict[str, dict[str, Any]] = {
            "group": {"id": "mirror", "topics": {TOPIC: 1}},
            "zookeeper": {"connect": source, "session_timeout": 2.0},
            "fetch": {"size": 20_000, "idle_backoff": 0.05},
            "commit": {"interval": commit_interval},
            "log": {"format": "json"},
        }
        self.config.write_text(format_toml(tables))

    async def start(self, timeout: float = 60.0) -> None:
        await self._launch(consumerd_command("mirror", "-c", str(self.config), *self.arguments), "ready", timeout)


@asynccontextmanager
async def producers(port: int, **settings: Any) -> AsyncIterator[list[Producer]]:
    """One of each codec, for the broker at `port`."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                Producer(
                    StaticRouter([("127.0.0.1", port)], rng=random.Random()),
                    connect=connect,
                    clock=SystemClock(),
                    rng=random.Random(),
                    settings=ProducerSettings(codec=codec, **settings),
                )
            )
            for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY)
        ]


async def all_committed(source: str, broker: BrokerProcess, partitions: int, limit: float = 60.0) -> None:
    """Wait until the mirror has committed the end of every partition. ZooKeeper is the outside world: polled."""
    ends = {}
    for partition in range(partitions):
        folder = broker.log_directory / f"{TOPIC}-{partition}"
        ends[f"0-{partition}"] = sum(path.stat().st_size for path in folder.glob("*.kafka"))
    found: dict[str, int] = {}
    async with Session(source, clock=SystemClock(), rng=random.Random()) as zk:
        try:
            async with asyncio.timeout(limit):
                while True:
                    for name in ends:
                        try:
                            found[name] = int((await zk.get(f"/consumers/mirror/offsets/{TOPIC}/{name}"))[0] or b"")
                        except NoNode:
                            found[name] = 0
                    if found == ends:
                        return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pytest.fail(f"committed {found} of {ends}")

"""Mirrors as processes, and producers in every codec, for tests of whole processes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from consumerd.base.clock import SystemClock
from consumerd.demo.processes import Process, consumerd_command
from consumerd.net.connect import connect
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
    """`consumerd mirror`, which runs until it is stopped."""

    def __init__(self, directory: Path, *arguments: str, name: str = "mirror") -> None:
        super().__init__(name, directory)
        self.arguments = arguments

    async def start(self, timeout: float = 60.0) -> None:
        await self._launch(consumerd_command("mirror", *self.arguments), "ready", timeout)


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

"""A daemon under a watchdog: its event loop feeds it, also while a handler hangs, and not while the loop is blocked."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import clean_environment, consumerd_command, format_toml

pytestmark = [pytest.mark.zookeeper]

TP = TopicPartition("t", 0, 0)
FED = b"WATCHDOG=1"


@asynccontextmanager
async def handling(world: Any, handler: str, **options: Any) -> AsyncIterator[socket.socket]:
    """The notification socket of a daemon whose handler is processing a message. The watchdog's interval is 0.4 s."""
    await world.broker()
    await world.append(TP, b"one")
    path = world.directory / "notify"
    toml = world.write(format_toml(world.config(handler={"name": f"bad_handlers:{handler}", "options": options})))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.setblocking(False)
        process = await asyncio.create_subprocess_exec(
            *consumerd_command("run", "-c", toml),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**clean_environment(), "NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "400000"},
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(60):
                assert await process.stdout.readline() == b"in hand\n"
                yield manager
        finally:
            process.kill()
            await process.wait()


async def receive(manager: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(manager, 1000)


def drain(manager: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(manager.recv(1000))
        except BlockingIOError:
            return found


async def test_feeds_the_watchdog_while_a_handler_hangs(world: Any) -> None:
    async with handling(world, "Slow", seconds=1000.0) as manager:
        drain(manager)
        received = [await receive(manager) for _ in range(5)]
        assert received.count(FED) >= 4


async def test_blocked_event_loop_does_not_feed_the_watchdog(world: Any) -> None:
    async with handling(world, "Holding", by="sleeping") as manager:
        assert FED in drain(manager)  # it was fed before
        drain(manager)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receive(manager), 1.5)

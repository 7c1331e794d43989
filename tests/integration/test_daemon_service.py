"""The daemon as a service: it notifies ready and stopping, drains at a stop, and follows changes of the cluster."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import clean_environment, consumerd_command, format_toml

pytestmark = [pytest.mark.zookeeper]

TP = TopicPartition("t", 0, 0)


class Manager:
    """A service manager's end of the notification socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    async def told(self) -> list[str]:
        """The assignments of the next datagram."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(60):
            return (await loop.sock_recv(self._socket, 1000)).decode().split("\n")

    def close(self) -> None:
        self._socket.close()


@asynccontextmanager
async def managed(world: Any, **tables: Any) -> AsyncIterator[tuple[Manager, asyncio.subprocess.Process, Path]]:
    """A daemon that a service manager has started, with the path of its configuration."""
    manager = Manager(world.directory / "notify")
    path = world.write(format_toml(world.config(**tables)))
    process = await asyncio.create_subprocess_exec(
        *consumerd_command("run", "-c", path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**clean_environment(), "NOTIFY_SOCKET": str(manager.path)},
    )
    try:
        yield manager, process, Path(path)
    finally:
        manager.close()
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_notifies_the_service_manager_and_stops_on_sigterm(world: Any, loop: str) -> None:
    await world.broker()
    end = await world.append(TP, b"one")
    slow = {"name": "bad_handlers:Slow", "options": {"seconds": 0.5}}
    async with managed(world, handler=slow, daemon={"loop": loop}) as (manager, process, _):
        assert process.stdout is not None
        assert await manager.told() == ["READY=1", "STATUS=member of the group"]
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"in hand\n"
        process.send_signal(signal.SIGTERM)
        assert await manager.told() == ["STOPPING=1", "STATUS=draining"]
        # The current batch is finished and committed, and all our nodes are deleted.
        assert await asyncio.wait_for(process.stdout.read(), 60) == b"finished\n"
        assert await asyncio.wait_for(process.wait(), 60) == ExitCode.OK
    assert await world.offset(TP) == end
    assert await world.zk.children("/consumers/g/ids") == []
    assert await world.zk.children("/consumers/g/owners/t") == []


async def test_stop_takes_at_most_the_drain_timeout(world: Any) -> None:
    await world.broker()
    await world.append(TP, b"one")
    daemon = await world.daemon(handler={"name": "bad_handlers:Stalled"}, rebalance={"drain_timeout": 0.3})
    await world.until(lambda: "in hand" in daemon.stdout_path.read_text())
    begin = asyncio.get_running_loop().time()
    assert await daemon.stop(60) == ExitCode.OK
    assert 0.3 <= asyncio.get_running_loop().time() - begin < 20  # and not until the handler ends
    await daemon.wait_for_event("drain_deadline_passed", 60, partition="t/0-0")
    assert await world.offset(TP) == 0


async def test_forces_the_exit_at_the_stop_deadline(world: Any) -> None:
    await world.broker()
    await world.append(TP, b"one")
    daemon = await world.daemon(
        handler={"name": "bad_handlers:Stubborn"},
        rebalance={"drain_timeout": 0.1},
        daemon={"stop_timeout": 0.4},
    )
    await world.until(lambda: "in hand" in daemon.stdout_path.read_text())
    assert await daemon.stop(60) == ExitCode.FORCED
    assert "consumerd: the stop was forced (no end within 0.4 s)" in daemon.child.output()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_second_signal_does_not_wait_for_a_handler(world: Any, number: signal.Signals) -> None:
    await world.broker()
    await world.append(TP, b"one")
    daemon = await world.daemon(handler={"name": "bad_handlers:Stalled"}, rebalance={"drain_timeout": 60.0})
    await world.until(lambda: "in hand" in daemon.stdout_path.read_text())
    daemon.terminate()
    await daemon.wait_for_event("stopping", 60)
    daemon.child.signal(number)
    assert await daemon.wait(60) == ExitCode.FORCED
    lines = [line for line in daemon.child.output().splitlines() if not line.startswith("{")]
    assert lines == [
        f"consumerd: the stop was forced (second signal, {number.name}); unfinished messages are delivered again."
    ]
    # It obeyed its cancellation, so the session was closed: no member has to wait for its expiry.
    assert await world.zk.children("/consumers/g/ids") == []


async def test_stops_at_the_deadline_while_zookeeper_is_unavailable(world: Any, zookeeper_factory: Any) -> None:
    zookeeper = await zookeeper_factory(tick_ms=250)
    daemon = await world.daemon(
        group={"dialect": "0.7"},  # without a broker, nothing else says so
        zookeeper={"connect": zookeeper.connect},
        daemon={"stop_timeout": 0.5},
    )
    zookeeper.kill()
    await daemon.wait_for_event("session_suspended", 60)
    daemon.terminate()
    assert await daemon.wait(60) == ExitCode.FORCED


async def test_writes_the_znodes_of_0_7_byte_for_byte(world: Any) -> None:
    await world.broker(partitions=2)
    end = await world.append(TP, b"one", b"two")
    other = await world.append(TopicPartition("t", 0, 1), b"x")
    daemon = await world.daemon(group={"consumer_id": "pod-0", "topics": {"t": 2}}, commit={"interval": 0.1})
    await world.until_printed(daemon, "one", "two", "x")
    await world.until(lambda: _committed(world, end, other))
    found = {path: await world.zk.get(path) for path in await _below(world, "/consumers")}
    ephemerals = {path: data for path, (data, stat) in found.items() if stat.ephemeral_owner}
    persistent = {path: data for path, (data, stat) in found.items() if not stat.ephemeral_owner}
    assert ephemerals == {
        "/consumers/g/ids/g_pod-0": b'{ "t": 2 }',
        "/consumers/g/owners/t/0-0": b"g_pod-0-0",
        "/consumers/g/owners/t/0-1": b"g_pod-0-1",
    }
    assert persistent == {
        "/consumers": None,
        "/consumers/g": None,
        "/consumers/g/ids": None,
        "/consumers/g/offsets": None,
        "/consumers/g/offsets/t": None,
        "/consumers/g/offsets/t/0-0": b"26",
        "/consumers/g/offsets/t/0-1": b"11",
        "/consumers/g/owners": None,
        "/consumers/g/owners/t": None,
    }
    assert await daemon.stop() == ExitCode.OK


async def _committed(world: Any, *ends: int) -> bool:
    return list(ends) == [await world.offset(TopicPartition("t", 0, number)) for number in range(len(ends))]


async def _below(world: Any, path: str) -> list[str]:
    paths = [path]
    for name in await world.zk.children(path):
        paths += await _below(world, f"{path}/{name}")
    return paths

"""The watchdog is fed while the daemon itself makes progress, and only then."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumerd.service.daemon.watchdog import Watchdog, watchdog_interval
from consumerd.testing.clock import FakeClock


class Manager:
    """The service manager's end of NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    def received(self) -> list[bytes]:
        """The datagrams since the last call."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(1000))
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.close()


def environment(manager: Manager) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "60000000"}


async def test_sends_four_notifications_in_each_interval(manager: Manager) -> None:
    clock = FakeClock()
    async with Watchdog(lambda: None, clock, environment(manager)):
        await asyncio.sleep(0)  # the first one is sent at the start
        await clock.advance(59.0)
        assert manager.received() == [b"WATCHDOG=1"] * 4
        await clock.advance(60.0)
        assert manager.received() == [b"WATCHDOG=1"] * 4
    await clock.advance(60.0)
    assert manager.received() == []  # nothing is left running


async def test_sends_nothing_while_the_daemon_is_stuck(manager: Manager) -> None:
    clock = FakeClock()
    stuck: str | None = None
    async with Watchdog(lambda: stuck, clock, environment(manager)):
        await clock.advance(16.0)
        assert manager.received()
        stuck = "member_stuck"
        await clock.advance(300.0)
        assert manager.received() == []
        stuck = None
        await clock.advance(16.0)
        assert manager.received()


async def test_sends_nothing_without_a_watchdog(manager: Manager) -> None:
    clock = FakeClock()
    async with Watchdog(lambda: None, clock, {"NOTIFY_SOCKET": str(manager.path)}):
        await clock.advance(300.0)
    assert manager.received() == []


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "17"}, 1.5),
        ({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "18"}, None),  # of another process, such as ExecStartPre's
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_reads_the_interval_from_the_environment(variables: dict[str, str], seconds: float | None) -> None:
    assert watchdog_interval(variables, pid=17) == seconds

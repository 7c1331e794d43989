"""The state of a session, by transition: what callers get, and what listeners and watchers are notified of."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from structlog.testing import capture_logs

from consumerd.base.ports import SessionEvent, SessionState
from consumerd.net.zk.connect_string import ZooKeeperHost
from consumerd.net.zk.connection import ZooKeeperConnection
from consumerd.net.zk.errors import AuthFailed, NotConnected, SessionChanged
from consumerd.net.zk.lifecycle import NO_PASSWORD, SessionLifecycle
from consumerd.net.zk.watches import WatchTable

NEW, RECONNECTED, SUSPENDED, EXPIRED = (
    SessionEvent.NEW,
    SessionEvent.RECONNECTED,
    SessionEvent.SUSPENDED,
    SessionEvent.EXPIRED,
)


class Line:
    """Stands for a connection, of which the lifecycle needs no more than this."""

    where = ZooKeeperHost("::1", 2181)

    def __init__(self, end_reason: str = "") -> None:
        self.end_reason = end_reason


def line(end_reason: str = "") -> ZooKeeperConnection:
    return cast("ZooKeeperConnection", Line(end_reason))


class Rig:
    """A lifecycle, and what it notified of, in order."""

    def __init__(self, wait: float = 60.0) -> None:
        self.now = 100.0
        self.watches = WatchTable()
        self.lifecycle = SessionLifecycle("zk:2181", 6.0, wait, clock=self, watches=self.watches)
        self.notified: list[tuple[SessionEvent, int] | str] = []
        self.unsubscribe = self.lifecycle.subscribe(lambda event, number: self.notified.append((event, number)))
        self.watches.add("/a", lambda: self.notified.append("/a"))

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)

    def live(self, session_id: int = 5) -> ZooKeeperConnection:
        """Grant and announce a session on a new connection; forget the notifications."""
        connection = line("cut")
        self.lifecycle.grant(session_id, b"p" * 16, 6.0)
        self.lifecycle.announce(connection, self.now)
        self.notified.clear()
        return connection


async def test_begins_without_session_lease_and_connection() -> None:
    rig = Rig(wait=0.001)
    lifecycle = rig.lifecycle
    assert lifecycle.state is SessionState.LOST
    assert (lifecycle.session_id, lifecycle.granted_id, lifecycle.password) == (0, 0, bytes(16))
    assert lifecycle.has_multi is True
    assert lifecycle.lease_left() < 0
    with pytest.raises(NotConnected, match=r"zk:2181 \(no attempt was made yet\)"):
        await lifecycle.connection()


async def test_announces_a_new_session_to_listeners_before_watchers() -> None:
    rig = Rig()
    lifecycle, connection = rig.lifecycle, line()
    lifecycle.grant(5, b"p" * 16, 4.0)
    assert (lifecycle.granted_id, lifecycle.session_id, lifecycle.password) == (5, 0, b"p" * 16)
    lifecycle.announce(connection, 99.0)
    assert rig.notified == [(NEW, 5), "/a"]
    assert lifecycle.state is SessionState.CONNECTED
    assert (lifecycle.session_id, lifecycle.timeout) == (5, 4.0)
    assert lifecycle.lease_left() == 3.0
    assert await lifecycle.connection() is connection
    assert await lifecycle.connection(5) is connection


async def test_same_session_on_another_connection_is_a_reconnect() -> None:
    rig = Rig()
    first = rig.live()
    rig.lifecycle.detach(first)
    assert rig.lifecycle.state is SessionState.SUSPENDED
    assert rig.lifecycle.session_id == 5
    assert rig.lifecycle.problem == "cut"
    second = line()
    rig.lifecycle.announce(second, 100.0)
    assert rig.notified == [(SUSPENDED, 5), (RECONNECTED, 5), "/a"]
    rig.lifecycle.detach(first)  # late: it is not the live one
    assert rig.notified[-1] == "/a"
    assert await rig.lifecycle.connection() is second


async def test_logs_each_change_of_a_session_and_no_suspension_that_its_end_causes() -> None:
    rig = Rig()
    with capture_logs() as logs:
        rig.lifecycle.detach(rig.live())
        connection = rig.live()
        rig.lifecycle.refuse()
        rig.lifecycle.detach(connection)
        rig.lifecycle.finish(None)
        Rig().lifecycle.finish(None)  # without a session nothing ends
    assert [(entry["event"], entry["session_id"], entry.get("server"), entry.get("reason")) for entry in logs] == [
        ("session_established", "0x5", "[::1]:2181", None),
        ("session_suspended", "0x5", None, "cut"),
        ("session_reconnected", "0x5", "[::1]:2181", None),
        ("session_closed", "0x5", None, None),
    ]
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["session_suspended"]


async def test_lease_never_moves_back() -> None:
    rig = Rig()
    rig.live()
    rig.lifecycle.prove(103.0)
    rig.lifecycle.prove(101.0)
    assert rig.lifecycle.lease_left() == 9.0


async def test_call_waits_for_the_connection_of_its_session() -> None:
    rig = Rig()
    rig.lifecycle.detach(rig.live())
    waiting = [asyncio.create_task(rig.lifecycle.connection(number)) for number in (None, 5)]
    await asyncio.sleep(0)
    connection = line()
    rig.lifecycle.announce(connection, 100.0)
    assert await asyncio.gather(*waiting) == [connection, connection]


async def test_call_that_waits_continues_to_wait_when_something_else_changes() -> None:
    rig = Rig()
    first = rig.live()
    rig.lifecycle.detach(first)
    waiting = asyncio.create_task(rig.lifecycle.connection())
    await asyncio.sleep(0)
    rig.lifecycle.expire()
    await asyncio.sleep(0)
    assert not waiting.done()
    rig.lifecycle.grant(6, NO_PASSWORD, 6.0)
    connection = line()
    rig.lifecycle.announce(connection, 100.0)
    assert await waiting is connection


async def test_call_of_a_session_that_ends_does_not_wait_longer() -> None:
    rig = Rig()
    rig.lifecycle.detach(rig.live())
    waiting = asyncio.create_task(rig.lifecycle.connection(5))
    await asyncio.sleep(0)
    rig.lifecycle.expire()
    with pytest.raises(SessionChanged) as changed:
        await waiting
    assert (changed.value.expected, changed.value.actual) == (5, 0)


async def test_call_without_connection_fails_after_its_limit_or_that_of_the_session() -> None:
    rig = Rig(wait=0.001)
    rig.lifecycle.problem = "refused"
    with pytest.raises(NotConnected, match="refused"):
        await rig.lifecycle.connection()
    patient = Rig(wait=60.0)
    patient.lifecycle.problem = "refused"
    with pytest.raises(NotConnected, match="refused"):
        await patient.lifecycle.connection(limit=0.001)


async def test_expiry_is_notified_once_and_forgets_the_password() -> None:
    rig = Rig()
    rig.lifecycle.detach(rig.live())
    rig.notified.clear()
    rig.lifecycle.expire()
    rig.lifecycle.expire()
    assert rig.notified == [(EXPIRED, 5)]
    assert (rig.lifecycle.session_id, rig.lifecycle.granted_id) == (0, 0)
    assert rig.lifecycle.password == NO_PASSWORD == bytes(16)
    assert rig.lifecycle.state is SessionState.LOST
    assert rig.lifecycle.lease_left() < 0


async def test_session_that_was_granted_and_never_announced_expires_in_silence() -> None:
    rig = Rig()
    rig.lifecycle.grant(5, b"p" * 16, 6.0)
    rig.lifecycle.expire()
    assert rig.notified == []
    assert rig.lifecycle.granted_id == 0


async def test_refused_session_notifies_nobody_and_rejects_calls_that_wait() -> None:
    rig = Rig()
    connection = rig.live()
    rig.lifecycle.detach(connection)
    rig.notified.clear()
    waiting = asyncio.create_task(rig.lifecycle.connection())
    await asyncio.sleep(0)
    rig.lifecycle.refuse()
    with pytest.raises(NotConnected, match="closed"):
        await waiting
    assert rig.lifecycle.state is SessionState.CLOSED
    assert rig.lifecycle.session_id == 5  # until the end is reported
    rig.lifecycle.expire()
    assert rig.notified == []


async def test_finished_session_is_closed_without_a_notification() -> None:
    rig = Rig()
    rig.live()
    rig.lifecycle.refuse()
    rig.lifecycle.finish(None)
    assert rig.notified == []
    assert (rig.lifecycle.state, rig.lifecycle.session_id) == (SessionState.CLOSED, 0)
    with pytest.raises(NotConnected, match="closed"):
        await rig.lifecycle.connection()


@pytest.mark.parametrize(
    ("failure", "error"), [(AuthFailed("refused"), AuthFailed), (ZeroDivisionError("a defect"), NotConnected)]
)
async def test_failure_expires_the_session_and_is_raised_by_every_call(
    failure: Exception, error: type[Exception]
) -> None:
    rig = Rig()
    rig.lifecycle.detach(rig.live())
    rig.notified.clear()
    waiting = asyncio.create_task(rig.lifecycle.connection())
    await asyncio.sleep(0)
    rig.lifecycle.finish(failure)
    for call in (waiting, rig.lifecycle.connection()):
        with pytest.raises(error, match=str(failure)):
            await call
    assert rig.notified == [(EXPIRED, 5)]
    assert rig.lifecycle.state is SessionState.CLOSED
    assert rig.lifecycle.failure is failure


async def test_listener_is_called_until_it_unsubscribes_even_if_another_one_fails() -> None:
    rig = Rig()

    def broken(event: SessionEvent, session_id: int) -> None:
        raise RuntimeError("defect")

    rig.unsubscribe()
    rig.lifecycle.subscribe(broken)
    told: list[SessionEvent] = []
    unsubscribe = rig.lifecycle.subscribe(lambda event, session_id: told.append(event))
    connection = rig.live()
    assert told == [NEW]
    unsubscribe()
    unsubscribe()
    rig.lifecycle.detach(connection)
    assert told == [NEW]
    assert rig.notified == []

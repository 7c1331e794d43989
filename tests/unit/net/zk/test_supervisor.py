"""A session against a scripted server: the moments that a real one shows too rarely."""

from __future__ import annotations

import asyncio
import random
import struct
import sys

import pytest
from structlog.testing import capture_logs

from consumerd.base.clock import SystemClock
from consumerd.base.ports import SessionEvent, SessionState
from consumerd.net.zk.connection import ConnectionLimits, ZooKeeperConnection
from consumerd.net.zk.errors import AuthFailed, ConnectionLost, NotConnected
from tests.support.scripted_zookeeper import EXISTS, SYNC, Peer, Server, framed, good, granted, replied
from tests.support.waiting import until

NEW, RECONNECTED, SUSPENDED, EXPIRED = (
    SessionEvent.NEW,
    SessionEvent.RECONNECTED,
    SessionEvent.SUSPENDED,
    SessionEvent.EXPIRED,
)


class HurriedClock(SystemClock):
    """Heartbeats come a hundred times as often as the session timeout asks for, which stays as long as it is."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / 100)


async def test_never_announces_a_connection_that_ended_during_preparation() -> None:
    async with Server(good) as server:
        session, events = server.session()
        ended = 0

        async def ends(connection: ZooKeeperConnection, new: bool) -> None:
            nonlocal ended
            if ended < 3:
                ended += 1
                connection.kill("in the same step")

        session._supervisor._prepare = ends
        async with session:
            assert (ended, server.served) == (3, 4)
            assert events == [NEW]
            await session.ensure("/")


@pytest.mark.parametrize(("code", "name"), [(-112, "SessionExpired"), (-118, "SessionMoved"), (-4, "ConnectionLoss")])
async def test_rejected_heartbeat_ends_the_connection_and_the_next_handshake_decides(code: int, name: str) -> None:
    async def refuses_the_heartbeat(peer: Peer) -> None:
        await peer.handshake()
        peer.write(granted(5))
        xid, _ = await peer.request()
        peer.write(replied(xid, code=code))
        await peer.behave()  # the server would go on

    async def says_expired(peer: Peer) -> None:
        assert (await peer.handshake())[1] == 5
        peer.write(granted(0, 0))

    async def new(peer: Peer) -> None:
        assert (await peer.handshake())[1] == 0
        peer.write(granted(6))
        await peer.behave()

    async with Server(refuses_the_heartbeat, says_expired, new) as server:
        session, events = server.session()
        with capture_logs() as logs:
            async with session:
                await until(lambda: len(events) == 4)
                assert events == [NEW, SUSPENDED, EXPIRED, NEW]
                assert session.session_id == 6
    reasons = [entry["reason"] for entry in logs if entry["event"] == "session_suspended"]
    assert reasons == [f"the server refused a heartbeat with code {name} ({code})"]


async def test_session_moved_ends_the_connection() -> None:
    async def refuses_calls(peer: Peer) -> None:
        await peer.handshake()
        peer.write(granted(5))
        while True:
            xid, code = await peer.request()
            peer.write(replied(xid, struct.pack("!i", 1) + b"/", code=0 if code == SYNC else -118))

    async with Server(refuses_calls, good) as server:
        session, events = server.session()
        async with session:
            with pytest.raises(ConnectionLost):
                await session.delete("/x")
            await until(lambda: len(events) == 3)
            assert events == [NEW, SUSPENDED, RECONNECTED]


async def test_queues_calls_behind_heartbeats_and_sends_unsent_ones_on_the_next_connection() -> None:
    received: list[int] = []

    async def answers_heartbeats_alone(peer: Peer) -> None:
        await peer.handshake()
        peer.write(granted(5, 20_000))
        while received.count(SYNC) < 4 or received.count(EXISTS) < 2:
            xid, code = await peer.request()
            received.append(code)
            if code == SYNC:
                peer.write(replied(xid, struct.pack("!i", 1) + b"/"))

    async with Server(answers_heartbeats_alone, good) as server:
        limits = ConnectionLimits(outstanding=2)
        session, events = server.session(clock=HurriedClock(), session_timeout=20.0, limits=limits)
        async with session:
            calls = [asyncio.create_task(session.exists(f"/{number}")) for number in range(6)]
            calls[4].cancel()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(result) for result in results[:2]] == [ConnectionLost] * 2
            assert results[2:4] == [None, None]
            assert isinstance(results[4], asyncio.CancelledError)
            assert results[5] is None
            assert received.count(EXISTS) == 2
            assert received.count(SYNC) >= 4
            assert events == [NEW, SUSPENDED, RECONNECTED]


async def test_silent_address_of_a_name_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never_answers(peer: Peer) -> None:
        while True:
            await peer.frame()

    async with Server(never_answers) as silent, Server(good) as server:
        tried: list[str] = []

        async def resolve(name: str, port: int) -> list[str]:
            return ["silent", "well"]

        async def connect(connection: ZooKeeperConnection) -> None:
            tried.append(connection._address)
            port = silent.port if connection._address == "silent" else server.port
            await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", port)

        monkeypatch.setattr(sys.modules["consumerd.net.zk.supervisor"], "addresses_of", resolve)
        monkeypatch.setattr(sys.modules["consumerd.net.zk.connection"].ZooKeeperConnection, "connect", connect)
        for seed in range(8):  # in any order
            session, events = server.session(rng=random.Random(seed), connect_timeout=1.0)
            async with session:
                assert events == [NEW]
        assert {"silent", "well"} == set(tried)


async def test_tries_again_while_the_name_of_the_server_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Exception] = [OSError("there is no such name"), UnicodeError("label too long"), TimeoutError()]

    async def resolve(name: str, port: int) -> list[str]:
        if answers:
            raise answers.pop(0)
        return ["127.0.0.1"]

    monkeypatch.setattr(sys.modules["consumerd.net.zk.supervisor"], "addresses_of", resolve)
    async with Server(good) as server:
        session, events = server.session()
        with capture_logs() as logs:
            await session.start(60)
        assert events == [NEW]
        await session.close()
    failures = [entry for entry in logs if entry["event"] == "connect_failed"]
    assert {entry["log_level"] for entry in failures} == {"warning"}
    assert [entry["reason"] for entry in failures] == [
        f"127.0.0.1:{server.port}: there is no such name",
        f"127.0.0.1:{server.port}: the host name is invalid (label too long)",
        "the name 127.0.0.1 was not resolved in time",
    ]


async def test_treats_another_session_id_as_expiry() -> None:
    async def goes(peer: Peer) -> None:
        await peer.handshake()
        peer.write(granted(5))
        await peer.request()

    async def swaps(peer: Peer) -> None:
        assert (await peer.handshake())[1] == 5
        peer.write(granted(6))
        await peer.behave()

    async with Server(goes, swaps) as server:
        session, events = server.session()
        async with session:
            await until(lambda: len(events) == 4)
            assert events == [NEW, SUSPENDED, EXPIRED, NEW]
            assert session.session_id == 6


async def test_adopts_the_server_s_session_timeout_and_requests_its_own_again() -> None:
    asked: list[int] = []

    async def grants(peer: Peer) -> None:
        asked.append(struct.unpack_from("!iqi", await peer.frame())[2])
        peer.write(granted(5, 3333))
        await peer.behave()

    async with Server(grants) as server:
        session, _ = server.session(session_timeout=1.5)
        assert session.session_timeout == 1.5
        async with session:
            assert session.session_timeout == 3.333
            assert 1.5 < session.lease_left() <= 3.333  # more than was asked for
        assert session.lease_left() < 0
    assert asked == [1500]


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", framed(b"x"), granted(5, -3)])
async def test_names_a_server_that_does_not_speak_the_protocol(answer: bytes) -> None:
    async def says(peer: Peer) -> None:
        peer.write(answer)
        await peer.handshake()
        await peer.request()

    async with Server(says) as server:
        session, _ = server.session()
        with pytest.raises(NotConnected, match=rf"\(127\.0\.0\.1:{server.port}.* (sent|offers) a "):
            await session.start(0.4)


async def test_server_that_requires_credentials_ends_the_session() -> None:
    async def insists(peer: Peer) -> None:
        await peer.handshake()
        peer.write(granted(5))
        xid, _ = await peer.request()
        peer.write(replied(xid, code=-124))

    async with Server(insists) as server:
        session, events = server.session(auth=[("digest", "u:p")])
        with pytest.raises(AuthFailed):
            await session.start(2)
        assert events == []


async def test_defect_in_the_task_reaches_every_caller_and_close() -> None:
    async with Server(good) as server:
        session, events = server.session()

        async def broken(connection: object) -> float | None:
            raise ZeroDivisionError("a defect")

        await session.start()
        session._supervisor._attempt = broken  # type: ignore[method-assign]
        live = session._lifecycle._connection
        assert live is not None
        live.kill("now")
        await until(lambda: session.state is SessionState.CLOSED)
        assert events == [NEW, SUSPENDED, EXPIRED]
        with pytest.raises(NotConnected, match="defect"):
            await session.get("/")
        with pytest.raises(ZeroDivisionError):
            await session.wait_closed()
        with pytest.raises(ZeroDivisionError):
            await session.close()


async def test_keeps_a_cancellation_at_the_moment_the_connection_ends() -> None:
    async with Server(good) as server:
        session, _ = server.session()
        await session.start()
        task = session._task
        assert task is not None

        def cancel(event: SessionEvent, session_id: int) -> None:
            if event is SUSPENDED:
                task.cancel()

        session.subscribe(cancel)
        live = session._lifecycle._connection
        assert live is not None
        assert live._transport is not None
        live._transport.abort()
        done, _ = await asyncio.wait([task], timeout=60)
        assert done
        await session.close()


async def test_starts_once_and_may_be_closed_unstarted() -> None:
    async with Server(good) as server:
        session, _ = server.session()
        await session.close()
        assert session.state is SessionState.CLOSED
        session, _ = server.session()
        async with session:
            with pytest.raises(RuntimeError):
                await session.start()

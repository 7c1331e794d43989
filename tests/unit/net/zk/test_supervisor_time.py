"""The moments at which a session does something, in virtual time, with servers without latency."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import struct
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.ports import SessionEvent, SessionState
from consumerd.net.zk.errors import AuthFailed, NotConnected, UnexpectedReply
from consumerd.net.zk.session import Session
from tests.simulation.daemon import ProcessClock
from tests.simulation.kernel import Kernel
from tests.simulation.network import Line, Link, Network, Transport
from tests.simulation.process import ProcessLoop
from tests.support.scripted_zookeeper import AUTH, CLOSE, CREATE, EXISTS, MULTI, SYNC, framed, granted, replied

NEW, RECONNECTED, SUSPENDED = SessionEvent.NEW, SessionEvent.RECONNECTED, SessionEvent.SUSPENDED
EVENT = framed(struct.pack("!iqiiii", -1, -1, 0, 3, 3, 2) + b"/x")
BODIES = {CREATE: b"\0\0\0\1/", SYNC: b"\0\0\0\1/", MULTI: struct.pack("!i?i", -1, True, -1)}


class Peer:
    """The server's end of one connection."""

    def __init__(self, ensemble: Ensemble, link: Link) -> None:
        self._ensemble = ensemble
        self._link = link
        self._bytes = b""
        self._introduced = False

    def received(self, data: bytes) -> None:
        self._bytes += data
        while len(self._bytes) >= 4 and len(self._bytes) >= 4 + int.from_bytes(self._bytes[:4], "big"):
            size = int.from_bytes(self._bytes[:4], "big")
            frame, self._bytes = self._bytes[4 : 4 + size], self._bytes[4 + size :]
            if self._introduced:
                xid, opcode = struct.unpack_from("!ii", frame)
                self._ensemble.request(self._link, xid, opcode)
            else:
                self._introduced = True
                version, zxid, _, session_id = struct.unpack_from("!iqiq", frame)
                assert (version, frame[-1]) == (0, 0)  # the last byte would allow a server that only reads
                self._ensemble.handshake(self._link, zxid, session_id)

    def lost(self) -> None:
        self._ensemble.ends.append(self._ensemble.kernel.now)


class Ensemble:
    """Servers that behave until a test says otherwise, one client, and the times of what it does."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.network = Network(self.kernel, random.Random(1))
        self.loop = ProcessLoop(self.kernel, self.network, "client")
        #: Handshakes with their zxid, requests with their opcode, and ends that are not the work of the servers.
        self.handshakes: list[tuple[float, int]] = []
        self.requests: list[tuple[float, int]] = []
        self.ends: list[float] = []
        #: Milliseconds of the granted session timeout; None: handshakes are not answered; 0: they are closed.
        self.timeout: int | None = 12_000
        #: Seconds until a request of this type is answered; None: never. By default 0.
        self.delays: dict[int, float | None] = {}
        self.codes: dict[int, int] = {}
        self.listen("zk")

    def listen(self, *hosts: str) -> None:
        for host in hosts:
            self.network.listen(host, 2181, lambda link: Peer(self, link), Line(0.0, jitter=0.0, throughput=math.inf))

    def handshake(self, link: Link, zxid: int, session_id: int) -> None:
        self.handshakes.append((self.kernel.now, zxid))
        if self.timeout:
            link.send(granted(session_id or 5, self.timeout))
        elif self.timeout == 0:
            link.close()

    def request(self, link: Link, xid: int, opcode: int) -> None:
        self.requests.append((self.kernel.now, opcode))
        delay = self.delays.get(opcode, 0.0)
        code = self.codes.get(opcode, -101 if opcode == EXISTS else 0)
        if delay is not None:
            answer = replied(xid, b"" if code else BODIES.get(opcode, b""), zxid=77, code=code)
            self.kernel.after(delay, lambda: link.send(answer))

    def say(self, data: bytes) -> None:
        """Send bytes on the present connection."""
        self.network.links_of("client")[0].send(data)

    def cut(self) -> None:
        """End the present connection."""
        self.network.links_of("client")[0].cut()

    def times(self, opcode: int) -> list[float]:
        return [at for at, other in self.requests if other == opcode]

    def attempts(self) -> list[float]:
        """The seconds of each connection, from its handshake to its end."""
        return [end - begin for (begin, _), end in zip(self.handshakes, self.ends, strict=False)]

    def session(self, connect: str = "zk", **options: Any) -> tuple[Session, list[tuple[float, SessionEvent]]]:
        """A session that is not started yet, and its events with their times. For a script."""
        defaults: dict[str, Any] = {"session_timeout": 12.0}
        session = Session(connect, clock=ProcessClock(self.loop), rng=random.Random(1), **(defaults | options))
        events: list[tuple[float, SessionEvent]] = []
        session.subscribe(lambda event, _: events.append((self.kernel.now, event)))
        return session, events

    def play(self, script: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.loop.play(script(), 300.0)


@pytest.fixture
def ensemble() -> Iterator[Ensemble]:
    made = Ensemble()
    yield made
    assert made.kernel.failures == []
    made.loop.unwind()


# ---- Heartbeats ------------------------------------------------------------------------------------------------------


def test_heartbeat_is_sent_four_times_per_session_timeout_however_long_its_answers_take(ensemble: Ensemble) -> None:
    ensemble.delays = {SYNC: 0.5}

    async def script() -> None:
        async with ensemble.session()[0]:
            await asyncio.sleep(10.0)

    ensemble.play(script)
    assert ensemble.times(SYNC) == [0.0, 3.0, 6.0, 9.0]
    assert len(ensemble.handshakes) == 1


def test_lease_counts_from_the_handshake_and_then_from_the_heartbeat_before_the_answered_one(
    ensemble: Ensemble,
) -> None:
    ensemble.delays = {SYNC: 0.5, EXISTS: 0.25}
    left: dict[float, float] = {}

    async def script() -> None:
        session, events = ensemble.session()
        async with session:
            assert events == [(0.25, NEW)]
            for at in (0.5, 1.0, 3.5, 4.0, 6.5, 7.0):
                await asyncio.sleep(at - ensemble.kernel.now)
                left[at] = session.lease_left()

    ensemble.play(script)
    assert ensemble.times(SYNC) == [0.25, 3.25, 6.25]
    assert left == {0.5: 11.5, 1.0: 11.0, 3.5: 8.5, 4.0: 8.25, 6.5: 5.75, 7.0: 8.25}


@pytest.mark.parametrize("lost_in", ["network", "socket"])
def test_heartbeat_that_is_lost_with_its_connection_proves_nothing(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch, lost_in: str
) -> None:
    ensemble.delays = {EXISTS: 0.25}

    def broken(transport: Transport, data: bytes) -> None:
        raise OSError("broken pipe")

    async def script() -> None:
        session, events = ensemble.session()
        async with session:
            await asyncio.sleep(1.0)  # the heartbeat at 0.25 s was answered
            ensemble.network.unlisten("zk", 2181)
            if lost_in == "network":
                ensemble.delays = {SYNC: None}
                ensemble.kernel.at(3.5, ensemble.cut)
            else:
                monkeypatch.setattr(Transport, "write", broken)
            await asyncio.sleep(3.0)
            assert events[1:] == [(3.5 if lost_in == "network" else 3.25, SUSPENDED)]
            assert session.lease_left() == 12.0 - ensemble.kernel.now

    ensemble.play(script)


@pytest.mark.parametrize(
    ("frames_at", "ends_at"),
    [((), 8.0), ((4.0, 6.5), 11.5), ((4.0, 8.0, 12.0, 14.5), 15.0)],
    ids=["silence", "silence after some frames", "no answer within the session timeout"],
)
def test_unanswered_heartbeat_ends_the_connection(
    ensemble: Ensemble, frames_at: tuple[float, ...], ends_at: float
) -> None:
    """The first is answered, the second, at 3 s, is not; five twelfths of the session timeout are 5 s."""
    for at in frames_at:
        ensemble.kernel.at(at, lambda: ensemble.say(EVENT))

    async def script() -> None:
        session, events = ensemble.session()
        async with session:
            await asyncio.sleep(1.0)
            ensemble.delays = {SYNC: None}
            await asyncio.sleep(15.0)
            assert events[:3] == [(0.0, NEW), (ends_at, SUSPENDED), (ends_at, RECONNECTED)]

    with capture_logs() as logs:
        ensemble.play(script)
    reasons = [entry["reason"] for entry in logs if entry["event"] == "session_suspended"]
    assert reasons[0] == "the server does not answer heartbeats"
    gc.collect()  # an exception that nobody awaits would be a failure of the kernel


def test_throttled_heartbeat_is_repeated_on_the_same_connection_and_proves_nothing(ensemble: Ensemble) -> None:
    """Another connection would add load; but the leader has not seen it, so the lease does not move."""

    async def script() -> None:
        session, events = ensemble.session()
        async with session:
            await asyncio.sleep(1.0)
            ensemble.codes = {SYNC: -127}
            await asyncio.sleep(30.0)
            assert session.state is SessionState.CONNECTED
            assert session.lease_left() < 0.0
            asked = [at - 1.0 for at in ensemble.times(SYNC) if at > 1.0]
            assert [round(after - before, 1) for before, after in pairwise(asked)][:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.0]
            ensemble.codes = {}
            await asyncio.sleep(7.0)
            assert session.lease_left() > 5.0
            assert events == [(0.0, NEW)]
        assert len(ensemble.handshakes) == 1

    with capture_logs() as logs:
        ensemble.play(script)
    assert [entry["event"] for entry in logs].count("requests_throttled") == 1


def test_throttled_request_is_repeated_with_longer_and_longer_pauses(ensemble: Ensemble) -> None:
    async def script() -> None:
        session, events = ensemble.session()
        async with session:
            began = ensemble.kernel.now
            known = len(ensemble.times(EXISTS))
            ensemble.codes = {EXISTS: -127}
            ensemble.kernel.after(2.0, ensemble.codes.clear)
            assert await session.exists("/a") is None
            asked = [round(at - began, 1) for at in ensemble.times(EXISTS)[known:]]
            assert asked == [0.0, 0.1, 0.3, 0.7, 1.5, 3.1]
            ensemble.codes = {EXISTS: -127}
            began = ensemble.kernel.now
            with pytest.raises(NotConnected, match="sheds load"):
                await session.exists("/a")
            assert 10.0 < ensemble.kernel.now - began <= 12.0  # the session timeout
            assert events == [(0.0, NEW)]

    ensemble.play(script)


def test_session_begins_on_a_server_that_sheds_load_for_a_while(ensemble: Ensemble) -> None:
    """The preparation takes longer than a silent server may, on one connection."""

    async def script() -> None:
        ensemble.codes = dict.fromkeys((EXISTS, MULTI, CREATE), -127)
        ensemble.kernel.after(4.5, ensemble.codes.clear)
        session, events = ensemble.session("zk/base", connect_timeout=2.0)
        await session.start(10.0)
        assert len(events) == len(ensemble.handshakes) == 1
        assert session.has_multi
        await session.close()

    ensemble.play(script)


# ---- Attempts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("addresses", "session_timeout", "connect_timeout", "limit"),
    [
        ({"zk": ["a"]}, 8.0, 60.0, 4.0),
        ({"zk": ["a", "b"]}, 8.0, 60.0, 4.0),
        ({"zk": ["a", "b", "c", "d"]}, 8.0, 60.0, 2.0),
        ({"zk": ["a"], "zk2": ["b"], "zk3": ["c"], "zk4": ["d"]}, 8.0, 60.0, 2.0),
        ({"zk": ["a"]}, 8.0, 0.5, 0.5),
        ({"zk": ["a"]}, 0.25, 60.0, 0.2),
    ],
)
def test_silent_server_leaves_time_for_all_others_within_the_session_timeout(
    ensemble: Ensemble, addresses: dict[str, list[str]], session_timeout: float, connect_timeout: float, limit: float
) -> None:
    ensemble.timeout = None
    ensemble.network.names = addresses
    ensemble.listen(*(address for name in addresses.values() for address in name))

    async def script() -> None:
        session, _ = ensemble.session(
            ",".join(addresses), session_timeout=session_timeout, connect_timeout=connect_timeout
        )
        with pytest.raises(NotConnected, match=r"zk\d?:2181 does not answer"):
            await session.start(30.0)

    ensemble.play(script)
    assert len(ensemble.ends) >= 6
    assert ensemble.attempts() == pytest.approx([limit] * len(ensemble.ends), abs=0.001)


def test_addresses_of_all_names_count_once_they_are_known(ensemble: Ensemble) -> None:
    ensemble.timeout = None
    ensemble.network.names = {"zk": ["a", "b", "c"], "zk2": ["d"]}
    ensemble.listen("a", "b", "c", "d")

    async def script() -> None:
        session, _ = ensemble.session("zk,zk2", session_timeout=8.0, connect_timeout=60.0)
        with pytest.raises(NotConnected):
            await session.start(30.0)

    ensemble.play(script)
    assert ensemble.attempts()[4:8] == pytest.approx([2.0] * 4, abs=0.001)  # in the second round


def test_name_that_is_not_resolved_in_time_is_tried_again(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = ensemble.loop.getaddrinfo

    async def hangs(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(ensemble.loop, "getaddrinfo", resolve)
        await asyncio.Event().wait()

    monkeypatch.setattr(ensemble.loop, "getaddrinfo", hangs)

    async def script() -> None:
        session, events = ensemble.session()
        async with session:
            ((at, event),) = events
            assert event is NEW
            assert at == pytest.approx(2.0, abs=0.1)  # by default an attempt takes 2 s at most

    with capture_logs() as logs:
        ensemble.play(script)
    assert [entry["reason"] for entry in logs if entry["event"] == "connect_failed"] == [
        "the name zk was not resolved in time"
    ]


@pytest.mark.parametrize("opcode", [EXISTS, CREATE])
def test_server_that_refuses_the_preparation_is_left_with_its_code(ensemble: Ensemble, opcode: int) -> None:
    ensemble.codes = {opcode: -112}

    async def script() -> None:
        session, events = ensemble.session("zk/base" if opcode == CREATE else "zk")
        with pytest.raises(NotConnected, match=r"the server refused the session with code SessionExpired \(-112\)"):
            await session.start(1.0)
        assert events == []

    ensemble.play(script)


def test_unknown_refusal_of_the_preparation_ends_the_session(ensemble: Ensemble) -> None:
    ensemble.codes = {AUTH: -1}

    async def script() -> None:
        session, events = ensemble.session(auth=[("digest", "u:p")])
        with pytest.raises(UnexpectedReply, match=r"error SystemError \(-1\) for /"):
            await session.start()
        assert events == []

    ensemble.play(script)
    assert len(ensemble.handshakes) == 1


def test_server_that_does_not_answer_the_preparation_is_left(ensemble: Ensemble) -> None:
    ensemble.delays = {EXISTS: None}

    async def script() -> None:
        session, events = ensemble.session()
        with pytest.raises(NotConnected, match="the server did not answer while the session was prepared"):
            await session.start(8.0)
        assert events == []

    ensemble.play(script)
    assert ensemble.ends[0] == 2.0
    assert ensemble.handshakes[1][0] == pytest.approx(2.0, abs=0.1)


def test_next_attempt_waits_until_the_former_socket_is_closed(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    abort = Transport.abort
    monkeypatch.setattr(Transport, "abort", lambda transport: ensemble.loop.call_later(2.0, abort, transport))
    ensemble.codes = {SYNC: -112}

    async def script() -> None:
        session, _ = ensemble.session()
        await session.start()
        await asyncio.sleep(5.0)
        await session.close()
        assert ensemble.ends == [2.0, 4.0]

    ensemble.play(script)
    assert [at for at, _ in ensemble.handshakes] == pytest.approx([0.0, 2.0, 4.0], abs=0.001)


@pytest.mark.parametrize(("lives", "healthy"), [(0.25, True), (0.24, False)])
def test_connects_at_once_after_a_connection_that_lived_for_a_while(
    ensemble: Ensemble, lives: float, healthy: bool
) -> None:
    async def script() -> None:
        session, _ = ensemble.session()
        async with session:
            for _ in range(4):
                await asyncio.sleep(lives - (ensemble.kernel.now - ensemble.handshakes[-1][0]))
                count = len(ensemble.handshakes)
                ensemble.cut()
                while len(ensemble.handshakes) == count:
                    await asyncio.sleep(0.001)

    ensemble.play(script)
    starts = [at for at, _ in ensemble.handshakes]
    pauses = [following - begin - lives for begin, following in pairwise(starts)]
    assert pauses[0] == pytest.approx(0.025, abs=0.026)  # the first attempt was without a pause
    if healthy:
        assert pauses[1:] == pytest.approx([0.0] * 3, abs=1e-6)
    else:
        assert min(pauses[1:]) >= 0.05


# ---- The zxid --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last_contact", [3.0, 20.0], ids=["heartbeat", "handshake"])
def test_zxid_is_left_out_after_half_as_long_again_as_a_session_timeout_of_closed_handshakes(
    ensemble: Ensemble, last_contact: float
) -> None:
    async def script() -> None:
        session, events = ensemble.session()
        async with session:
            await asyncio.sleep(3.5)  # the heartbeat at 3 s was answered
            ensemble.timeout = 0
            ensemble.cut()
            if last_contact > 3.5:  # a server accepts the session, and answers nothing before it goes
                await asyncio.sleep(last_contact - 3.5)
                ensemble.timeout, ensemble.delays = 12_000, {SYNC: None}
                while len(events) < 3:
                    await asyncio.sleep(0.01)
                ensemble.timeout, ensemble.delays = 0, {}
                ensemble.cut()
            await asyncio.sleep(20.0)
            ensemble.timeout, ensemble.delays = 12_000, {SYNC: 0.25}
            ensemble.requests.clear()
            await asyncio.sleep(2.0)
            # A `sync` makes up for what the zxid guarantees, before the session goes on; then heartbeats begin.
            began = ensemble.handshakes[-1][0]
            assert ensemble.times(SYNC) == pytest.approx([began, began + 0.25])
            assert (round(events[-1][0] - began, 6), events[-1][1]) == (0.25, RECONNECTED)
            ensemble.delays = {}
            ensemble.requests.clear()
            ensemble.cut()
            await asyncio.sleep(2.0)
            assert ensemble.times(SYNC) == [ensemble.handshakes[-1][0]]
            assert {event for _, event in events[1:]} == {SUSPENDED, RECONNECTED}

    with capture_logs() as logs:
        ensemble.play(script)
    zxids = [(at, zxid) for at, zxid in ensemble.handshakes if at > 3.5]
    first_without = next(at for at, zxid in zxids if not zxid)
    assert last_contact + 18.0 < first_without < last_contact + 21.0  # with a few pauses between rounds
    assert {zxid for at, zxid in zxids if at < first_without} == {77}
    assert [zxid for at, zxid in zxids if at >= first_without][-2:] == [0, 77]
    assert len([entry for entry in logs if entry["event"] == "zxid_reset"]) == 1


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "between"])
def test_zxid_is_kept_when_a_server_closes_some_handshakes_after_a_long_silence(
    ensemble: Ensemble, frozen: bool
) -> None:
    async def script() -> None:
        session, _ = ensemble.session()
        async with session:
            await asyncio.sleep(1.0)
            ensemble.timeout = None if frozen else 0
            ensemble.cut()
            await asyncio.sleep(40.0 if frozen else 10.0)
            if not frozen:  # for a while no server listens
                ensemble.network.unlisten("zk", 2181)
                await asyncio.sleep(10.0)
                ensemble.listen("zk")
            ensemble.timeout = 0
            await asyncio.sleep(12.0)
            ensemble.timeout = 12_000
            await asyncio.sleep(12.0)

    with capture_logs() as logs:
        ensemble.play(script)
    assert {zxid for at, zxid in ensemble.handshakes if at > 1.0} == {77}
    assert [entry for entry in logs if entry["event"] == "zxid_reset"] == []


def test_zxid_is_kept_while_no_server_closes_a_handshake(ensemble: Ensemble) -> None:
    async def script() -> None:
        session, _ = ensemble.session()
        async with session:
            await asyncio.sleep(1.0)
            ensemble.network.unlisten("zk", 2181)
            ensemble.cut()
            await asyncio.sleep(40.0)
            ensemble.listen("zk")
            await asyncio.sleep(2.0)

    ensemble.play(script)
    assert [zxid for _, zxid in ensemble.handshakes] == [0, 77]


# ---- The end ---------------------------------------------------------------------------------------------------------


async def seconds_to_close(session: Session) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await session.close()
    return loop.time() - began


@pytest.mark.parametrize(("delay", "takes"), [(0.0, 0.0), (0.75, 0.75), (None, 1.0)])
def test_end_of_the_session_is_waited_for_one_second(ensemble: Ensemble, delay: float | None, takes: float) -> None:
    ensemble.delays = {CLOSE: delay}

    async def script() -> None:
        session, events = ensemble.session()
        await session.start()
        await asyncio.sleep(1.0)
        closing = asyncio.create_task(seconds_to_close(session))
        await asyncio.sleep(0)
        with pytest.raises(NotConnected, match="closed"):
            await session.exists("/")
        assert await closing == pytest.approx(takes)
        assert session.state is SessionState.CLOSED
        assert [event for _, event in events] == [NEW]

    with capture_logs() as logs:
        ensemble.play(script)
    assert ensemble.requests[-1] == (1.0, CLOSE)
    left = [entry["session_id"] for entry in logs if entry["event"] == "session_left_to_expire"]
    assert left == (["0x5"] if delay is None else [])


@pytest.mark.parametrize(("suspended", "takes"), [(1.0, 0.5), (10.5, 0.5), (11.5, 0.0)])
def test_suspended_session_waits_for_a_connection_to_end_it_unless_it_has_expired(
    ensemble: Ensemble, suspended: float, takes: float
) -> None:
    """It is proven alive at 0 s and suspended at 1 s."""

    async def script() -> None:
        session, _ = ensemble.session()
        await session.start()
        await asyncio.sleep(1.0)
        ensemble.network.unlisten("zk", 2181)
        ensemble.cut()
        await asyncio.sleep(suspended)
        assert await seconds_to_close(session) == pytest.approx(takes)

    ensemble.play(script)
    assert ensemble.times(CLOSE) == []


def test_suspended_session_is_ended_on_the_connection_that_comes_back(ensemble: Ensemble) -> None:
    async def script() -> None:
        session, _ = ensemble.session()
        await session.start()
        await asyncio.sleep(1.0)
        ensemble.cut()
        while session.state is not SessionState.SUSPENDED:
            await asyncio.sleep(0)
        assert await seconds_to_close(session) < 0.1

    ensemble.play(script)
    assert len(ensemble.times(CLOSE)) == 1


@pytest.mark.parametrize("failed", [False, True])
def test_session_that_does_not_exist_is_closed_at_once(ensemble: Ensemble, failed: bool) -> None:
    if failed:
        ensemble.codes = {AUTH: -115}
    else:
        ensemble.timeout = None

    async def script() -> None:
        session, _ = ensemble.session(auth=[("digest", "u:p")])
        starting = asyncio.create_task(session.start())
        await asyncio.sleep(1.0)
        assert await seconds_to_close(session) == 0.0
        with pytest.raises(AuthFailed if failed else NotConnected):
            await starting

    with capture_logs() as logs:
        ensemble.play(script)
    assert "session_left_to_expire" not in [entry["event"] for entry in logs]


# ---- The log ---------------------------------------------------------------------------------------------------------


def test_problem_of_a_server_is_logged_once_per_outage(ensemble: Ensemble) -> None:
    async def outage() -> None:
        ensemble.network.unlisten("zk", 2181)
        ensemble.cut()
        await asyncio.sleep(5.0)
        ensemble.listen("zk")
        for timeout in (None, 0):  # it does not answer a handshake, or closes the connection
            ensemble.timeout = timeout
            await asyncio.sleep(20.0)
        ensemble.network.unlisten("zk", 2181)
        await asyncio.sleep(5.0)
        ensemble.timeout = 12_000
        ensemble.listen("zk")
        await asyncio.sleep(5.0)

    async def script() -> None:
        session, _ = ensemble.session()
        async with session:
            await outage()
            await outage()
            assert session.state is SessionState.CONNECTED

    with capture_logs() as logs:
        ensemble.play(script)
    refused = "zk:2181: Connection refused"
    closed = (
        "zk:2181 closed the connection during the handshake: it does not serve yet, its limit of connections from this "
        "address (maxClientCnxns) is reached, this port expects TLS or is not that of ZooKeeper, or the server is "
        "behind the transactions that this client saw"
    )
    assert [entry["reason"] for entry in logs if entry["event"] == "connect_failed"] == [
        refused,
        "zk:2181 does not answer",
        closed,
        refused,
    ] * 2

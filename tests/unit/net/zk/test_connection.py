"""A connection fed with bytes by hand: what a server says, in order, and what comes of it."""

from __future__ import annotations

import asyncio
import gc
import random
import ssl
import struct
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
import trustme
from aiozk import protocol

from consumerd.base.ports import NodeStat
from consumerd.net.zk.connect_string import ZooKeeperHost
from consumerd.net.zk.connection import (
    ConnectionEnded,
    ConnectionLimits,
    HandshakeClosed,
    NeverSent,
    ZooKeeperConnection,
)
from consumerd.net.zk.errors import BadReply, ConnectionLost, RequestTooLarge, ServerError
from consumerd.net.zk.requests import GetDataRequest, SetDataRequest
from tests.simulation.kernel import Kernel
from tests.simulation.network import Network
from tests.simulation.process import ProcessLoop


class Wire:
    """Stands where the socket was: what was written, in how many writes, and whether it was closed."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.aborted = False

    @property
    def sent(self) -> bytes:
        return b"".join(self.writes)

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def abort(self) -> None:
        self.aborted = True


class Harness:
    def __init__(self, limits: ConnectionLimits = ConnectionLimits()) -> None:  # noqa: B008
        self.watched: list[str] = []
        self.ended = 0
        self.wire = Wire()
        self.connection = ZooKeeperConnection(
            ZooKeeperHost("zk", 2181),
            "127.0.0.1",
            ssl=None,
            limits=limits,
            on_watch=self.watched.append,
            on_end=self._on_end,
        )
        self.connection.connection_made(cast("Any", self.wire))

    def _on_end(self, connection: ZooKeeperConnection) -> None:
        assert connection is self.connection
        self.ended += 1

    def frame(self, body: bytes) -> None:
        self.connection.data_received(struct.pack("!i", len(body)) + body)

    def reply(self, xid: int, body: bytes = b"", *, zxid: int = 1, code: int = 0) -> None:
        self.frame(struct.pack("!iqi", xid, zxid, code) + body)

    async def read_to_the_end(self) -> str:
        self.connection.eof_received()
        with pytest.raises(ConnectionEnded):
            await self.connection.read_loop()
        assert self.connection.closing
        assert self.wire.aborted
        assert self.ended == 1
        return self.connection.end_reason


STAT = struct.pack("!qqqqiiiqiiq", 5, 6, 7, 8, 9, 0, 0, 11, 3, 2, 0)


def get(path: str = "/a") -> GetDataRequest:
    return GetDataRequest(path, watch=False)


async def test_delivers_replies_to_requests_and_events_to_the_watcher() -> None:
    rig = Harness()
    data, missing = rig.connection.write(get()), rig.connection.write(get("/b"))
    rig.reply(1, struct.pack("!i", 2) + b"hi" + STAT, zxid=77)
    rig.frame(struct.pack("!iqi", -1, -1, 0) + struct.pack("!iii", 3, 3, 2) + b"/a")
    rig.reply(2, zxid=78, code=-101)
    await rig.read_to_the_end()
    assert await data == (b"hi", NodeStat(9, 11, 2, 5, 8, 6))
    with pytest.raises(ServerError) as error:
        await missing
    assert error.value.code == -101
    assert rig.watched == ["/a"]
    assert rig.connection.last_zxid == 78
    assert rig.wire.sent.count(b"/a") == 1


async def test_write_to_a_closed_socket_ends_the_connection_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Harness()
    before = rig.connection.write(get())

    def gone(data: bytes) -> None:
        raise RuntimeError("the handler is closed")  # uvloop's

    rig.wire.write = gone  # type: ignore[method-assign]
    for lost in (rig.connection.write(get("/b")), before):
        with pytest.raises(ConnectionLost, match="the handler is closed"):
            await lost
    assert rig.ended == 1
    assert not caplog.records


async def test_distinguishes_null_from_empty_data() -> None:
    rig = Harness()
    null, empty = rig.connection.write(get()), rig.connection.write(get())
    rig.reply(1, struct.pack("!i", -1) + STAT)
    rig.reply(2, struct.pack("!i", 0) + STAT)
    await rig.read_to_the_end()
    assert ((await null)[0], (await empty)[0]) == (None, b"")


async def test_ignores_session_events_without_a_path() -> None:
    rig = Harness()
    rig.frame(struct.pack("!iqi", -1, -1, 0) + struct.pack("!iii", -1, 3, 0))
    rig.frame(struct.pack("!iqi", -1, -1, 0) + struct.pack("!iii", -1, 3, -1))
    await rig.read_to_the_end()
    assert rig.watched == []


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 19, 30])
async def test_end_of_file_fails_outstanding_calls(cut: int) -> None:
    rig = Harness()
    outstanding = rig.connection.write(get())
    whole = struct.pack("!iiqi", 16 + 4 + 2 + 68, 1, 1, 0) + struct.pack("!i", 2) + b"hi" + STAT
    rig.connection.data_received(whole[:cut])
    assert await rig.read_to_the_end() == "the server closed the connection"
    with pytest.raises(ConnectionLost, match="zk:2181"):
        await outstanding
    with pytest.raises(ConnectionLost):
        rig.connection.write(get())


async def test_cancelled_call_does_not_disturb_the_next() -> None:
    rig = Harness()
    first, second = rig.connection.write(get()), rig.connection.write(get())
    first.cancel()
    rig.reply(1, code=-101)
    rig.reply(2, struct.pack("!i", 0) + STAT)
    await rig.read_to_the_end()
    assert (await second)[0] == b""


async def test_killing_twice_notifies_once() -> None:
    rig = Harness()
    rig.connection.kill("first")
    rig.connection.kill("second")
    assert (rig.ended, rig.connection.end_reason) == (1, "first")


async def test_xids_wrap_before_they_turn_negative() -> None:
    rig = Harness()
    rig.connection._xid = 0x7FFFFFFE
    rig.connection.write(get())
    last = rig.connection.write(get())
    rig.reply(0x7FFFFFFF, struct.pack("!i", 0) + STAT)
    rig.reply(1, struct.pack("!i", 0) + STAT)
    await rig.read_to_the_end()
    assert (await last)[0] == b""


async def test_sends_only_one_request_at_a_time_of_a_type_without_xids() -> None:
    rig = Harness()
    credentials = protocol.AuthRequest(type=0, scheme="digest", auth=b"u:p")
    first = rig.connection.write(credentials)
    with pytest.raises(RuntimeError, match="one at a time"):
        rig.connection.write(credentials)
    rig.reply(-4)
    await first
    second = rig.connection.write(credentials)
    rig.reply(-4, code=-115)
    with pytest.raises(ServerError):
        await second
    assert xids(rig.wire.sent) == [-4, -4]


@pytest.mark.parametrize(
    ("limits", "limit"),
    [(ConnectionLimits(request=100), 100), (ConnectionLimits(), 1_048_575)],
    ids=["configured", "the server's default"],
)
async def test_never_sends_a_request_above_the_server_s_limit(limits: ConnectionLimits, limit: int) -> None:
    rig = Harness(limits)
    rig.connection.write(SetDataRequest("/a", bytes(limit - 8 - 6 - 4 - 4), -1))
    sent = rig.wire.sent
    assert struct.unpack_from("!i", sent) == (limit,)
    with pytest.raises(RequestTooLarge) as error:
        rig.connection.write(SetDataRequest("/a", bytes(limit + 1 - 8 - 6 - 4 - 4), -1))
    assert (error.value.size, error.value.limit) == (limit + 1, limit)
    assert rig.wire.sent == sent
    rig.connection.kill("done")


async def test_reads_a_reply_as_large_as_its_limit() -> None:
    rig = Harness(ConnectionLimits(reply=1000))
    call = rig.connection.write(get())
    data = bytes(1000 - 16 - 4 - len(STAT))
    rig.reply(1, struct.pack("!i", len(data)) + data + STAT)
    assert (await call)[0] == data
    rig.connection.kill("done")


def raw(*values: int) -> Callable[[Harness], None]:
    return lambda rig: rig.connection.data_received(struct.pack(f"!{len(values)}i", *values))


@pytest.mark.parametrize(
    ("feed", "says"),
    [
        (raw(-1), "not ZooKeeper's protocol"),
        (raw(1001), "not ZooKeeper's protocol"),
        (raw(0x48545450), "not ZooKeeper's protocol"),  # "HTTP"
        (raw(0), "shorter than its header"),
        (lambda rig: rig.reply(2), "never sent"),
        (lambda rig: rig.reply(-2), "never sent"),
        (lambda rig: rig.reply(-7777), "never sent"),
        (lambda rig: rig.reply(1), "cannot be read"),
        (lambda rig: rig.reply(1, struct.pack("!i", -5) + STAT), "cannot be read"),
        (lambda rig: rig.reply(1, struct.pack("!i", 2) + b"hi" + STAT[:-1]), "cannot be read"),
        (lambda rig: rig.reply(1, struct.pack("!i", 0x7FFFFFFF) + STAT), "cannot be read"),
        (lambda rig: rig.reply(-1, struct.pack("!iii", 1, 3, 2) + b"\xff\xfe"), "cannot be read"),
    ],
)
async def test_garbage_ends_the_connection_with_a_reason(feed: Callable[[Harness], None], says: str) -> None:
    rig = Harness(ConnectionLimits(reply=1000))
    outstanding = rig.connection.write(get())
    feed(rig)
    assert says in await rig.read_to_the_end()
    with pytest.raises(ConnectionLost):
        await outstanding


CONNECT = protocol.ConnectRequest(
    protocol_version=0, last_seen_zxid=0, timeout=1000, session_id=0, password=bytes(16), read_only=False
)


def granted(timeout: int, session_id: int) -> bytes:
    return struct.pack("!iiqi", 0, timeout, session_id, 16) + bytes(16) + b"\0"


async def shaken(rig: Harness, feed: Callable[[Harness], None]) -> Any:
    handshake = asyncio.create_task(rig.connection.handshake(CONNECT))
    await asyncio.sleep(0)
    feed(rig)
    return await handshake


@pytest.mark.parametrize("timeout", [4000, 1])
async def test_handshake_returns_the_session(timeout: int) -> None:
    rig = Harness()
    response = await shaken(rig, lambda rig: rig.frame(granted(timeout, 99)))
    assert (response.session_id, response.timeout) == (99, timeout)
    assert rig.connection.answer_limit == timeout / 1000
    assert rig.connection.last_zxid == 0  # it says nothing of transactions
    assert rig.wire.sent == bytes.fromhex(
        "0000002d 00000000 0000000000000000 000003e8 0000000000000000 00000010"
    ) + bytes(17)


async def test_handshake_reports_how_it_failed() -> None:
    with pytest.raises(HandshakeClosed):
        await shaken(Harness(), lambda rig: rig.connection.eof_received())
    with pytest.raises(HandshakeClosed):
        await shaken(Harness(), lambda rig: rig.connection.connection_lost(None))
    with pytest.raises(HandshakeClosed, match="given up"):
        await shaken(Harness(), lambda rig: rig.connection.kill("given up"))
    with pytest.raises(ConnectionResetError):
        await shaken(Harness(), lambda rig: rig.connection.connection_lost(ConnectionResetError("reset")))
    with pytest.raises(BadReply):
        await shaken(Harness(), raw(-1))
    for broken in (granted(0, 5), granted(-1, 5), granted(4000, 5)[:10], b""):
        with pytest.raises(BadReply):
            await shaken(Harness(), lambda rig: rig.frame(broken))  # noqa: B023


async def test_handshake_reports_an_end_before_it() -> None:
    def end_and_reset(rig: Harness) -> None:
        rig.connection.eof_received()
        rig.connection.connection_lost(ConnectionResetError("reset"))

    ends: list[tuple[Callable[[Harness], None], type[Exception]]] = [
        (lambda rig: rig.connection.eof_received(), HandshakeClosed),
        (lambda rig: rig.connection.connection_lost(ConnectionResetError("reset")), ConnectionResetError),
        (lambda rig: rig.connection.kill("given up"), HandshakeClosed),
        (end_and_reset, HandshakeClosed),
    ]
    for end, error in ends:
        rig = Harness()
        end(rig)
        with pytest.raises(error):
            await rig.connection.handshake(CONNECT)
        assert not rig.wire.sent


@pytest.mark.parametrize("step", [1, 3, 7, 50])
async def test_reads_frames_in_pieces_of_any_size(step: int) -> None:
    rig = Harness()
    first, second = rig.connection.write(get()), rig.connection.write(get())
    body = struct.pack("!i", 2) + b"hi" + STAT
    stream = b"".join(
        struct.pack("!i", 16 + len(reply)) + struct.pack("!iqi", xid, 1, code) + reply
        for xid, code, reply in ((1, 0, body), (2, -101, b""))
    )
    for start in range(0, len(stream), step):
        rig.connection.data_received(stream[start : start + step])
    assert (await first)[0] == b"hi"
    with pytest.raises(ServerError):
        await second
    rig.connection.kill("done")


async def test_tls_verifies_the_name_of_the_server_and_not_its_address() -> None:
    authority = trustme.CA()
    identity = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("zk.example").configure_cert(identity)
    trusting = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=identity) as server:
        port = server.sockets[0].getsockname()[1]

        async def connect(name: str) -> ZooKeeperConnection:
            connection = ZooKeeperConnection(
                ZooKeeperHost(name, port),
                "127.0.0.1",
                ssl=trusting,
                limits=ConnectionLimits(),
                on_watch=lambda path: None,
                on_end=lambda connection: None,
            )
            await connection.connect()
            return connection

        connection = await connect("zk.example")
        connection.kill("done")
        await connection.wait_closed()
        with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.example"):
            await connect("other.example")


# -- writing


async def turn() -> None:
    """One turn of the loop, and what it has planned for its end."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def xids(sent: bytes) -> list[int]:
    found, position = [], 0
    while position < len(sent):
        size, xid = struct.unpack_from("!ii", sent, position)
        found.append(xid)
        position += 4 + size
    return found


async def test_first_request_leaves_at_once_and_those_of_one_turn_together() -> None:
    rig = Harness()
    calls = [asyncio.create_task(rig.connection.request(get(f"/{number}"))) for number in range(5)]
    await asyncio.sleep(0)
    assert [xids(write) for write in rig.wire.writes] == [[1]]
    await turn()
    assert [xids(write) for write in rig.wire.writes] == [[1], [2, 3, 4, 5]]
    rig.connection.kill("done")
    assert [type(error) for error in await asyncio.gather(*calls, return_exceptions=True)] == [ConnectionLost] * 5


async def test_requests_that_answers_lead_to_leave_together() -> None:
    rig = Harness(ConnectionLimits(outstanding=3))
    calls = [asyncio.create_task(rig.connection.request(get(f"/{number}"))) for number in range(6)]
    await turn()
    rig.wire.writes.clear()
    rig.connection.data_received(b"".join(struct.pack("!iiqi", 16, xid, 1, -101) for xid in (1, 2)))
    await asyncio.sleep(0)
    assert [xids(write) for write in rig.wire.writes] == [[4, 5]]  # in the same turn in which callers continue
    rig.connection.kill("done")
    errors = [type(error) for error in await asyncio.gather(*calls, return_exceptions=True)]
    assert errors == [ServerError, ServerError, ConnectionLost, ConnectionLost, ConnectionLost, NeverSent]


async def test_heartbeat_leaves_at_once_and_takes_along_what_waits_for_the_end_of_the_turn() -> None:
    rig = Harness(ConnectionLimits(outstanding=3))
    calls = [asyncio.create_task(rig.connection.request(get(f"/{number}"))) for number in range(4)]
    await asyncio.sleep(0)
    beat = rig.connection.write(protocol.SyncRequest(path="/"))
    assert [xids(write) for write in rig.wire.writes] == [[1], [2, 3, 4]]  # the fourth get still waits
    await turn()
    assert len(rig.wire.writes) == 2
    rig.reply(4, struct.pack("!i", 1) + b"/")
    assert (await beat).path == "/"
    rig.connection.kill("done")
    await asyncio.gather(*calls, return_exceptions=True)


async def test_request_that_is_cancelled_before_its_turn_is_never_sent_and_takes_no_turn() -> None:
    rig = Harness(ConnectionLimits(outstanding=1))
    first, second, third = (asyncio.create_task(rig.connection.request(get(path))) for path in ("/a", "/b", "/c"))
    await turn()
    second.cancel()
    await turn()
    rig.reply(1, code=-101)
    await turn()
    assert (rig.wire.sent.count(b"/a"), rig.wire.sent.count(b"/b"), rig.wire.sent.count(b"/c")) == (1, 0, 1)
    fourth = asyncio.create_task(rig.connection.request(get("/d")))
    await turn()
    assert b"/d" not in rig.wire.sent  # one at a time still
    third.cancel()  # a caller that leaves gives its turn back, as before
    await turn()
    assert rig.wire.sent.count(b"/d") == 1
    rig.connection.kill("done")
    assert [type(error) for error in await asyncio.gather(first, second, third, fourth, return_exceptions=True)] == [
        ServerError,
        asyncio.CancelledError,
        asyncio.CancelledError,
        ConnectionLost,
    ]


async def test_what_was_not_written_at_the_end_may_have_been_carried_out_for_all_that_callers_know() -> None:
    rig = Harness()
    calls = [asyncio.create_task(rig.connection.request(get(f"/{number}"))) for number in range(3)]
    await asyncio.sleep(0)
    rig.connection.kill("cut")
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in errors] == [ConnectionLost] * 3
    await turn()
    assert len(rig.wire.writes) == 1  # nothing is written after the end


async def test_end_fails_the_calls_that_are_not_cancelled() -> None:
    rig = Harness(ConnectionLimits(outstanding=1))
    sent, cancelled, waiting = (asyncio.create_task(rig.connection.request(get(path))) for path in ("/a", "/b", "/c"))
    await turn()
    cancelled.cancel()
    await turn()
    rig.connection.kill("cut")
    errors = await asyncio.gather(sent, cancelled, waiting, return_exceptions=True)
    assert [type(error) for error in errors] == [ConnectionLost, asyncio.CancelledError, NeverSent]
    assert rig.ended == 1


async def test_connection_is_closed_when_its_socket_is() -> None:
    rig = Harness()
    rig.connection.kill("done")
    closed = asyncio.create_task(rig.connection.wait_closed())
    await turn()
    assert not closed.done()
    rig.connection.connection_lost(None)
    await closed


async def test_planned_write_to_a_closed_socket_ends_the_connection() -> None:
    rig = Harness()
    calls = [asyncio.create_task(rig.connection.request(get(f"/{number}"))) for number in range(3)]
    await asyncio.sleep(0)

    def gone(data: bytes) -> None:
        raise RuntimeError("the handler is closed")

    rig.wire.write = gone  # type: ignore[method-assign]
    for error in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(error, ConnectionLost)
        assert "the handler is closed" in str(error)
    assert rig.ended == 1


def in_virtual_time(script: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run on a loop whose time jumps to the next timer."""
    kernel = Kernel()
    loop = ProcessLoop(kernel, Network(kernel, random.Random(1)), "client")
    loop.play(script())
    loop.unwind()


def test_each_unanswered_request_fails_at_its_own_time() -> None:
    async def script() -> None:
        rig = Harness()
        rig.connection.answer_limit = 4.0

        async def fails_at(begin: float, path: str) -> float:
            await asyncio.sleep(begin)
            with pytest.raises(ConnectionLost):
                await rig.connection.request(get(path))
            return asyncio.get_running_loop().time()

        answered = asyncio.create_task(rig.connection.request(get("/0")))
        failing = [asyncio.create_task(fails_at(begin, f"/{begin}")) for begin in (0.5, 0.5, 1.0, 3.0, 10.0)]
        await asyncio.sleep(0.1)
        rig.reply(1, struct.pack("!i", -1) + STAT)
        assert (await answered)[0] is None
        assert await asyncio.gather(*failing) == [4.5, 4.5, 5.0, 7.0, 14.0]
        assert not rig.connection.closing

    in_virtual_time(script)


async def test_ended_connection_leaves_no_timer_behind() -> None:
    rig = Harness()
    rig.connection.answer_limit = 3600.0
    calls = [asyncio.create_task(rig.connection.request(get(f"/{number}"))) for number in range(3)]
    await turn()
    rig.connection.kill("done")
    await asyncio.gather(*calls, return_exceptions=True)
    connection = weakref.ref(rig.connection)
    del rig, calls
    await turn()
    gc.collect()
    assert connection() is None


async def test_unanswered_requests_fail_after_the_session_timeout_and_others_do_not() -> None:
    rig = Harness(ConnectionLimits(outstanding=2))
    rig.connection.answer_limit = 0.05
    beat = rig.connection.write(protocol.SyncRequest(path="/"))
    calls = [asyncio.create_task(rig.connection.request(get(f"/{number}"))) for number in range(4)]
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(error) for error in errors] == ["zk:2181 did not answer a request of type 4 within 0.05 s"] * 4
    assert xids(rig.wire.sent) == [1, 2, 3, 4, 5]  # those that waited had their turn, and their time
    assert not beat.done()
    assert not rig.connection.closing
    for xid in (2, 3, 4, 5):  # late answers have no effect
        rig.reply(xid, code=-101)
    last = asyncio.create_task(rig.connection.request(get()))
    await turn()
    rig.reply(6, code=-101)
    with pytest.raises(ServerError):
        await last
    rig.connection.kill("done")
    with pytest.raises(ConnectionLost):
        await beat


async def test_defect_of_a_watcher_is_raised_by_the_read_loop() -> None:
    rig = Harness()
    nothing: dict[str, None] = {}
    rig.connection._on_watch = nothing.__getitem__
    rig.frame(struct.pack("!iqi", -1, -1, 0) + struct.pack("!iii", 3, 3, 2) + b"/a")
    assert rig.connection.closing
    with pytest.raises(KeyError, match="/a"):
        await rig.connection.read_loop()


async def test_cancelled_read_loop_ends_the_connection() -> None:
    rig = Harness()
    reading = asyncio.create_task(rig.connection.read_loop())
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert rig.wire.aborted
    assert rig.ended == 1

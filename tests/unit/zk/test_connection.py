"""A connection fed with bytes by hand: what a server says, in order, and what comes of it."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any, cast

import pytest
from aiozk import protocol

from consumerd.zk.connect_string import ZooKeeperHost
from consumerd.zk.connection import Connection, ConnectionEnded, ConnectionLimits, HandshakeClosed
from consumerd.zk.errors import BadReply, ConnectionLost, RequestTooLarge, ServerError

if TYPE_CHECKING:
    from collections.abc import Callable


class Wire:
    """Stands where the socket was: what was written, and whether it was closed."""

    def __init__(self) -> None:
        self.sent = b""
        self.aborted = False
        self.transport = self

    def write(self, data: bytes) -> None:
        self.sent += data

    def abort(self) -> None:
        self.aborted = True


class Harness:
    def __init__(self, limits: ConnectionLimits = ConnectionLimits()) -> None:  # noqa: B008
        self.watched: list[str] = []
        self.ended = 0
        self.wire = Wire()
        self.connection = Connection(
            ZooKeeperHost("zk", 2181),
            "127.0.0.1",
            ssl=None,
            limits=limits,
            on_watch=self.watched.append,
            on_end=self._on_end,
        )
        self.connection.reader = self.reader = asyncio.StreamReader()
        self.connection.writer = cast("Any", self.wire)

    def _on_end(self, connection: Connection) -> None:
        assert connection is self.connection
        self.ended += 1

    def frame(self, body: bytes) -> None:
        self.reader.feed_data(struct.pack("!i", len(body)) + body)

    def reply(self, xid: int, body: bytes = b"", *, zxid: int = 1, code: int = 0) -> None:
        self.frame(struct.pack("!iqi", xid, zxid, code) + body)

    async def read_to_the_end(self) -> str:
        self.reader.feed_eof()
        with pytest.raises(ConnectionEnded):
            await self.connection.read_loop()
        assert self.connection.closing
        assert self.wire.aborted
        assert self.ended == 1
        return self.connection.end_reason


STAT = struct.pack("!qqqqiiiqiiq", 5, 6, 7, 8, 9, 0, 0, 11, 3, 2, 0)


def get(path: str = "/a", **options: Any) -> Any:
    return protocol.GetDataRequest(path=path, watch=False, **options)


@pytest.mark.asyncio
async def test_delivers_replies_to_requests_and_events_to_the_watcher() -> None:
    rig = Harness()
    data, missing = rig.connection.write(get()), rig.connection.write(get("/b"))
    rig.reply(1, struct.pack("!i", 2) + b"hi" + STAT, zxid=77)
    rig.frame(struct.pack("!iqi", -1, -1, 0) + struct.pack("!iii", 3, 3, 2) + b"/a")
    rig.reply(2, zxid=78, code=-101)
    await rig.read_to_the_end()
    found = await data
    assert (found.data, found.stat.version, found.stat.ephemeral_owner) == (b"hi", 9, 11)
    with pytest.raises(ServerError) as error:
        await missing
    assert error.value.code == -101
    assert rig.watched == ["/a"]
    assert rig.connection.last_zxid == 78
    assert rig.wire.sent.count(b"/a") == 1


@pytest.mark.asyncio
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


@pytest.mark.asyncio
async def test_distinguishes_null_from_empty_data() -> None:
    rig = Harness()
    null, empty = rig.connection.write(get()), rig.connection.write(get())
    rig.reply(1, struct.pack("!i", -1) + STAT)
    rig.reply(2, struct.pack("!i", 0) + STAT)
    await rig.read_to_the_end()
    assert ((await null).data, (await empty).data) == (None, b"")


@pytest.mark.asyncio
async def test_ignores_session_events_without_a_path() -> None:
    rig = Harness()
    rig.frame(struct.pack("!iqi", -1, -1, 0) + struct.pack("!iii", -1, 3, 0))
    rig.frame(struct.pack("!iqi", -1, -1, 0) + struct.pack("!iii", -1, 3, -1))
    await rig.read_to_the_end()
    assert rig.watched == []


@pytest.mark.asyncio
@pytest.mark.parametrize("cut", [0, 1, 3, 4, 19, 30])
async def test_end_of_file_fails_outstanding_calls(cut: int) -> None:
    rig = Harness()
    outstanding = rig.connection.write(get())
    whole = struct.pack("!iiqi", 16 + 4 + 2 + 68, 1, 1, 0) + struct.pack("!i", 2) + b"hi" + STAT
    rig.reader.feed_data(whole[:cut])
    assert await rig.read_to_the_end() == "the server closed the connection"
    with pytest.raises(ConnectionLost, match="zk:2181"):
        await outstanding
    with pytest.raises(ConnectionLost):
        rig.connection.write(get())


@pytest.mark.asyncio
async def test_cancelled_call_does_not_disturb_the_next() -> None:
    rig = Harness()
    first, second = rig.connection.write(get()), rig.connection.write(get())
    first.cancel()
    rig.reply(1, code=-101)
    rig.reply(2, struct.pack("!i", 0) + STAT)
    await rig.read_to_the_end()
    assert (await second).data == b""


@pytest.mark.asyncio
async def test_killing_twice_notifies_once() -> None:
    rig = Harness()
    rig.connection.kill("first")
    rig.connection.kill("second")
    assert (rig.ended, rig.connection.end_reason) == (1, "first")


@pytest.mark.asyncio
async def test_xids_wrap_before_they_turn_negative() -> None:
    rig = Harness()
    rig.connection._xid = 0x7FFFFFFE
    rig.connection.write(get())
    last = rig.connection.write(get())
    rig.reply(0x7FFFFFFF, struct.pack("!i", 0) + STAT)
    rig.reply(1, struct.pack("!i", 0) + STAT)
    await rig.read_to_the_end()
    assert (await last).data == b""


@pytest.mark.asyncio
async def test_never_sends_a_request_above_the_server_s_limit() -> None:
    rig = Harness(ConnectionLimits(request=100, reply=1000))
    fits = protocol.SetDataRequest(path="/a", data=bytes(100 - 8 - 6 - 4 - 4), version=-1)
    rig.connection.write(fits)
    sent = rig.wire.sent
    assert struct.unpack_from("!i", sent) == (100,)
    with pytest.raises(RequestTooLarge) as error:
        rig.connection.write(protocol.SetDataRequest(path="/a", data=bytes(101 - 8 - 6 - 4 - 4), version=-1))
    assert (error.value.size, error.value.limit) == (101, 100)
    assert rig.wire.sent == sent
    rig.connection.kill("done")


def raw(*values: int) -> Callable[[Harness], None]:
    return lambda rig: rig.reader.feed_data(struct.pack(f"!{len(values)}i", *values))


@pytest.mark.asyncio
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


@pytest.mark.asyncio
async def test_handshake_returns_the_session() -> None:
    rig = Harness()
    rig.frame(granted(4000, 99))
    response = await rig.connection.handshake(CONNECT)
    assert (response.session_id, response.timeout, rig.connection.session_id) == (99, 4000, 99)
    assert rig.wire.sent == bytes.fromhex(
        "0000002d 00000000 0000000000000000 000003e8 0000000000000000 00000010"
    ) + bytes(17)


@pytest.mark.asyncio
async def test_handshake_reports_how_it_failed() -> None:
    rig = Harness()
    rig.reader.feed_eof()
    with pytest.raises(HandshakeClosed):
        await rig.connection.handshake(CONNECT)
    for broken in (granted(0, 5), granted(-1, 5), granted(4000, 5)[:10], b""):
        rig = Harness()
        rig.frame(broken)
        with pytest.raises(BadReply):
            await rig.connection.handshake(CONNECT)

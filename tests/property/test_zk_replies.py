"""Whatever bytes a server sends, a connection to it ends with a reason, and no call is left waiting."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, cast

import pytest
from aiozk import protocol
from hypothesis import given
from hypothesis import strategies as st

from consumerd.errors import ConsumerdError
from consumerd.ports import Check
from consumerd.zk.acl import parse_acl
from consumerd.zk.connect_string import ZooKeeperHost
from consumerd.zk.connection import Connection, ConnectionEnded, ConnectionLimits, HandshakeClosed
from consumerd.zk.errors import BadReply, ServerError
from consumerd.zk.multi import MultiRequest, encode_operations, first_failure
from consumerd.zk.requests import ExistsRequest, GetChildrenRequest, GetDataRequest, SetDataRequest


class Wire:
    def write(self, data: bytes) -> None:
        """Ignores every event."""

    def abort(self) -> None:
        """Nothing to close."""


def opened() -> Connection:
    connection = Connection(
        ZooKeeperHost("zk", 1),
        "127.0.0.1",
        ssl=None,
        limits=ConnectionLimits(reply=1 << 16),
        on_watch=lambda path: None,
        on_end=print,
    )
    connection.connection_made(cast("Any", Wire()))
    return connection


def feed(connection: Connection, data: bytes, cut: int) -> None:
    """All of it in two pieces, then the end of the file."""
    connection.data_received(data[:cut])
    connection.data_received(data[cut:])
    connection.eof_received()


REQUESTS = [
    GetDataRequest("/a", watch=True),
    ExistsRequest("/a", watch=True),
    GetChildrenRequest("/a", watch=True),
    SetDataRequest("/a", b"x"),
    protocol.SyncRequest(path="/"),
    protocol.AuthRequest(type=0, scheme="digest", auth=b"u:p"),
    MultiRequest(encode_operations([Check("/a")], str, parse_acl("open"))),
]

headers = st.builds(
    lambda xid, zxid, code, body: struct.pack("!iqi", xid, zxid, code) + body,
    st.integers(-5, 8),
    st.integers(-1, 3),
    st.sampled_from([0, 0, 0, -101, -4, -9999]),
    st.binary(max_size=120),
)
frames = st.builds(
    lambda body, lie: struct.pack("!i", len(body) + lie) + body, headers, st.sampled_from([0, 0, 0, 1, -3])
)
streams = st.one_of(st.binary(max_size=300), st.lists(frames, max_size=12).map(b"".join))


@given(streams, st.integers(0, 300))
def test_any_replies_end_the_connection_or_are_read(data: bytes, cut: int) -> None:
    async def scenario() -> None:
        connection = opened()
        futures = [connection.write(request) for request in REQUESTS]
        feed(connection, data, cut)
        with pytest.raises(ConnectionEnded):
            await connection.read_loop()
        for future in futures:
            assert future.done()
            error = future.exception()
            assert error is None or isinstance(error, ConsumerdError | ServerError)

    asyncio.run(scenario())


@given(streams, st.integers(0, 300))
def test_any_handshakes_raise_declared_errors(data: bytes, cut: int) -> None:
    async def scenario() -> None:
        connection = opened()
        asyncio.get_running_loop().call_soon(feed, connection, data, cut)
        request = protocol.ConnectRequest(
            protocol_version=0, last_seen_zxid=0, timeout=1, session_id=0, password=b"", read_only=False
        )
        try:
            response = await connection.handshake(request)
        except (BadReply, HandshakeClosed):
            return
        assert response.session_id == 0 or response.timeout > 0

    asyncio.run(scenario())


@given(st.binary(max_size=200))
def test_any_multi_replies_raise_declared_errors(payload: bytes) -> None:
    try:
        failure = first_failure(payload)
    except BadReply:
        return
    assert failure is None or failure[1] != 0

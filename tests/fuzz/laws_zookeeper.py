"""What holds for a connection to ZooKeeper, whatever bytes the server sends; for properties and for fuzzing."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import pytest
from aiozk import protocol

from consumerd.base.errors import ConsumerdError
from consumerd.base.ports import Check
from consumerd.net.zk.acl import parse_acl
from consumerd.net.zk.connect_string import ZooKeeperHost
from consumerd.net.zk.connection import ConnectionEnded, ConnectionLimits, HandshakeClosed, ZooKeeperConnection
from consumerd.net.zk.errors import BadReply, ServerError
from consumerd.net.zk.multi import MultiRequest, encode_operations
from consumerd.net.zk.requests import ExistsRequest, GetChildrenRequest, GetDataRequest, SetDataRequest

#: One of each kind; their xids are 1, 2, 3, ...
REQUESTS: Final[list[Any]] = [
    GetDataRequest("/a", watch=True),
    ExistsRequest("/a", watch=True),
    GetChildrenRequest("/a", watch=True),
    SetDataRequest("/a", b"x", -1),
    protocol.SyncRequest(path="/"),
    MultiRequest(encode_operations([Check("/a")], str, parse_acl("open"))),
    protocol.CreateRequest(path="/a", data=b"", acl=parse_acl("open"), flags=0),
    protocol.AuthRequest(type=0, scheme="digest", auth=b"u:p"),
]


class _Wire:
    """A transport that takes everything."""

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None: ...


def _opened() -> ZooKeeperConnection:
    connection = ZooKeeperConnection(
        ZooKeeperHost("zk", 1),
        "127.0.0.1",
        ssl=None,
        limits=ConnectionLimits(reply=1 << 16),
        on_watch=lambda path: None,
        on_end=lambda connection: None,
    )
    connection.connection_made(cast("Any", _Wire()))
    return connection


def _feed(connection: ZooKeeperConnection, data: bytes, cut: int) -> None:
    """All of it in two pieces, then the end of the file."""
    connection.data_received(data[:cut])
    connection.data_received(data[cut:])
    connection.eof_received()


async def exercise_replies(data: bytes, cut: int) -> None:
    """Every call gets an answer or a declared error, and the connection ends with a reason."""
    connection = _opened()
    answers = [connection.write(request) for request in REQUESTS]
    _feed(connection, data, cut)
    with pytest.raises(ConnectionEnded):
        await connection.read_loop()
    for answer in answers:
        assert answer.done()
        error = answer.exception()
        assert error is None or isinstance(error, ConsumerdError | ServerError)


async def exercise_handshake(data: bytes, cut: int) -> None:
    """A session, or a declared error."""
    connection = _opened()
    asyncio.get_running_loop().call_soon(_feed, connection, data, cut)
    request = protocol.ConnectRequest(
        protocol_version=0, last_seen_zxid=0, timeout=1, session_id=0, password=b"", read_only=False
    )
    try:
        response = await connection.handshake(request)
    except (BadReply, HandshakeClosed):
        return
    assert response.session_id == 0 or response.timeout > 0

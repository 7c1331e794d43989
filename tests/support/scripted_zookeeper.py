"""A ZooKeeper server that says what a script tells it, connection by connection."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Self

from consumerd.base.clock import SystemClock
from consumerd.base.ports import SessionEvent
from consumerd.net.zk.session import Session

CLOSE, CREATE, EXISTS, SYNC, MULTI, AUTH = -11, 1, 3, 9, 14, 100


def framed(body: bytes) -> bytes:
    return struct.pack("!i", len(body)) + body


def granted(session_id: int, timeout: int = 1000) -> bytes:
    return framed(struct.pack("!iiqi", 0, timeout, session_id, 16) + bytes(16) + b"\0")


def replied(xid: int, body: bytes = b"", *, zxid: int = 1, code: int = 0) -> bytes:
    return framed(struct.pack("!iqi", xid, zxid, code) + body)


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.write = writer.write

    async def frame(self) -> bytes:
        (size,) = struct.unpack("!i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def handshake(self) -> tuple[int, int]:
        """The zxid and the session id that the client comes with."""
        _, zxid, _, session_id = struct.unpack_from("!iqiq", await self.frame())
        return zxid, session_id

    async def request(self) -> tuple[int, int]:
        """Xid and opcode of the next request; that of a new session whether there is multi is answered by itself."""
        xid, code = struct.unpack_from("!ii", await self.frame())
        if code == MULTI:
            self.write(replied(xid, struct.pack("!i?i", -1, True, -1)))
            xid, code = struct.unpack_from("!ii", await self.frame())
            assert code == EXISTS
            self.write(replied(xid, code=-101))
            return await self.request()
        return xid, code

    async def behave(self) -> None:
        """Answer heartbeats, lookups and the farewell until the client goes."""
        while True:
            xid, code = await self.request()
            body = struct.pack("!i", 1) + b"/" if code == SYNC else b""
            self.write(replied(xid, body, zxid=7, code=-101 if code == EXISTS else 0))


class Server:
    """Serves the n-th connection by the n-th script, the rest by the last."""

    def __init__(self, *scripts: Callable[[Peer], Awaitable[None]]) -> None:
        self._scripts = list(scripts)
        self.served = 0
        self.port = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._scripts[min(self.served, len(self._scripts) - 1)]
        self.served += 1
        try:
            await script(Peer(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client went, as clients do
        finally:
            writer.close()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    def session(self, *, chroot: str = "", **options: Any) -> tuple[Session, list[SessionEvent]]:
        """A session that is not started yet, and its events."""
        defaults: dict[str, Any] = {"clock": SystemClock(), "rng": random.Random(1), "session_timeout": 1.0}
        session = Session(f"127.0.0.1:{self.port}{chroot}", **(defaults | options))
        events: list[SessionEvent] = []
        session.subscribe(lambda event, session_id: events.append(event))
        return session, events


async def good(peer: Peer) -> None:
    await peer.handshake()
    peer.write(granted(5))
    await peer.behave()

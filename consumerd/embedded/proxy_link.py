"""One connection that a `consumerd.embedded.proxy.FaultProxy` forwards: two sockets, and bytes both ways between them.

Strategy: each direction is a reader and a writer around a short queue, so that a delay is latency and no limit on
throughput. What may pass, and as what, is the proxy's to say, right before it is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from enum import Enum
from typing import TYPE_CHECKING, Final

import structlog

from consumerd.errors import reason_of

if TYPE_CHECKING:
    from consumerd.embedded.proxy import FaultProxy

log = structlog.get_logger(__name__)

_CHUNK: Final = 65_536
_QUEUED: Final = 16
_RESET: Final = struct.pack("ii", 1, 0)


class Direction(Enum):
    """Which way bytes travel through the proxy."""

    TO_SERVER = "to_server"
    TO_CLIENT = "to_client"

    @property
    def other(self) -> Direction:
        """The way back."""
        return Direction.TO_CLIENT if self is Direction.TO_SERVER else Direction.TO_SERVER


class FrameSplitter:
    """Collects bytes into whole frames of an int32 length and a body, as ZooKeeper and Kafka both send them."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes, lengths included."""
        self._rest += data
        frames = []
        while len(self._rest) >= 4:
            end = 4 + int.from_bytes(self._rest[:4], "big")
            if len(self._rest) < end:
                break
            frames.append(self._rest[:end])
            self._rest = self._rest[end:]
        return frames


class Link:
    """One proxied connection: its two sockets and the task that serves it."""

    def __init__(self, proxy: FaultProxy, client: socket.socket) -> None:
        self._proxy = proxy
        self._server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._server.setblocking(False)
        self._client = client
        self._ending = False
        self.spoilt = False  # bytes were lost: what follows them makes no sense any more

    def _end(self, direction: Direction) -> socket.socket:
        """The socket that bytes of this direction are written to."""
        return self._server if direction is Direction.TO_SERVER else self._client

    async def run(self, host: str, port: int) -> None:
        """Connect to the server and serve both ways until both have ended; cancellation closes both ends."""
        try:
            for end in (self._client, self._server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(self._server, (host, port))
            async with asyncio.TaskGroup() as group:
                for direction in Direction:
                    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED)
                    group.create_task(self._read(direction, queue))
                    group.create_task(self._write(direction, queue))
        except* OSError as errors:
            log.debug("proxied_connection_broke", reason=reason_of(errors.exceptions[0]))
            self.reset_on_close()  # whoever is left learns of it as it would without the proxy
        finally:
            self.close()

    async def _read(self, direction: Direction, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        loop = asyncio.get_running_loop()
        source = self._end(direction.other)
        data = b"?"
        while data:
            data = await loop.sock_recv(source, _CHUNK)
            await queue.put((loop.time() + self._proxy.latency, data))

    async def _write(self, direction: Direction, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        loop = asyncio.get_running_loop()
        splitter = FrameSplitter()
        while True:
            due, data = await queue.get()
            if (left := due - loop.time()) > 0:
                await asyncio.sleep(left)
            await self._proxy.passage(direction)
            if not data and not self._proxy.loses(direction):
                self.half_close(direction)
            if not data:
                return
            for chunk in splitter.feed(data) if self._proxy.frames else (data,):
                await self._proxy.passage(direction)
                out = self._proxy.pass_on(direction, chunk)
                if self._ending:  # the hook has just cut us
                    return
                self.spoilt = self.spoilt or self._proxy.loses(direction)
                await loop.sock_sendall(self._end(direction), out)

    def half_close(self, direction: Direction) -> None:
        """Send a FIN in one direction and keep the other open."""
        with contextlib.suppress(OSError):  # not connected, or reset by its peer meanwhile
            self._end(direction).shutdown(socket.SHUT_WR)

    def reset_on_close(self) -> None:
        """Make closing send RSTs."""
        for end in (self._client, self._server):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def end(self, *, rst: bool) -> None:
        """Forward nothing any more; the sockets are closed by the cancellation that follows."""
        self._ending = True
        if rst:
            self.reset_on_close()

    def close(self) -> None:
        """Close both sockets."""
        self._client.close()
        self._server.close()

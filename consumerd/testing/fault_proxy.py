"""A TCP proxy on loopback that misbehaves on command: cut, delay, stall, half-close, refuse, lose, alter.

Strategy: raw non-blocking sockets, because the faults live below streams: an RST is a close with zero linger, refusing
is a closed listening socket, a stall is a pause of forwarding. Each connection is one task (`ProxiedConnection`), each
direction of it a reader and a writer around a short queue, so that a delay is latency and no limit on throughput. The
proxy decides whether and in what form bytes pass right before they are sent: a fault takes effect on bytes that are not
yet forwarded, and `heal` forwards those that were held.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from enum import Enum
from typing import Final, Self

import structlog

from consumerd.base.errors import reason_of
from consumerd.demo.ports import LOOPBACK, free_port

log = structlog.get_logger(__name__)

_CHUNK: Final = 65_536
_QUEUED: Final = 16
_RESET: Final = struct.pack("ii", 1, 0)


class Direction(Enum):
    """The direction of bytes through the proxy."""

    TO_SERVER = "to_server"
    TO_CLIENT = "to_client"

    @property
    def other(self) -> Direction:
        """The opposite direction."""
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


class ProxiedConnection:
    """One proxied connection: its two sockets and the task that serves it."""

    def __init__(self, proxy: FaultProxy, client: socket.socket) -> None:
        self._proxy = proxy
        self._server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._server.setblocking(False)
        self._client = client
        self._ending = False
        self.spoilt = False  # bytes were lost: what follows them cannot be parsed

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
            log.debug("proxied_connection_failed", reason=reason_of(errors.exceptions[0]))
            self.reset_on_close()  # the other side sees the same as without the proxy
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


class FaultProxy:
    """Forwards `127.0.0.1:port` to `target_host:target_port`, and injects faults. An async context manager.

    `hook(direction, data)` sees every chunk before it is forwarded and returns the bytes to send in its place (b"" for
    nothing); it may call the methods below. With `frames` the chunks are whole frames, int32 length included.
    `accepted` counts connections since the start, `open_connections` those of now.
    """

    def __init__(
        self,
        target_host: str,
        target_port: int,
        *,
        port: int | None = None,
        hook: Callable[[Direction, bytes], bytes] | None = None,
        frames: bool = False,
    ) -> None:
        self.target_host = target_host
        self.target_port = target_port
        self.port = port or free_port()
        self.hook = hook
        self.frames = frames
        self.accepted = 0
        self.latency = 0.0
        self.forwarded = dict.fromkeys(Direction, 0)
        self._lost: set[Direction] = set()
        self._passages = {direction: asyncio.Event() for direction in Direction}
        self._links: dict[asyncio.Task[None], ProxiedConnection] = {}
        self._listener: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        for passage in self._passages.values():
            passage.set()

    @property
    def connect(self) -> str:
        """`host:port` of the proxy itself."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def open_connections(self) -> int:
        """The number of connections now."""
        return len(self._links)

    async def start(self) -> None:
        """Listen. Raises OSError when the port is taken."""
        self._loop = asyncio.get_running_loop()
        self._listen()

    def _listen(self) -> None:
        if self._listener is not None or self._loop is None:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind((LOOPBACK, self.port))
            listener.listen(128)
            self._loop.add_reader(listener.fileno(), self._accept, listener)
        except BaseException:
            listener.close()
            raise
        self._listener = listener

    def _accept(self, listener: socket.socket) -> None:
        assert self._loop is not None
        try:
            client, _ = listener.accept()
        except OSError as error:  # the client has gone again, or no file descriptor is left
            log.warning("proxy_accept_failed", reason=reason_of(error))
            return
        client.setblocking(False)
        self.accepted += 1
        link = ProxiedConnection(self, client)
        task = self._loop.create_task(link.run(self.target_host, self.target_port))
        self._links[task] = link
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._links.pop(task).close()  # a task that is cancelled before its first step closes nothing itself
        if not task.cancelled() and (error := task.exception()) is not None:
            # Only a defect of the hook or of ours: it must not pass unseen.
            assert self._loop is not None
            self._loop.call_exception_handler({"message": "proxied connection failed", "exception": error})

    async def passage(self, direction: Direction) -> None:
        """Wait until bytes may be forwarded in this direction."""
        await self._passages[direction].wait()

    def pass_on(self, direction: Direction, data: bytes) -> bytes:
        """The bytes to forward in place of `data`."""
        if direction in self._lost:
            return b""
        if self.hook is not None:
            data = self.hook(direction, data)
        self.forwarded[direction] += len(data)
        return data

    def loses(self, direction: Direction) -> bool:
        """Whether bytes of this direction vanish now."""
        return direction in self._lost

    def cut(self, *, rst: bool = False) -> None:
        """Close all connections, with FIN or RST, also those that hold bytes; new ones are served."""
        for task, link in list(self._links.items()):
            link.end(rst=rst)
            task.cancel()

    def refuse(self) -> None:
        """Refuse new connections until `heal`; existing ones continue."""
        listener, self._listener = self._listener, None
        if listener is not None and self._loop is not None:
            self._loop.remove_reader(listener.fileno())
            listener.close()

    def stall(self, *directions: Direction) -> None:
        """Accept connections and hold back all bytes (of the directions named, else both) until `heal`."""
        for direction in directions or Direction:
            self._passages[direction].clear()

    def delay(self, seconds: float) -> None:
        """Add latency to each direction, for bytes that come in from now on."""
        self.latency = seconds

    def blackhole(self, *directions: Direction) -> None:
        """Take bytes (of the directions named, else both) and lose them; see `heal`."""
        self._lost.update(directions or Direction)

    def half_close(self, direction: Direction) -> None:
        """Send a FIN in one direction of every connection; the other stays open."""
        for link in self._links.values():
            link.half_close(direction)

    def heal(self) -> None:
        """End all faults: forward held bytes, reset connections that lost bytes, keep the hook. May raise OSError."""
        self.latency = 0.0
        self._lost.clear()
        for task, link in list(self._links.items()):
            if link.spoilt:
                link.end(rst=True)
                task.cancel()
        for passage in self._passages.values():
            passage.set()
        self._listen()

    async def close(self) -> None:
        """Stop listening and end all connections; returns when they have ended."""
        self.refuse()
        while self._links:
            self.cut()
            await asyncio.wait(list(self._links))
        self._loop = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

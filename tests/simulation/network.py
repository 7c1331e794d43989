"""Connections in memory: bytes with latency and throughput, in order within one connection, and with faults.

Strategy: a connection is two `Pipe`s. A pipe delivers what is written after its latency, never before what was written
earlier; different connections overtake each other as their latencies say. One end is an asyncio transport on a
process's loop, the other a plain object of a server (`Peer`). Faults are calls on a `Link`: `cut` ends both sides,
`stall` holds all bytes back in one or both directions silently, `lose_reply` cuts right before the server's next answer
would be sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from tests.simulation.kernel import Event, Kernel
from tests.simulation.process import ProcessLoop

if TYPE_CHECKING:
    from random import Random

#: The undelivered bytes that a socket's buffers take before a transport buffers data.
SOCKET_BUFFER = 256 * 1024


class Peer(Protocol):
    """The server's side of a connection."""

    def received(self, data: bytes) -> None:
        """Bytes came."""
        ...

    def lost(self) -> None:
        """The other side has closed the connection."""
        ...


class Accept(Protocol):
    """A server takes a connection."""

    def __call__(self, link: Link) -> Peer: ...


class Line:
    """The distance of a server: seconds of latency each way, varied by up to `jitter` of it; bytes per second."""

    def __init__(self, latency: float = 0.0005, *, jitter: float = 0.1, throughput: float = 100e6) -> None:
        self.latency = latency
        self.jitter = jitter
        self.throughput = throughput


class Pipe:
    """One direction. `deliver(data)` is called with what arrives, `end()` when the writer's side was closed."""

    def __init__(self, network: Network, line: Line, deliver: Callable[[bytes], None], end: Callable[[], None]) -> None:
        self._network = network
        self._kernel = network.kernel
        self._line = line
        self._deliver = deliver
        self._end = end
        self._due = 0.0
        self._written_at = -1.0
        self._parts: list[bytes] | None = None
        #: What is on its way: its arrival, and its parts, or None for the end.
        self._flying: deque[tuple[Event, list[bytes] | None]] = deque()
        self._held: list[bytes | None] | None = None
        self._closed = False
        self.unsent = 0

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self._closed or not data:
            return
        self.unsent += len(data)
        if self._held is not None:
            self._held.append(data)
            return
        if self._parts is not None and self._written_at == self._kernel.now:
            self._parts.append(data)
            return
        parts = self._parts = [data]
        self._written_at = self._kernel.now

        def arrive() -> None:
            self._flying.popleft()
            if self._parts is parts:
                self._parts = None
            whole = parts[0] if len(parts) == 1 else b"".join(parts)
            self.unsent -= len(whole)
            if not self._closed:
                self._deliver(whole)

        self._flying.append((self._kernel.at(self._next(len(data)), arrive), parts))

    def finish(self) -> None:
        """Close after what was written."""
        if self._closed:
            return
        if self._held is not None:
            self._held.append(None)
            return

        def arrive() -> None:
            self._flying.popleft()
            if not self._closed:
                self._closed = True
                self._end()

        self._parts = None
        self._flying.append((self._kernel.at(self._next(0), arrive), None))

    def drop(self) -> None:
        """Deliver nothing any more."""
        self._closed = True
        self._held = None
        self.unsent = 0

    def stall(self, stalled: bool) -> None:
        """Hold everything back, what is on its way too; or let it go."""
        if stalled:
            if self._held is None:
                flying, self._flying, self._parts = self._flying, deque(), None
                for arrival, _ in flying:
                    arrival.cancel()
                self._held = [None if parts is None else b"".join(parts) for _, parts in flying]
            return
        held, self._held = self._held, None
        for data in held or ():
            if data is None:
                self.finish()
            else:
                self.unsent -= len(data)
                self.write(data)

    def _next(self, size: int) -> float:
        line = self._line
        jitter = 1.0 + line.jitter * self._network.rng.random() if line.jitter else 1.0
        self._due = max(self._due + size / line.throughput, self._kernel.now + line.latency * jitter)
        return self._due


class Link:
    """One connection, from the process called `client` to `address`."""

    def __init__(self, network: Network, loop: ProcessLoop, address: tuple[str, int], line: Line) -> None:
        self.network = network
        self.client = loop.name
        self.address = address
        self.loop = loop
        self.transport: Transport | None = None
        self.peer: Peer | None = None
        #: Cut instead of sending the server's next answer.
        self.lose_reply = False
        self.ended = False
        self._up = Pipe(network, line, self._to_server, self._server_lost)
        self._down = Pipe(network, line, self._to_client, self._client_end)

    # -- the server's side

    def send(self, data: bytes) -> None:
        """From the server to the client."""
        if self.lose_reply:
            self.cut()
            return
        self._down.write(data)

    def close(self) -> None:
        """The server closes, after what it sent."""
        self._down.finish()
        self._up.drop()
        self.network.forget(self)

    # -- the client's side

    def write(self, data: bytes) -> None:
        """From the client to the server."""
        self._up.write(data)

    def hang_up(self) -> None:
        """The client closes, after what it wrote, and reads nothing any more."""
        self._down.drop()
        self._up.finish()
        self.network.forget(self)

    @property
    def unsent(self) -> int:
        """Bytes of the client's that no socket took yet."""
        return max(0, self._up.unsent - SOCKET_BUFFER)

    # -- faults

    def cut(self) -> None:
        """Both sides see the connection reset, now; what is on its way is lost."""
        if self.ended:
            return
        self.ended = True
        self._up.drop()
        self._down.drop()
        self.network.forget(self)
        if self.peer is not None:
            self.peer.lost()
        if self.transport is not None:
            self.loop.submit(self.transport.reset, ConnectionResetError("Connection reset by peer"))

    def stall(self, stalled: bool = True, *, up: bool = True, down: bool = True) -> None:
        """Hold all bytes back silently, or deliver them again."""
        if up:
            self._up.stall(stalled)
        if down:
            self._down.stall(stalled)

    # -- arrivals

    def _to_server(self, data: bytes) -> None:
        if self.peer is not None:
            self.peer.received(data)
        if self.transport is not None and not self.loop.dead and self.transport.full:
            self.loop.submit(self.transport.drained)

    def _server_lost(self) -> None:
        self.ended = True
        if self.peer is not None:
            self.peer.lost()

    def _to_client(self, data: bytes) -> None:
        if self.transport is not None:
            self.loop.submit(self.transport.arrived, data)

    def _client_end(self) -> None:
        self.ended = True
        if self.transport is not None:
            self.loop.submit(self.transport.ended)


class _Socket:
    """The methods of a socket that are called besides those for bytes."""

    family = 2

    def setsockopt(self, *arguments: Any) -> None: ...

    def getpeername(self) -> tuple[str, int]:
        return ("simulated", 0)


class Transport(asyncio.Transport):
    """The client's end of a link, for asyncio's protocols."""

    def __init__(self, link: Link, protocol: asyncio.BaseProtocol, loop: ProcessLoop) -> None:
        super().__init__({"socket": _Socket(), "peername": link.address})
        self._link = link
        self._loop = loop
        self._protocol = protocol
        self._closing = False
        self._lost = False
        loop.transports[self] = None
        self._reading = True
        self._waiting: list[bytes | None] = []
        self._high = 64 * 1024
        self.full = False

    # -- the protocol's calls

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing:
            return
        self._link.write(bytes(data))
        if not self.full and self._link.unsent > self._high:
            self.full = True
            self._protocol.pause_writing()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._link.hang_up()
            self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self._hand_out)

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._link.unsent

    def can_write_eof(self) -> bool:
        return False

    # -- what the link tells, on the loop

    def arrived(self, data: bytes) -> None:
        """Bytes came."""
        self._waiting.append(data)
        self._hand_out()

    def ended(self) -> None:
        """The other side closed."""
        self._waiting.append(None)
        self._hand_out()

    def drained(self) -> None:
        """The written bytes have been sent."""
        if self.full and self._link.unsent <= self._high // 4:
            self.full = False
            if not self._lost:
                self._protocol.resume_writing()

    def reset(self, error: Exception) -> None:
        """The connection broke."""
        self._closing = True
        self._lose(error)

    def _hand_out(self) -> None:
        while self._waiting and self._reading and not self._closing:
            data = self._waiting.pop(0)
            if data is None:
                if not cast("asyncio.Protocol", self._protocol).eof_received():
                    self.close()
            elif isinstance(self._protocol, asyncio.BufferedProtocol):
                self._fill(data, self._protocol)
            else:
                cast("asyncio.Protocol", self._protocol).data_received(data)

    @staticmethod
    def _fill(data: bytes, protocol: asyncio.BufferedProtocol) -> None:
        view = memoryview(data)
        while view:
            buffer = memoryview(protocol.get_buffer(len(view)))
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            protocol.buffer_updated(size)
            view = view[size:]

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._loop.transports.pop(self, None)
            self._protocol.connection_lost(error)


class Network:
    """Listeners by address, the lines to them, and all connections."""

    def __init__(self, kernel: Kernel, rng: Random) -> None:
        self.kernel = kernel
        self.rng = rng
        self.links: list[Link] = []
        #: Names that stand for other addresses than themselves.
        self.names: dict[str, list[str]] = {}
        #: Addresses that swallow what is sent to them.
        self.silent: set[str] = set()
        #: Of pairs of a process and a host what is sent does not arrive, in either direction.
        self._cut_off: set[tuple[str, str]] = set()
        self._listeners: dict[tuple[str, int], Accept] = {}
        self._lines: dict[tuple[str, int], Line] = {}
        self._own_lines: dict[tuple[str, tuple[str, int]], Line] = {}

    def listen(self, host: str, port: int, accept: Accept, line: Line) -> None:
        """Take connections."""
        self._listeners[host, port] = accept
        self._lines[host, port] = line

    def unlisten(self, host: str, port: int) -> None:
        """Refuse connections from now on; those that are there stay."""
        self._listeners.pop((host, port), None)

    def set_line(self, client: str, address: tuple[str, int], line: Line) -> None:
        """The distance between one process and the server at `address`."""
        self._own_lines[client, address] = line

    def links_of(self, client: str | None = None, address: tuple[str, int] | None = None) -> list[Link]:
        """The connections of a process, or to an address, oldest first."""
        return [link for link in self.links if client in (None, link.client) and address in (None, link.address)]

    def cut_off(self, client: str, host: str, cut_off: bool = True) -> None:
        """Hold all bytes back between a process and a host, new connections included; or deliver them again."""
        (self._cut_off.add if cut_off else self._cut_off.discard)((client, host))
        for link in self.links_of(client):
            if link.address[0] == host:
                link.stall(cut_off)

    def latency_of(self, client: str, address: tuple[str, int]) -> float:
        """Seconds of latency between a process and a server, one way."""
        line = self._own_lines.get((client, address)) or self._lines.get(address) or Line()
        return line.latency * (1.0 + line.jitter)

    def forget(self, link: Link) -> None:
        """A connection is over."""
        if link in self.links:
            self.links.remove(link)

    def close_all_of(self, client: str) -> None:
        """A process died: its kernel closes its sockets."""
        for link in self.links_of(client):
            link.hang_up()

    def resolve(self, host: str, port: int) -> list[Any]:
        """The result of `getaddrinfo`."""
        return [(2, 1, 6, "", (address, port)) for address in self.names.get(host, [host])]

    async def connect(
        self, loop: ProcessLoop, host: str, port: int, protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[Transport, asyncio.BaseProtocol]:
        """Open a connection from a process. Raises ConnectionRefusedError."""
        address = (host, port)
        done: asyncio.Future[bool] = loop.create_future()
        line = self._own_lines.get((loop.name, address)) or self._lines.get(address) or Line()
        link = Link(self, loop, address, line)

        def answer(taken: bool) -> None:
            if not done.done():
                done.set_result(taken)

        def knock() -> None:
            accept = self._listeners.get(address)
            if accept is not None and not loop.dead and not link.ended:
                link.peer = accept(link)
            taken = link.peer is not None
            self.kernel.after(line.latency, lambda: loop.submit(answer, taken))

        if host not in self.silent and (loop.name, host) not in self._cut_off and not loop.dead:
            self.links.append(link)
            self.kernel.after(line.latency, knock)
        try:
            taken = await done
        except BaseException:
            link.ended = True
            link.hang_up()
            raise
        if not taken:
            self.forget(link)
            raise ConnectionRefusedError(111, f"Connect call failed ('{host}', {port})")
        if link.ended:  # cut while it was made
            raise ConnectionResetError(104, "Connection reset by peer")
        protocol = protocol_factory()
        transport = link.transport = Transport(link, protocol, loop)
        protocol.connection_made(transport)
        return transport, protocol

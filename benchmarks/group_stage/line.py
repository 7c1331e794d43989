"""The line between one member and ZooKeeper: adds a round trip's time and counts the requests by their kind.

Strategy: bytes wait in an unbounded queue until they are due, so a delay is latency alone: however much is in flight,
nothing waits longer than it has to (the fault proxy's queue of 16 chunks makes a burst wait twice). Event loops wait in
whole milliseconds, so the delay is split into whole ones: 1 ms is 1 and 0, 5 ms are 3 and 2.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Any, Self

from consumerd.demo.ports import LOOPBACK
from consumerd.testing.fault_proxy import FrameSplitter

#: Codes of ZooKeeper's requests (org.apache.zookeeper.ZooDefs.OpCode), and xids that stand for a kind.
KINDS = {
    1: "create", 2: "delete", 3: "exists", 4: "get", 5: "set", 8: "children", 9: "sync", 11: "ping", 12: "children",
    13: "check", 14: "multi", 15: "create", 18: "unwatch", 19: "create", 22: "multi", 100: "auth", 101: "rewatch",
    105: "rewatch", -11: "close",
}  # fmt: skip
#: The JVM's clients ping; `consumerd.net.zk` asks for a sync, which nothing else does.
HEARTBEATS = ("ping", "sync")


class _End(asyncio.Protocol):
    """One of the two connections of a link: what it receives goes to the other one, `delay` seconds later."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, bytes]] = deque()
        self.transport: Any = None
        self.other: _End | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._pass_on(data)

    def eof_received(self) -> bool:
        self._pass_on(b"")
        return True

    def connection_lost(self, _error: Exception | None) -> None:
        self._pass_on(b"")

    def _pass_on(self, data: bytes) -> None:
        if not self._delay and not self._waiting and self.other is not None:
            self.other.write(data)
            return
        if not self._waiting:
            self._loop.call_later(self._delay, self._forward)
        self._waiting.append((self._loop.time() + self._delay, data))

    def _forward(self) -> None:
        if self.other is None:  # not connected yet
            self._loop.call_later(0.001, self._forward)
            return
        due = []
        now = self._loop.time() + 0.0002
        while self._waiting and self._waiting[0][0] <= now:
            due.append(self._waiting.popleft()[1])
        if due and b"" in due:
            self.other.write(b"".join(due))
            self.other.write(b"")
        elif due:
            self.other.write(b"".join(due))
        if self._waiting:
            self._loop.call_at(self._waiting[0][0], self._forward)

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data) if data else self.transport.close()


class _Client(_End):
    """The member's end: counts."""

    def __init__(self, line: Line) -> None:
        super().__init__(line.delays[0])
        self._line = line
        self._frames = FrameSplitter()
        self._first = True

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._line.adopt(self)

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            if self._first:
                self._first = False
                self._line.counts["connect"] += 1
            else:
                code = int.from_bytes(frame[8:12], "big", signed=True)
                self._line.counts[KINDS.get(code, str(code))] += 1
        super().data_received(data)


class Line:
    """Listens on loopback and forwards to ZooKeeper on `port`; a round trip takes `milliseconds` longer."""

    def __init__(self, port: int, milliseconds: int) -> None:
        self._port = port
        self.delays = ((milliseconds + 1) // 2 / 1000, milliseconds // 2 / 1000)
        #: Requests so far, by kind.
        self.counts: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: list[_End] = []

    @property
    def connect(self) -> str:
        """`host:port` for members."""
        assert self._server is not None
        return f"{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"

    @property
    def heartbeats(self) -> int:
        """How many requests only kept the session alive."""
        return sum(self.counts[kind] for kind in HEARTBEATS)

    def adopt(self, client: _Client) -> None:
        """Connect a member that has come to the server."""
        task = asyncio.get_running_loop().create_task(self._connect(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, client: _Client) -> None:
        server = _End(self.delays[1])
        server.other = client
        self._ends += [client, server]
        try:
            await asyncio.get_running_loop().create_connection(lambda: server, LOOPBACK, self._port)
        except OSError:
            client.transport.abort()
            return
        client.other = server
        if client.transport.is_closing():
            server.write(b"")

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(lambda: _Client(self), LOOPBACK, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for end in self._ends:
            if end.transport is not None:
                end.transport.abort()
        await asyncio.gather(*self._tasks)

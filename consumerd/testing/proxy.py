"""The fault proxy for any test: plain methods around a `consumerd.demo.FaultProxy` on a loop of its own.

Strategy: the proxy itself runs on the loop of a `LoopThread` and is only touched there; so it works on while the test
blocks in a client, and for tests without an event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from consumerd.testing.fault_proxy import Direction, FaultProxy
from consumerd.testing.loop import LoopThread


class LoopbackProxy:
    """Forwards `host`:`port` (of its own, on loopback) to a server, and injects faults.

    `hook` and `frames` as for `FaultProxy`; the hook is called on the loop's thread.
    """

    host = "127.0.0.1"

    def __init__(
        self,
        loop: LoopThread,
        target_host: str,
        target_port: int,
        *,
        hook: Callable[[Direction, bytes], bytes] | None = None,
        frames: bool = False,
    ) -> None:
        self._loop = loop
        self._proxy = FaultProxy(target_host, target_port, hook=hook, frames=frames)

    @property
    def port(self) -> int:
        """The port to which clients connect."""
        return self._proxy.port

    @property
    def connect(self) -> str:
        """`host:port` of the proxy itself."""
        return self._proxy.connect

    @property
    def accepted(self) -> int:
        """Connections since the start."""
        return self._proxy.accepted

    @property
    def open_connections(self) -> int:
        """Connections now."""
        return self._proxy.open_connections

    def forwarded(self, direction: Direction) -> int:
        """Bytes that were forwarded in a direction."""
        return self._proxy.forwarded[direction]

    def start(self) -> None:
        """Listen. Raises OSError when the port is taken."""
        self._loop.run(self._proxy.start())

    def close(self) -> None:
        """Stop listening and end all connections."""
        self._loop.run(self._proxy.close())

    def cut(self, *, rst: bool = False) -> None:
        """End all connections, with FIN or RST; new ones are served."""
        self._loop.call(lambda: self._proxy.cut(rst=rst))

    def refuse(self) -> None:
        """Refuse new connections until `heal`; existing ones continue."""
        self._loop.call(self._proxy.refuse)

    def stall(self, *directions: Direction) -> None:
        """Accept connections and hold back all bytes (of the directions named, else both) until `heal`."""
        self._loop.call(lambda: self._proxy.stall(*directions))

    def delay(self, seconds: float) -> None:
        """Add latency to each direction."""
        self._loop.call(lambda: self._proxy.delay(seconds))

    def blackhole(self, *directions: Direction) -> None:
        """Take bytes (of the directions named, else both) and lose them, until `heal`, which resets the connections."""
        self._loop.call(lambda: self._proxy.blackhole(*directions))

    def half_close(self, direction: Direction) -> None:
        """Send a FIN in one direction of every connection; the other stays open."""
        self._loop.call(lambda: self._proxy.half_close(direction))

    def heal(self) -> None:
        """End all faults; forward the held bytes."""
        self._loop.call(self._proxy.heal)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

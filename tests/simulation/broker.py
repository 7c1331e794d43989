"""A 0.7 broker at the level of its wire protocol, over logs in memory.

Strategy: what a request is answered with is said by `consumerd.testing.memory_broker`, whose logs these are; here are
frames, connections and time. One request of a connection is worked on at a time, as brokers do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from consumerd.testing.memory_broker import MemoryBroker
from consumerd.wire.errors import WireError
from consumerd.wire.v07 import Request, decode_request
from tests.simulation.kernel import Kernel
from tests.simulation.network import Line, Link, Network
from tests.simulation.serving import ServedConnection

#: The cost of a request, in seconds, and of a byte of its answer.
REQUEST_TIME = 0.0001
BYTE_TIME = 1e-9


class SimulatedBroker:
    """One broker; where it listens can be changed with `move`."""

    def __init__(self, kernel: Kernel, network: Network, broker: int, host: str, port: int, line: Line) -> None:
        self.kernel = kernel
        self.id = broker
        self.host, self.port = host, port
        self.store = MemoryBroker()
        self.requests: Counter[str] = Counter()
        #: Called before a request is worked on, and with " done" behind its name before it is answered.
        self.watcher: Callable[[Link, str, Request], None] = lambda link, step, request: None
        self._network = network
        self._line = line
        self._connections: dict[_Connection, None] = {}
        self.start()

    @property
    def address(self) -> str:
        """The broker's value in ZooKeeper."""
        return f"broker-{self.id}:{self.host}:{self.port}"

    def start(self) -> None:
        """Take connections."""
        self._network.listen(self.host, self.port, self._accept, self._line)

    def stop(self) -> None:
        """Refuse connections and end those that are there; the logs stay."""
        self._network.unlisten(self.host, self.port)
        for connection in list(self._connections):
            connection.link.cut()

    def move(self, host: str, port: int, *, silent: bool = False) -> None:
        """Go to another address. `silent`: the old one does not answer any more, instead of closing the connection."""
        if silent:
            self._network.unlisten(self.host, self.port)
            for connection in list(self._connections):
                connection.link.stall()
        else:
            self.stop()
        self.host, self.port = host, port
        self.start()

    def _accept(self, link: Link) -> _Connection:
        connection = _Connection(self, link)
        self._connections[connection] = None
        return connection

    def forget(self, connection: _Connection) -> None:
        """A connection ended."""
        self._connections.pop(connection, None)


class _Connection(ServedConnection):
    def __init__(self, broker: SimulatedBroker, link: Link) -> None:
        super().__init__(link)
        self._broker = broker

    def lost(self) -> None:
        super().lost()
        self._broker.forget(self)

    def serve(self, body: bytes) -> None:
        store = self._broker.store
        try:
            request = decode_request(body)
        except WireError:
            answer: bytes | Exception | None = WireError("it cannot be read")
        else:
            name = type(request).__name__
            self._broker.requests[name] += 1
            self._broker.watcher(self.link, name, request)
            if not self.open:  # the request came too late
                return
            store.requests.clear()
            answer = store.answer(request)
            self._broker.watcher(self.link, f"{name} done", request)
        size = len(answer) if isinstance(answer, bytes) else 0

        def done() -> None:
            if isinstance(answer, Exception):
                self.hang_up()
            else:
                self.answer(b"" if answer is None else len(answer).to_bytes(4, "big") + answer)

        self._broker.kernel.after(REQUEST_TIME + size * BYTE_TIME, done)

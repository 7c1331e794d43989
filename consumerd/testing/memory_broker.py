"""A 0.7 broker in memory, behind the port `consumerd.net.connect.Connector`, for simulations and tests.

    broker = MemoryBroker()
    broker.append("events", 0, b"one", b"two")
    consumer = GroupConsumer(..., backend=V07Backend(broker.connect))

Strategy: requests are decoded and responses encoded as on the wire, but no socket is between: a request is carried out
when it is sent and answered in the next turn of the loop. Logs are byte strings, and all of them is visible at once.
One `MemoryBroker` answers on any address, so it stands for all brokers of a cluster; they share its logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from consumerd.net.errors import ConnectError, ConnectionClosedError
from consumerd.wire.errors import OversizeMessageError, WireError
from consumerd.wire.v07 import (
    EARLIEST,
    LATEST,
    Codec,
    DecodeLimits,
    ErrorCode,
    FetchRequest,
    FetchResponse,
    MultiFetchRequest,
    MultiFetchResponse,
    MultiProduceRequest,
    OffsetsRequest,
    OffsetsResponse,
    ProduceRequest,
    Request,
    check_produced_set,
    decode_request,
    encode_message_set,
)

#: With 0.7.2's max.message.size.
_LIMITS = DecodeLimits(max_message_bytes=1_000_000)


class MemoryBroker:
    """Logs by (topic, partition), with the requests of a 0.7 broker.

    `on_request` sees every request first and may answer in its place: with a body, or with an error, which is raised
    to the client and ends its connection. While `away` is set, no client can connect; `abort` ends connections.
    """

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], bytearray] = {}
        self.on_request: Callable[[Request], bytes | Exception | None] = lambda _: None
        self.requests: list[Request] = []
        self.away = False
        self.connections: set[MemoryConnection] = set()

    def append(self, topic: str, partition: int, *payloads: bytes, magic: int = 1, codec: Codec = Codec.NONE) -> int:
        """Append a message set; where the log ends now. With a codec it is one outer message."""
        return self._log(topic, partition, encode_message_set(payloads, magic=magic, codec=codec))

    def end(self, topic: str, partition: int) -> int:
        """Return the end of a log; 0 without one."""
        return len(self.logs.get((topic, partition), b""))

    def abort(self) -> None:
        """End all connections, as a broker does that dies."""
        for connection in list(self.connections):
            connection.abort()

    async def connect(self, host: str, port: int) -> MemoryConnection:
        """The connector. Raises ConnectError while the broker is unavailable."""
        await asyncio.sleep(0)
        if self.away:
            raise ConnectError(f"cannot connect to broker {host}:{port}; is it running?")
        return MemoryConnection(self)

    def answer(self, request: Request) -> bytes | Exception | None:
        """The body of the response, an error to raise, or None for the requests that are not answered."""
        self.requests.append(request)
        special = self.on_request(request)
        if special is not None:
            return special
        match request:
            case OffsetsRequest():
                return self._offsets(request).encode()[4:]
            case MultiFetchRequest():
                entries = tuple(map(self._fetched, request.fetches))
                return MultiFetchResponse(ErrorCode.NONE, entries).encode()[4:]
            case FetchRequest():
                return self._fetched(request).encode()[4:]
            case MultiProduceRequest():
                return next(filter(None, map(self._produced, request.produces)), None)
            case ProduceRequest():
                return self._produced(request)

    def _log(self, topic: str, partition: int, data: bytes) -> int:
        log = self.logs.setdefault((topic, partition), bytearray())
        log += data
        return len(log)

    def _offsets(self, request: OffsetsRequest) -> OffsetsResponse:
        end = self.end(request.topic, request.partition)
        # A log is one segment.
        found = {EARLIEST: (0,), LATEST: (end, 0) if end else (0,)}.get(request.time, ())
        return OffsetsResponse(ErrorCode.NONE, found[: request.max_number])

    def _fetched(self, request: FetchRequest) -> FetchResponse:
        log = self.logs.get((request.topic, request.partition), bytearray())
        if not 0 <= request.offset <= len(log):
            return FetchResponse(ErrorCode.OFFSET_OUT_OF_RANGE, b"")
        return FetchResponse(ErrorCode.NONE, bytes(log[request.offset : request.offset + request.max_size]))

    def _produced(self, request: ProduceRequest) -> Exception | None:
        """Store a set; a wrong one ends the connection, a message that is too large is dropped (golden notes, 1)."""
        try:
            checked = check_produced_set(request.messages, limits=_LIMITS)
        except OversizeMessageError:
            return None
        except WireError as error:
            return ConnectionClosedError(f"the memory broker refused a message set: {error}", blamed=True)
        self._log(request.topic, max(request.partition, 0), request.messages[: checked.valid_bytes])
        return None


class MemoryConnection:
    """A connection without a socket; see `consumerd.net.connect.Connection`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._ended = asyncio.Event()
        broker.connections.add(self)

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._ended.is_set()

    async def request(self, frame: bytes, *, max_response: int | None = None, timeout: float | None = None) -> bytes:
        """The body of the response. Raises ConnectionClosedError, and the error of the broker's `on_request`."""
        answer = await self._exchange(frame)
        self._require_open()
        if isinstance(answer, Exception):
            self.abort()
            raise answer
        assert answer is not None, "this request has no answer: use `send`"
        return answer

    async def send(self, frame: bytes) -> None:
        """Send a request that is not answered: a refusal shows in nothing but the end of the connection."""
        if isinstance(await self._exchange(frame), Exception):
            self.abort()

    async def _exchange(self, frame: bytes) -> bytes | Exception | None:
        self._require_open()
        answer = self._broker.answer(decode_request(frame[4:]))
        await asyncio.sleep(0)
        return answer

    async def wait_closed(self) -> None:
        """Return when it has ended."""
        await self._ended.wait()

    async def close(self) -> None:
        """End it."""
        self.abort()

    def abort(self) -> None:
        """End it at once."""
        self._broker.connections.discard(self)
        self._ended.set()

    def _require_open(self) -> None:
        """Raise ConnectionClosedError once it has ended."""
        if self.closed:
            raise ConnectionClosedError("the connection in memory was closed", blamed=True)

"""One pipelined connection to a broker: requests are sent as they come, answers arrive in the same order.

Strategy. Kafka 0.7 has no correlation id: an answer belongs to the oldest request that still waits (golden notes, 1);
later brokers send one and keep the order all the same. So the whole state is a queue of waiting futures beside a
`FrameReceiver`, and one rule guards it: *the queue is popped by a complete frame and by nothing else*.

- A request enters the queue in the same step in which its bytes are given to the transport; a lock that is fair by
  order of arrival lets writers through, so concurrent callers keep their order also while the socket is full.
- A **cancelled** request stays in the queue as a tombstone: its late answer is read and dropped in its turn.
- A **timeout** means that the broker is stuck on the oldest request, and everything behind it is stuck as well, so the
  connection is closed. The clock of a request starts when it becomes the oldest: a hundred pipelined fetches over a
  slow line are not a fault, however long the last of them waits. Tombstones are timed too.
- A connection ends once, with one reason: end of file, reset, a frame that cannot be, a timeout, or `close`. All
  waiters fail at that moment; when the broker ended it, the oldest request is `blamed`.

A broker closes its side only to refuse (golden notes, 1: a FIN is the only error PRODUCE has), so a half-closed
connection is treated as closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, cast

from consumerd.base.errors import reason_of
from consumerd.base.settings.processing import FetchSection
from consumerd.base.settings.properties import Positive
from consumerd.base.settings.setting import Bytes, Field, Names, Seconds, Section
from consumerd.net.errors import (
    BadFrameError,
    ClientCertificateError,
    ConnectionClosedError,
    FrameTooLargeError,
    RequestTimeoutError,
    TlsResetError,
    UnexpectedTlsError,
)
from consumerd.net.framing import FrameReceiver
from consumerd.net.tls import certificate_alert
from consumerd.wire.tls import is_tls_alert

#: Every answer of the protocol begins with an int16 error code.
SMALLEST_BODY = 2


class ConnectionSettings(Section):
    """Times in seconds, sizes in bytes. Defaults as in Kafka 0.7.2 where it has the setting (golden notes, 8)."""

    #: Limit for looking the host up and connecting (0.7.2's producer: connect.timeout.ms 5000).
    connect_timeout: Seconds = Field(FetchSection.connect_timeout, names=Names(v07="connect.timeout.ms"))
    #: Limit for the complete answer to the oldest request (socket.timeout.ms 30000).
    socket_timeout: Seconds = Field(FetchSection.socket_timeout, names=Names(v07="socket.timeout.ms"))
    #: Limit for the peer to accept written data when the connection is closed.
    close_timeout: Seconds = 1.0
    #: Largest answer to any request (0.7.2's broker accepts requests up to 100 MiB).
    max_frame_bytes: Bytes = 128 * 1024 * 1024
    #: Written bytes that may wait in user space before writers wait (send: buffer.size 102400).
    write_buffer: Positive = Field(256 * 1024, names=Names(v07="buffer.size"))
    #: SO_RCVBUF; None leaves it to the kernel, whose automatic sizing beats 0.7.2's fixed 64 KiB on fast lines.
    receive_buffer: Positive | None = None


class _Waiting(NamedTuple):
    settle: Callable[[bytes | ConnectionClosedError], object]
    min_response: int
    max_response: int
    timeout: float


#: One of its fields, without a call of Python code.
_made_waiting: Final = partial(tuple.__new__, _Waiting)


class _Reason(NamedTuple):
    """The reason for a connection's end: the error of the oldest request, and the message for all others."""

    oldest: ConnectionClosedError | None
    others: str


class BrokerConnection(asyncio.BufferedProtocol):
    """An open connection; made by `connect`. Use from the loop that made it.

    The methods that asyncio calls (`connection_made` and so on) are for asyncio alone.
    """

    #: Not a method, which would be one more call for each read.
    get_buffer: Callable[[int], memoryview]  # type: ignore[assignment]

    def __init__(self, host: str, port: int, settings: ConnectionSettings, *, identity: str | None = None) -> None:
        """`identity`: over TLS, what to check where the broker refuses the client's certificate."""
        self.host = host
        self.port = port
        self._settings = settings
        self._identity = identity
        #: Whether the broker has sent anything yet.
        self._heard = False
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReceiver(self._admit, self._deliver)
        self.get_buffer = self._frames.free
        self._waiting: deque[_Waiting] = deque()
        self._transport: asyncio.Transport | None = None
        self._reason: _Reason | None = None
        self._lost = asyncio.Event()
        self._turn = asyncio.Lock()
        self._writable = asyncio.Event()
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """`host:port`, as in messages."""
        return f"{self.host}:{self.port}"

    @property
    def closed(self) -> bool:
        """Whether the connection has ended; requests then fail at once."""
        return self._reason is not None

    @property
    def in_flight(self) -> int:
        """Number of requests without an answer, abandoned ones included."""
        return len(self._waiting)

    async def request(
        self,
        frame: bytes,
        *,
        min_response: int = SMALLEST_BODY,
        max_response: int | None = None,
        timeout: float | None = None,
    ) -> bytes:
        """Send a whole frame (with its length) and return the body of its answer, without the length.

        `min_response` and `max_response` bound the body in bytes and `timeout` the seconds that the broker may take
        once this is the oldest request; the latter two default to the connection's settings. May be cancelled at any
        time: the others are not disturbed. Raises ConnectionClosedError, RequestTimeoutError, BadFrameError,
        FrameTooLargeError.
        """
        ceiling = self._settings.max_frame_bytes
        answered: asyncio.Future[bytes] = self._loop.create_future()
        waiting = _Waiting(
            partial(_resolve, answered),
            min_response,
            ceiling if max_response is None else min(max_response, ceiling),
            self._settings.socket_timeout if timeout is None else timeout,
        )
        async with self._turn:
            self._write(await self._room(), frame, waiting)
        return await answered

    def post(self, frame: bytes, settle: Callable[[bytes | ConnectionClosedError], object], *, timeout: float) -> bool:
        """As `request`, at once and without a task; return False, and send nothing, if that would have to wait.

        `settle` is called once, with the body of the response or the reason of the connection's end, as soon as that
        is known, by the reader of the connection: it must not raise.
        """
        transport = self._transport
        if self._reason is not None or transport is None or self._turn.locked() or not self._writable.is_set():
            return False
        self._write(transport, frame, _made_waiting((settle, SMALLEST_BODY, self._settings.max_frame_bytes, timeout)))
        return True

    def _write(self, transport: asyncio.Transport, frame: bytes, waiting: _Waiting) -> None:
        if not self._waiting:
            self._start_clock(waiting)
        self._waiting.append(waiting)
        transport.write(frame)

    async def send(self, frame: bytes) -> None:
        """Send a frame that has no answer (PRODUCE, MULTIPRODUCE); returns when the write buffer has room again.

        Returning does not mean that the broker accepted it: a refusal shows as the connection's end. A broker that
        accepts no byte for `socket_timeout` seconds hangs, and the connection is closed. Raises ConnectionClosedError.
        """
        async with self._turn:
            transport = self._open() if self._writable.is_set() else await self._room()
            transport.write(frame)
            if not self._writable.is_set() or self.closed:
                await self._room()

    async def wait_closed(self) -> None:
        """Return when the socket is gone."""
        await self._lost.wait()

    async def close(self) -> None:
        """Flush written data, then close; data that the peer does not accept within `close_timeout` is dropped.

        Requests that still wait fail at once. Never raises; may be called again.
        """
        self._end(_Reason(None, f"the connection to broker {self.address} was closed by us"))
        transport = self._transport
        if transport is None:
            return
        transport.close()
        try:
            async with asyncio.timeout(self._settings.close_timeout):
                await self._lost.wait()
        except TimeoutError:
            pass  # aborted below: the peer does not read
        finally:
            self._abort_transport()

    def abort(self) -> None:
        """Drop the connection without flushing, for instance when a body does not parse."""
        self._break(_Reason(None, f"the connection to broker {self.address} was dropped by us"))

    # Methods that asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.closed:  # dropped while the connection was being made
            self._transport.abort()
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(self._loss(exc))
        self._lost.set()

    def _loss(self, exc: Exception | None) -> _Reason:
        if self._identity is not None and (alert := certificate_alert(exc)):
            text = refused_certificate(self.address, alert, self._identity)
            return _Reason(ClientCertificateError(text, blamed=True), text)
        detail = f" ({reason_of(exc)})" if exc else ""
        text = f"the connection to broker {self.address} was lost{detail}; is the broker still running?"
        if self._identity is not None and not self._heard and isinstance(exc, ConnectionError):
            text += f" It may have refused the client's certificate: {self._identity}"
            return _Reason(TlsResetError(text, blamed=True), text)
        return _Reason(ConnectionClosedError(text, blamed=True), text)

    def eof_received(self) -> None:
        text = f"broker {self.address} closed the connection; its log says why"
        self._break(_Reason(ConnectionClosedError(text, blamed=True), text))

    def pause_writing(self) -> None:
        if not self.closed:
            self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def buffer_updated(self, nbytes: int) -> None:
        if self._reason is not None:
            return
        self._heard = True
        try:
            self._frames.received(nbytes)
        except BadFrameError as error:
            self._break(_Reason(error, f"the connection to broker {self.address} was closed after a bad frame"))

    # The queue.

    def _admit(self, size: int) -> None:
        if not self._waiting:
            raise BadFrameError(
                f"broker {self.address} sent {size} bytes without a request; is it a Kafka broker?",
                blamed=True,
            )
        if size < self._waiting[0].min_response:
            raise BadFrameError(
                f"broker {self.address} sent a frame of {size} bytes, an invalid size; is it a Kafka broker?",
                blamed=True,
            )
        limit = self._waiting[0].max_response
        if size > limit:
            if is_tls_alert(size):
                raise UnexpectedTlsError(
                    f"broker {self.address} answered with TLS on a plaintext connection; is this its TLS listener?",
                    blamed=True,
                )
            raise FrameTooLargeError(
                f"broker {self.address} announced a response of {size} bytes where at most {limit} were requested;"
                " is it a Kafka broker?",
                blamed=True,
            )

    def _deliver(self, body: memoryview) -> None:
        waiting = self._waiting
        settle = waiting.popleft().settle
        if not waiting:
            self._frames.most = -1
        settle(bytes(body))
        if waiting:
            self._start_clock(waiting[0])

    def _open(self) -> asyncio.Transport:
        if self._reason is not None:
            raise ConnectionClosedError(self._reason.others)
        assert self._transport is not None
        return self._transport

    async def _room(self) -> asyncio.Transport:
        """Return the transport when its write buffer has room. The wait has its own limit: no request may be timed."""
        while not self._writable.is_set():
            transport, seconds = self._open(), self._settings.socket_timeout
            unsent = transport.get_write_buffer_size()
            try:
                async with asyncio.timeout(seconds):
                    await self._writable.wait()
            except TimeoutError:
                if transport.get_write_buffer_size() >= unsent:
                    late = f"broker {self.address} accepted no data for {seconds:g} s; it hangs or is overloaded"
                    self._break(_Reason(RequestTimeoutError(late, blamed=True), late))
        return self._open()

    # The clock of the oldest request: one timer, moved lazily, instead of one per request.

    def _start_clock(self, oldest: _Waiting) -> None:
        self._frames.least, self._frames.most = oldest.min_response, oldest.max_response
        self._deadline = self._loop.time() + oldest.timeout
        if self._timer is not None and self._timer.when() > self._deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._ring)
            return
        seconds = self._waiting[0].timeout
        late = f"broker {self.address} did not answer within {seconds:g} s; it hangs or is overloaded"
        others = f"the connection to broker {self.address} was closed: an older request got no answer in {seconds:g} s"
        self._break(_Reason(RequestTimeoutError(late, blamed=True), others))

    # The end.

    def _break(self, reason: _Reason) -> None:
        self._end(reason)
        self._abort_transport()

    def _abort_transport(self) -> None:
        # asyncio's transports cannot be aborted any more once they have flushed the rest and closed.
        if self._transport is not None and not self._lost.is_set():
            self._transport.abort()

    def _end(self, reason: _Reason) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        oldest = reason.oldest
        while self._waiting:
            self._waiting.popleft().settle(oldest or ConnectionClosedError(reason.others))
            oldest = None
        self._writable.set()  # waiting writers find the connection closed


def refused_certificate(address: str, alert: str, identity: str) -> str:
    """The words for an alert about the client's certificate; `identity` says what to check."""
    return f"broker {address} refused the client's certificate (TLS alert {alert}): {identity}"


def _resolve(future: asyncio.Future[bytes], outcome: bytes | ConnectionClosedError) -> None:
    """Give a request its outcome, unless it was abandoned."""
    if future.done():
        return
    if isinstance(outcome, bytes):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
        future.exception()  # retrieved: a waiter that is cancelled at this moment must not leave a warning

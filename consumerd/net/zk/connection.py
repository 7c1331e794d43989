"""One connection to one ZooKeeper server: frames, outstanding requests, and an end that is detected at once.

Strategy: aiozk packs and reads rare requests, `requests` and `multi` the rest; the connection itself is our own, an
asyncio protocol, for these reasons. aiozk's first asks `srvr` on a throw-away connection, without a time limit. It
takes a FIN for silence, so that outstanding calls hang until the session is repaired. It spins on an end of file in the
middle of a reply. It does not support TLS. It sends requests that the server refuses by dropping the connection, and
logs a traceback when a socket has just been closed. Here a connection ends in one place, `kill`, which is synchronous:
no reply can be waited for after it.

The requests of one turn of the loop are sent in one write, as each write is a system call: a request is written at once
if no other is outstanding, else at the end of the turn. Heartbeats (`write`) also send the requests that wait for that.
Replies are read and delivered as they arrive, without a task in between, and one timer watches over the answers of all
requests.

Bytes from the socket are hostile: any invalid ones end the connection with a reason, and nothing else is raised.
"""

from __future__ import annotations

import asyncio
import math
import ssl as tls
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

import structlog
from aiozk import protocol

from consumerd.base.errors import reason_of
from consumerd.net.zk.connect_string import ZooKeeperHost
from consumerd.net.zk.errors import THROTTLED, BadReply, ConnectionLost, RequestTooLarge, ServerError

_SIZE = struct.Struct("!i")
_REQUEST_HEADER = struct.Struct("!ii")  # size, xid
_REPLY_HEADER = struct.Struct("!iqi")  # xid, zxid, error code
_LAST_XID = 0x7FFFFFFF
#: Seconds by which a timer may fire early.
_TIMER_SLACK = 0.001
#: Seconds before a throttled request is repeated for the first time; each later pause is twice as long.
FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
#: Seconds between log lines about throttled requests.
_THROTTLE_LOGGED_EVERY: Final = 60.0

log = structlog.get_logger(__name__)


class ConnectionEnded(Exception):
    """The connection is over; `str()` says why. Never leaves this package."""


class HandshakeClosed(ConnectionEnded):
    """The server accepted the connection and closed it instead of answering the handshake."""


class NeverSent(ConnectionLost):
    """The connection ended before the request was written."""


class ConnectionLimits(NamedTuple):
    """The limits of one connection. Sizes are in bytes, without the 4-byte length of a frame."""

    #: ZooKeeper's `jute.maxbuffer`: a larger request makes the server drop the connection.
    request: int = 0xFFFFF
    #: A reply above this is taken for garbage (lists of children may be far larger than a request).
    reply: int = 64 << 20
    #: Requests in flight; the rest waits here, where heartbeats can overtake it. More would be faster only with servers
    #: far away, and a server with requests of many members at once would answer heartbeats late.
    outstanding: int = 64


class _Call:
    """One request and its answer. `deadline` is in the loop's time; infinite for none, or as long as it is not sent."""

    __slots__ = ("answer", "body", "deadline", "opcode", "read", "sent", "special_xid")

    def __init__(self, request: Any, body: bytes, answer: asyncio.Future[Any]) -> None:
        self.body = body
        self.answer = answer
        self.opcode: int = request.opcode
        self.special_xid: int | None = request.special_xid
        #: Reads the reply from an offset of the frame on; None for aiozk's requests.
        self.read: Callable[[bytes, int], Any] | None = getattr(request, "read", None)
        self.sent = False
        self.deadline = math.inf


class ZooKeeperConnection(asyncio.Protocol):
    """Open with `connect`, introduce with `handshake`, then run `read_loop` in a task and `request` (or `write`).

    `address` is one of those that the host's name stands for.
    """

    def __init__(
        self,
        host: ZooKeeperHost,
        address: str,
        *,
        ssl: tls.SSLContext | None,
        limits: ConnectionLimits,
        on_watch: Callable[[str], None],
        on_end: Callable[[ZooKeeperConnection], None],
    ) -> None:
        self.host = host.name
        self.closing = False
        self.last_zxid = 0
        self.end_reason = ""
        #: Seconds within which a request is answered; the session timeout, once there is one.
        self.answer_limit: float | None = None
        #: Time of the last frame, in the loop's time.
        self.heard = 0.0
        #: The requests that were sent and not answered, by xid.
        self.pending: dict[int, _Call] = {}
        self.where = host
        self._address = address
        self._ssl = ssl
        self._limits = limits
        self._on_watch = on_watch
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.Event()
        self._ended = asyncio.Event()
        #: The transport's error, or ours, that ended the connection.
        self._lost_by: Exception | None = None
        self._defect: Exception | None = None
        #: The future of the handshake's reply.
        self._greeting: asyncio.Future[bytes] | None = None
        #: The start of a frame, and the number of bytes needed to continue.
        self._partial = bytearray()
        self._needed = 0
        self._xid = 0
        #: The number of requests that may still be sent, and those that wait for it.
        self._turns = limits.outstanding
        self._waiting: deque[_Call] = deque()
        #: Frames to write at the end of this turn of the loop.
        self._unwritten: list[bytes] = []
        self._flush_planned = False
        self._watchdog: asyncio.TimerHandle | None = None
        #: Called when the server drops a request to shed load, with the seconds until it is repeated.
        self.on_throttled: Callable[[float], None] | None = None
        #: Time of the last log line about throttled requests.
        self._throttle_logged = -math.inf

    async def connect(self) -> None:
        """Open the socket. Raises OSError (also for TLS)."""
        name = self.where.name if self._ssl else None
        await self._loop.create_connection(
            lambda: self, self._address, self.where.port, ssl=self._ssl, server_hostname=name
        )

    async def handshake(self, request: Any) -> Any:
        """Send aiozk's ConnectRequest, return its ConnectResponse. Raises HandshakeClosed, BadReply, OSError."""
        if self.closing or self._transport is None:
            raise self._lost_by or HandshakeClosed(f"{self.where} closed the connection before the handshake")
        self._greeting = self._loop.create_future()
        payload = request.serialize()
        self._transport.write(_SIZE.pack(len(payload)) + payload)
        frame = await self._greeting
        response = self._parse(protocol.ConnectResponse.deserialize, frame)
        if response.session_id and response.timeout <= 0:
            raise BadReply(f"{self.where} offers a session timeout of {response.timeout} ms")
        self.answer_limit = response.timeout / 1000
        return response

    # -- requests

    async def request(self, request: Any) -> Any:
        """Send a request in its turn, and await its answer: the value that the request reads, or aiozk's response.

        A request that the server drops to shed load (ThrottledOp) is repeated, for as long as an answer may take.

        Raises ServerError, RequestTooLarge, ConnectionLost (also for an answer that does not come within the session
        timeout, though the server responds: 3.3 drops unknown requests), or NeverSent when the connection ended
        before the turn.
        """
        until, pause = math.inf, FIRST_PAUSE
        while True:
            try:
                return await self._request(request)
            except ServerError as error:
                now = self._loop.time()
                until = min(until, now + (self.answer_limit or 0.0))
                if error.code != THROTTLED or now + pause > until:
                    raise
            self.note_throttled(pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _request(self, request: Any) -> Any:
        call = self._call(request)
        if self._turns:
            self._turns -= 1
            self._send(call)
        else:
            self._waiting.append(call)
        try:
            return await call.answer
        finally:
            if call.sent:
                self._next_turn()

    def note_throttled(self, pause: float) -> None:
        """Report that the server sheds load, and that its client pauses; log it once in a while."""
        if self.on_throttled is not None:
            self.on_throttled(pause)
        now = self._loop.time()
        if now >= self._throttle_logged + _THROTTLE_LOGGED_EVERY:
            self._throttle_logged = now
            log.warning("requests_throttled", server=str(self.where), reason="ThrottledOp: the server sheds load")

    def write(self, request: Any) -> asyncio.Future[Any]:
        """Write a request at once, past all that wait for their turn; errors as `request`, some of them at once."""
        call = self._call(request)
        self._transmit(call)
        self._flush()
        return call.answer

    def _call(self, request: Any) -> _Call:
        if self.closing:
            raise NeverSent(self._loss())
        body = request.serialize()
        size = _SIZE.size + len(body)
        if size > self._limits.request:
            raise RequestTooLarge(size, self._limits.request)
        return _Call(request, body, self._loop.create_future())

    def _send(self, call: _Call) -> None:
        """Send a request that has its turn."""
        if self.answer_limit is not None:
            call.deadline = self._loop.time() + self.answer_limit
            if self._watchdog is None:
                self._watchdog = self._loop.call_at(call.deadline, self._give_up)
        alone = not self.pending
        self._transmit(call)
        if alone:
            self._flush()
        else:
            self._plan_flush()

    def _transmit(self, call: _Call) -> None:
        self._xid = self._xid % _LAST_XID + 1
        xid = call.special_xid or self._xid
        if call.special_xid and xid in self.pending:
            raise RuntimeError(f"a request of type {call.opcode} has no xid of its own: one at a time")
        call.sent = True
        self.pending[xid] = call
        self._unwritten.append(_REQUEST_HEADER.pack(_SIZE.size + len(call.body), xid) + call.body)

    def _next_turn(self) -> None:
        """Send the next waiting request, because one has ended."""
        while self._waiting and not self.closing:
            call = self._waiting.popleft()
            if not call.answer.done():
                self._send(call)
                return
        self._turns += 1

    def _plan_flush(self) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush_planned_frames)

    def _flush_planned_frames(self) -> None:
        self._flush_planned = False
        self._flush()

    def _flush(self) -> None:
        """Write the frames that are not written yet. For callers that await answers they count as written before."""
        frames = self._unwritten
        if not frames or self.closing or self._transport is None:
            return
        self._unwritten = []
        try:
            self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
        except (OSError, RuntimeError) as error:  # uvloop raises RuntimeError on a transport that has just been closed
            self.kill(reason_of(error))  # which fails the answers, too

    def _give_up(self) -> None:
        """Fail the requests whose time for an answer is over, and set the timer for the next ones."""
        self._watchdog = None
        now = self._loop.time()
        following = math.inf
        for call in self.pending.values():
            if call.answer.done():
                continue
            if call.deadline - now < _TIMER_SLACK:
                call.answer.set_exception(
                    ConnectionLost(
                        f"{self.where} did not answer a request of type {call.opcode} within {self.answer_limit:g} s"
                    )
                )
            else:
                following = min(following, call.deadline)
        if following < math.inf:
            self._watchdog = self._loop.call_at(following, self._give_up)

    # -- the end

    async def read_loop(self) -> None:
        """Wait for the connection's end, and end it when cancelled. Always raises; ConnectionEnded, or a defect."""
        try:
            await self._ended.wait()
        finally:
            self.kill("the connection is not used any more")
        if self._defect is not None:
            raise self._defect
        raise ConnectionEnded(self.end_reason)

    def kill(self, reason: str) -> None:
        """End the connection: outstanding calls fail, the owner is notified, the socket is closed. Idempotent."""
        if self.closing:
            return
        self.closing = True
        self.end_reason = reason
        self._ended.set()
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(HandshakeClosed(f"the connection to {self.where} ended: {reason}"))
        sent, self.pending = self.pending, {}
        for call in sent.values():
            if not call.answer.done():
                call.answer.set_exception(ConnectionLost(self._loss()))
        for call in self._waiting:
            if not call.answer.done():
                call.answer.set_exception(NeverSent(self._loss()))
        self._waiting.clear()
        self._unwritten.clear()
        if self._transport is not None:
            self._transport.abort()
        self._on_end(self)

    def explain(self, circumstances: str) -> None:
        """Add to the reason of the end, which must have come, what was going on, as the owner's log will show it."""
        self.end_reason = f"{self.end_reason} {circumstances}"

    def _loss(self) -> str:
        return f"the connection to ZooKeeper at {self.where} was lost: {self.end_reason}"

    async def wait_closed(self) -> None:
        """Return when the socket is really closed (after `kill`)."""
        if self._transport is not None:
            await self._closed.wait()

    # -- what the transport reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def eof_received(self) -> None:
        """The server closed its side, in the middle of a reply or not."""
        self._lose(
            "the server closed the connection",
            HandshakeClosed(f"{self.where} closed the connection during the handshake"),
        )

    def connection_lost(self, error: Exception | None) -> None:
        self._closed.set()
        if error is None:
            self.eof_received()
        else:
            self._lose(reason_of(error), error)

    def data_received(self, data: bytes) -> None:
        """Deliver replies and watch events, in the server's order."""
        if self.closing:
            return
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed:
                return
            data, self._partial = bytes(self._partial), bytearray()
        try:
            rest = self._take_frames(data)
        except BadReply as error:
            self._lose(reason_of(error), error)
            return
        except Exception as error:  # a defect, which `read_loop` raises where it is handled
            self._defect = error
            self._lose(reason_of(error), error)
            return
        self._partial += rest
        # After the tasks that the answers have just woken: their requests are sent together.
        self._plan_flush()

    def _lose(self, reason: str, error: Exception) -> None:
        if self.closing:
            return
        self._lost_by = error
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(error)
        self.kill(reason)

    # -- reading

    def _take_frames(self, data: bytes) -> bytes:
        """Deliver all complete frames; return the rest."""
        position, end = 0, len(data)
        while end - position >= _SIZE.size and not self.closing:
            (size,) = _SIZE.unpack_from(data, position)
            if not 0 <= size <= self._limits.reply:
                raise BadReply(f"{self.where} sent a frame of {size} bytes, which is not ZooKeeper's protocol")
            begin = position + _SIZE.size
            if begin + size > end:
                self._needed = _SIZE.size + size
                return data[position:]
            position = begin + size
            self.heard = self._loop.time()
            self._deliver(data[begin:position])
        self._needed = _SIZE.size
        return data[position:]

    def _deliver(self, frame: bytes) -> None:
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_result(frame)
            return
        if len(frame) < _REPLY_HEADER.size:
            raise BadReply(f"{self.where} sent a reply of {len(frame)} bytes, shorter than its header")
        xid, zxid, code = _REPLY_HEADER.unpack_from(frame)
        if xid == protocol.WATCH_XID:
            event = self._parse(protocol.WatchEvent.deserialize, frame[_REPLY_HEADER.size :])
            if event.path:
                self._on_watch(event.path)
            return
        call = self.pending.get(xid)
        if call is None:
            raise BadReply(f"{self.where} answered request {xid}, which was never sent")
        self.last_zxid = max(self.last_zxid, zxid)
        result = None if code else self._parse_reply(call, frame)  # until it is read, it would fail with the connection
        del self.pending[xid]
        if call.answer.done():
            return  # the caller was cancelled
        if code:
            call.answer.set_exception(ServerError(code))
        else:
            call.answer.set_result(result)

    def _parse_reply(self, call: _Call, frame: bytes) -> Any:
        if call.read is None:
            return self._parse(protocol.response_xref[call.opcode].deserialize, frame[_REPLY_HEADER.size :])
        try:
            return call.read(frame, _REPLY_HEADER.size)
        except (struct.error, ValueError) as error:
            raise self._unreadable(error) from error

    def _parse(self, deserialize: Callable[[bytes], Any], payload: bytes) -> Any:
        try:
            return deserialize(payload)
        except Exception as error:  # aiozk's readers raise errors of many types: struct, unicode, index, type errors
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> BadReply:
        return BadReply(f"{self.where} sent a reply that cannot be read: {error!r}")

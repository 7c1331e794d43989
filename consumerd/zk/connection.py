"""One connection to one ZooKeeper server: aiozk's framing and bookkeeping, with an end that is detected at once.

Strategy: aiozk's `Connection` keeps the map of outstanding requests; opening, writing, reading and ending are our own,
for these reasons. The library first asks `srvr` on a throw-away connection, without a time limit. It takes a FIN for
silence, so that outstanding calls hang until the session is repaired. It spins on an end of file in the middle of a
reply. It knows no TLS. It sends what the server will refuse by dropping the connection, and logs a traceback where a
socket has just gone. Here a connection ends in one place, `kill`, which is synchronous: no reply can be waited for
after it.

Bytes from the socket are hostile: whatever they are, the connection ends with a reason and nothing else is raised.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from aiozk import protocol
from aiozk.connection import Connection as AiozkConnection

from consumerd.errors import reason_of
from consumerd.zk.errors import BadReply, ConnectionLost, RequestTooLarge, ServerError
from consumerd.zk.multi import first_failure

if TYPE_CHECKING:
    import ssl as tls
    from collections.abc import Callable

    from consumerd.zk.connect_string import ZooKeeperHost

_SIZE = struct.Struct("!i")
_REPLY_HEADER = struct.Struct("!iqi")  # xid, zxid, error code
_LAST_XID = 0x7FFFFFFF
_MULTI = 14


class ConnectionEnded(Exception):
    """The connection is over; `str()` says why. Never leaves this package."""


class HandshakeClosed(ConnectionEnded):
    """The server accepted the connection and closed it instead of answering the handshake."""


class NeverSent(ConnectionLost):
    """The connection ended before the request was written."""


class ConnectionLimits(NamedTuple):
    """What one connection takes. Sizes are in bytes, without the 4-byte length of a frame."""

    #: ZooKeeper's `jute.maxbuffer`: a larger request makes the server drop the connection.
    request: int = 0xFFFFF
    #: A reply above this is taken for garbage (lists of children may be far larger than a request).
    reply: int = 64 << 20
    #: This many requests may be on their way; the rest waits here, where heartbeats can overtake it. More would be no
    #: faster but for servers far away, and a server that many members ask at once would answer heartbeats late.
    outstanding: int = 64


class Connection(AiozkConnection):  # type: ignore[misc]
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
        on_end: Callable[[Connection], None],
    ) -> None:
        super().__init__(host.name, host.port, None, None)
        self.closing = False
        self.session_id = 0
        self.last_zxid = 0
        self.end_reason = ""
        #: Seconds within which a request is answered; the session timeout, once there is one.
        self.answer_limit: float | None = None
        #: When the last frame came, in the loop's time.
        self.heard = 0.0
        self._where = host
        self._address = address
        self._ssl = ssl
        self._limits = limits
        self._on_watch = on_watch
        self._on_end = on_end
        self._xid = 0
        self._turn = asyncio.Semaphore(limits.outstanding)

    async def connect(self) -> None:
        """Open the socket. Raises OSError (also for TLS)."""
        name = self._where.name if self._ssl else None
        self.reader, self.writer = await asyncio.open_connection(
            self._address, self._where.port, ssl=self._ssl, server_hostname=name
        )

    async def handshake(self, request: Any) -> Any:
        """Send aiozk's ConnectRequest, return its ConnectResponse. Raises HandshakeClosed, BadReply, OSError."""
        payload = request.serialize()
        self.writer.write(_SIZE.pack(len(payload)) + payload)
        try:
            frame = await self._read_frame()
        except asyncio.IncompleteReadError as error:
            raise HandshakeClosed(f"{self._where} closed the connection during the handshake") from error
        response = self._parse(protocol.ConnectResponse.deserialize, frame)
        if response.session_id and response.timeout <= 0:
            raise BadReply(f"{self._where} offers a session timeout of {response.timeout} ms")
        self.session_id = response.session_id
        self.answer_limit = response.timeout / 1000
        return response

    async def request(self, request: Any) -> Any:
        """Write a request when its turn comes, and await aiozk's response (for a multi: `first_failure`).

        Raises ServerError, RequestTooLarge, ConnectionLost (also for an answer that does not come within the session
        timeout, though the server is well: 3.3 drops what it does not know), or NeverSent when the connection ended
        before the turn.
        """
        async with self._turn:
            if self.closing:
                raise NeverSent(self._loss())
            answer = self.write(request)
            limit = asyncio.timeout(self.answer_limit)
            try:
                async with limit:
                    return await answer
            except TimeoutError:
                if not limit.expired():
                    raise
                raise ConnectionLost(
                    f"{self._where} did not answer a request of type {request.opcode} within {self.answer_limit:g} s"
                ) from None

    def write(self, request: Any) -> asyncio.Future[Any]:
        """Write a request at once, past all that wait for their turn; errors as `request`, some of them at once."""
        if self.closing:
            raise NeverSent(self._loss())
        body = request.serialize()
        size = _SIZE.size + len(body)
        if size > self._limits.request:
            raise RequestTooLarge(size, self._limits.request)
        self._xid = self._xid % _LAST_XID + 1
        xid = request.special_xid or self._xid
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.opcode_xref[xid] = request.opcode
        if xid in protocol.SPECIAL_XIDS:
            self.pending_specials[xid].append(answer)
        else:
            self.pending[xid] = answer
        try:
            self.writer.write(_SIZE.pack(size) + _SIZE.pack(xid) + body)
        except (OSError, RuntimeError) as error:  # uvloop raises RuntimeError on a transport that has just been closed
            self.kill(reason_of(error))  # which fails the answer, too
        return answer

    async def read_loop(self) -> None:
        """Hand replies and watch events out, in the server's order. Always ends by raising ConnectionEnded."""
        reason = "the server closed the connection"
        loop = asyncio.get_running_loop()
        try:
            while True:
                frame = await self._read_frame()
                self.heard = loop.time()
                self._deliver(frame)
        except asyncio.IncompleteReadError:
            pass  # an end of file; in the middle of a reply or not makes no difference
        except (OSError, BadReply) as error:
            reason = reason_of(error)
        finally:
            self.kill(reason)
        raise ConnectionEnded(self.end_reason)

    def kill(self, reason: str) -> None:
        """End the connection: outstanding calls fail, the owner is notified, the socket is closed. Idempotent."""
        if self.closing:
            return
        self.closing = True
        self.end_reason = reason
        self.abort()
        if self.writer is not None:
            self.writer.transport.abort()
        self._on_end(self)

    def abort(self, exception: object = None) -> None:
        """Fail what is outstanding (aiozk calls this when a write fails)."""
        for future in self.drain_all_pending():
            if not future.done():
                future.set_exception(ConnectionLost(self._loss()))

    def _loss(self) -> str:
        reason = self.end_reason or "writing failed"
        return f"the connection to ZooKeeper at {self._where} was lost: {reason}"

    async def wait_closed(self) -> None:
        """Return when the socket is really closed (after `kill`)."""
        if self.writer is not None:
            try:
                await self.writer.wait_closed()
            except OSError:
                return  # `kill` has reported the reason

    async def _read_frame(self) -> bytes:
        (size,) = _SIZE.unpack(await self.reader.readexactly(_SIZE.size))
        if not 0 <= size <= self._limits.reply:
            raise BadReply(f"{self._where} sent a frame of {size} bytes, which is not ZooKeeper's protocol")
        frame: bytes = await self.reader.readexactly(size)
        return frame

    def _deliver(self, frame: bytes) -> None:
        if len(frame) < _REPLY_HEADER.size:
            raise BadReply(f"{self._where} sent a reply of {len(frame)} bytes, shorter than its header")
        xid, zxid, code = _REPLY_HEADER.unpack_from(frame)
        payload = frame[_REPLY_HEADER.size :]
        if xid == protocol.WATCH_XID:
            event = self._parse(protocol.WatchEvent.deserialize, payload)
            if event.path:
                self._on_watch(event.path)
            return
        opcode = self.opcode_xref.pop(xid, None)
        waiting = self.pending_specials.get(xid)
        future = waiting.pop() if waiting else self.pending.pop(xid, None)
        if future is None:
            raise BadReply(f"{self._where} answered request {xid}, which was never sent")
        self.last_zxid = max(self.last_zxid, zxid)
        try:
            result = None if code else self._parse_reply(opcode, payload)
        except BadReply:
            self.pending[xid] = future  # it fails with the connection
            raise
        if future.done():
            return  # the caller was cancelled
        if code:
            future.set_exception(ServerError(code))
        else:
            future.set_result(result)

    def _parse_reply(self, opcode: int | None, payload: bytes) -> Any:
        if opcode == _MULTI:
            return first_failure(payload)
        return self._parse(protocol.response_xref[opcode].deserialize, payload)

    def _parse(self, deserialize: Callable[[bytes], Any], payload: bytes) -> Any:
        try:
            return deserialize(payload)
        except Exception as error:  # aiozk's readers raise whatever comes up: struct, unicode, index, type errors
            raise BadReply(f"{self._where} sent a reply that cannot be read: {error!r}") from error

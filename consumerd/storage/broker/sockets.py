"""Raw non-blocking sockets on the event loop: waiting for readiness, reading frames, sending bytes and file ranges.

Strategy: fetches go from the page cache to the socket by `os.sendfile`, which needs the bare descriptor; asyncio's
transports would claim it, and uvloop has no `sock_sendfile`. So a connection is a plain socket, every system call is
tried at once and only when it would block does the task wait for the loop's readiness callback. Works the same under
asyncio and uvloop, and a client that stalls costs a sleeping task, nothing else: `rest` releases its buffer.
Data outside the page cache is read by a thread first, because `os.sendfile` would wait for the disk on the loop.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from functools import partial
from typing import cast

from consumerd.storage import SegmentSlice
from consumerd.storage.broker.errors import RequestRefusedError
from consumerd.storage.broker.memory import RequestMemory
from consumerd.storage.broker.stats import BrokerStats

#: First size of a connection's read buffer: room for requests of consumers. Producers make it grow at once.
_BUFFER = 1 << 10
#: A buffer larger than this is released when the connection becomes idle.
_KEEP = 1 << 18
#: Of a request that is larger than the first of these, no more is read than the second one after its end: what
#: follows it in the buffer must be moved to the front.
_LONG, _AHEAD = 1 << 16, 1 << 10
#: A buffer grows by at most this at a time: the kernel clears each page of it.
_GROW = 1 << 22
#: Work for one client before the others get their turn, in bytes read and sent.
_TURN = 1 << 22
#: Least work of each part of an answer, in bytes: a lookup and its system calls take as long as copying these.
_PART = 1 << 14
#: Small parts are joined up to about this many bytes, then sent: an answer of thousands costs neither a call for each
#: nor memory for all.
_JOIN = 1 << 17
#: Most bytes of one sendfile call: bounds how long it can hold the loop.
_SENDFILE = 1 << 20
#: Small file ranges are copied into one send with their header: cheaper than two system calls with a partial packet.
_COPY = 1 << 13
#: Bytes that a connection may still receive after the broker began to stop.
_STOP_BYTES = 1 << 22
#: Bytes to discard when closing on a client that still sends, so that it sees our FIN rather than a reset.
_LINGER = 1 << 20

#: Tells the kernel that more follows, so that the header leaves in one packet with the data (Linux).
_MORE = getattr(socket, "MSG_MORE", 0)
#: Acknowledges at once what was received (Linux).
_ACKNOWLEDGE = getattr(socket, "TCP_QUICKACK", None)

Part = bytes | SegmentSlice


class ClientStream:
    """One client's socket: frames in, answers out. Used by one task; `stop`, `rest` and `abort` are for another.

    Its buffer is charged to `memory`, its bytes are counted in `stats`.
    """

    def __init__(
        self,
        sock: socket.socket,
        max_frame: int,
        memory: RequestMemory | None = None,
        stats: BrokerStats | None = None,
    ) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._delays_acknowledgements = _ACKNOWLEDGE is not None and sock.family != socket.AF_UNIX
        self._max_frame = max_frame
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray(_BUFFER)
        self._begin = self._end = 0  # the unread part of the buffer
        #: The future of a wait for the client, if there is one; and whether it is for bytes from it.
        self._waiter: asyncio.Future[None] | None = None
        self._reading = False
        self._moved = False  # since the last call of `rest`
        self._last_bytes: int | None = None  # once stopping: the number of bytes that may still be read
        self._turn = _TURN
        self._memory = memory or RequestMemory(max_frame)
        #: The memory of all connections together.
        self._stats = stats or BrokerStats()
        #: Bytes charged to it.
        self._held = 0
        #: Number of complete requests so far.
        self.frames = 0
        #: Whether it has sent messages: a producer of 0.7 does not notice that its connection was closed, and loses
        #: its next messages.
        self.produced = False

    async def frame(self) -> memoryview | None:
        """Return the body of the next request; None when the client is done or the broker stops.

        The view, and any part of it, is valid until the next call, before which all must be released. Raises
        RequestRefusedError for a length of 0 or less or beyond max.socket.request.bytes, ConnectionError when the
        connection broke.
        """
        if not self._buffer:  # released while the client did not read its response
            self._buffer = bytearray(_BUFFER)
        self._hold(len(self._buffer))
        if self._end - self._begin < 4 and not await self._have(4):
            return None
        length = int.from_bytes(self._buffer[self._begin : self._begin + 4], "big", signed=True)
        if not 0 < length <= self._max_frame:
            raise RequestRefusedError(f"a request of {length} bytes is outside 1 to {self._max_frame}")
        if self._end - self._begin < 4 + length and not await self._have(4 + length):
            return None
        begin = self._begin + 4
        self._begin = begin + length
        self.frames += 1
        return memoryview(self._buffer)[begin : begin + length]

    def let_go(self, size: int) -> None:
        """Begin another buffer in place of a large one, as the last frame, of `size` bytes, was read. Until the next
        call of `frame` as much stays charged, for the parts of it that are still in use.
        """
        if len(self._buffer) > _KEEP:
            self._buffer = self._buffer[self._begin : self._end] or bytearray(_BUFFER)
            self._begin, self._end = 0, self._end - self._begin
        self._hold(max(size, len(self._buffer)))

    def _hold(self, size: int) -> None:
        """Charge `size` bytes that are allocated already."""
        if size == self._held:
            return
        held = self._memory.charge(self._held, size)
        if held is not None:
            self._held = held

    async def _room(self, size: int) -> bool:
        """Wait until a buffer of `size` bytes may be allocated; return False if the broker stops meanwhile."""
        while (held := self._memory.charge(self._held, size)) is None:
            if self._last_bytes is not None:
                return False
            waiter = self._waiter = self._loop.create_future()
            self._reading = True
            wake = partial(_wake, waiter)
            self._memory.wait(wake)
            try:
                await waiter
            finally:
                self._memory.forget(wake)
                self._waiter, self._reading = None, False
        self._held = held
        return True

    async def _have(self, count: int) -> bool:
        """Read until `count` unread bytes are buffered; return False at the end of the stream.

        The buffer grows with the bytes that arrive, not with a length field.
        """
        while self._end - self._begin < count:
            if self._begin == self._end:
                self._begin = self._end = 0
            elif len(self._buffer) - self._begin < count and self._begin:
                self._buffer[: self._end - self._begin] = self._buffer[self._begin : self._end]
                self._begin, self._end = 0, self._end - self._begin
            if self._end == len(self._buffer):
                more = min(max(count, _KEEP) - self._end, 3 * self._end, _GROW)
                if not await self._room(self._end + more):
                    return False
                self._buffer.extend(bytes(more))
            room = len(self._buffer)
            if count > _LONG:
                room = min(room, self._begin + count + _AHEAD)
            while (received := self._receive(room)) is None:
                await self._arrival()
            if not received:
                return False
            self._end += received
            if self.turn_ends(received):
                await asyncio.sleep(0)
        return True

    def _receive(self, stop: int) -> int | None:
        """Read into the buffer, up to `stop`; return the number of bytes, 0 at the end, None if nothing has arrived."""
        if self._last_bytes is not None and self._last_bytes <= 0:
            return 0
        try:
            with memoryview(self._buffer)[self._end : stop] as room:
                received = self._sock.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return None if self._last_bytes is None else 0
        self._moved = True
        self._stats.received_bytes += received
        if self._last_bytes is not None:
            self._last_bytes -= received
        return received

    async def _arrival(self) -> None:
        """Wait for bytes, or the end; without a large buffer if nothing is in it."""
        if self._begin == self._end and len(self._buffer) > _KEEP:
            self._buffer, self._begin, self._end = bytearray(_BUFFER), 0, 0
            self._hold(_BUFFER)
        if self._delays_acknowledgements and (self.produced or self._begin < self._end):
            # No answer carries the acknowledgement. One that the kernel delays by 40 ms or more would hold up a client
            # whose send buffer is smaller than its request: most JVM producers on this machine.
            self._sock.setsockopt(socket.IPPROTO_TCP, cast("int", _ACKNOWLEDGE), 1)
        await self._ready(reading=True)
        if not self._buffer:  # released meanwhile
            self._buffer = bytearray(_BUFFER)

    async def _ready(self, *, reading: bool) -> None:
        """Wait until the socket can be read, or written to."""
        loop = self._loop
        add, remove = (loop.add_reader, loop.remove_reader) if reading else (loop.add_writer, loop.remove_writer)
        waiter = self._waiter = loop.create_future()
        self._reading = reading
        add(self._fd, _wake, waiter)
        try:
            await waiter
        finally:
            remove(self._fd)
            self._waiter, self._reading = None, False
            self._turn = _TURN

    def stop(self) -> None:
        """Let `frame` return the requests that have arrived already and then None, without waiting for more."""
        if self._last_bytes is None:
            self._last_bytes = _STOP_BYTES
        if self._waiter is not None and self._reading:
            _wake(self._waiter)

    def rest(self) -> bool:
        """Return whether it waits for its client and transferred nothing since the last call; if so, release memory."""
        resting = self._waiter is not None and not self._moved
        self._moved = False
        if resting and self._begin == self._end:
            self._buffer, self._begin, self._end = bytearray(), 0, 0
            self._hold(0)
        return resting

    @property
    def receiving(self) -> bool:
        """Whether a request has arrived in part."""
        return self._reading and self._begin < self._end

    @property
    def quiet(self) -> bool:
        """Whether it waits for a request of which nothing has arrived yet."""
        return self._reading and self._begin == self._end

    @property
    def held(self) -> int:
        """Bytes charged for this connection while it waits for its client; 0 while the broker works for it."""
        return self._held if self._waiter is not None else 0

    def abort(self, reason: str) -> None:
        """End a wait for the client with ConnectionAbortedError."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionAbortedError(reason))

    async def send(self, parts: Sequence[Part]) -> None:
        """Send bytes and file ranges in order. Raises ConnectionError, and OSError when a file cannot be read.

        The caller holds the segments of the ranges. Other tasks get their turn in between, however many parts come.
        """
        pending: list[bytes] = []
        size = 0
        for part in parts:
            if not isinstance(part, bytes) and part.length > _COPY:
                if pending:
                    await self._send_bytes(b"".join(pending), _MORE)
                    pending, size = [], 0
                await self._send_range(part)
                continue
            if size >= _JOIN:
                await self._send_bytes(b"".join(pending), _MORE)
                pending, size = [], 0
            piece = part if isinstance(part, bytes) else await self._copied(part)
            pending.append(piece)
            size += len(piece)
            await self.worked(_PART)
        if pending:
            await self._send_bytes(b"".join(pending), 0)

    def turn_ends(self, amount: int) -> bool:
        """Count work for this client, in bytes; return whether it was enough for one turn: others are due then."""
        self._turn -= amount
        if self._turn > 0:
            return False
        self._turn = _TURN
        return True

    async def worked(self, amount: int) -> None:
        """Count work for this client, in bytes; let other tasks run when it was enough for one turn."""
        if self.turn_ends(amount):
            await asyncio.sleep(0)

    async def _copied(self, part: SegmentSlice) -> bytes:
        await self._warm(part, part.position, part.length)
        return part.segment.file.read_at(part.position, part.length)

    async def _send_bytes(self, data: bytes, flags: int) -> None:
        view = memoryview(data)
        while view:
            try:
                sent = self._sock.send(view, flags)
                view = view[sent:]
                self._moved = True
                self._stats.sent_bytes += sent
            except (BlockingIOError, InterruptedError):
                await self._ready(reading=False)

    async def _send_range(self, part: SegmentSlice) -> None:
        file, position, left = part.segment.file.fileno(), part.position, part.length
        warm = 0
        while left:
            if warm <= 0:
                warm = min(left, _SENDFILE)
                await self._warm(part, position, warm)
            try:
                sent = os.sendfile(self._fd, file, position, min(left, _SENDFILE))
            except (BlockingIOError, InterruptedError):
                await self._ready(reading=False)
                continue
            if not sent:
                raise ConnectionAbortedError(f"{part.segment.path} is shorter than when the fetch began")
            self._moved = True
            self._stats.sent_bytes += sent
            position += sent
            left -= sent
            warm -= sent
            await self.worked(sent)

    async def _warm(self, part: SegmentSlice, position: int, length: int) -> None:
        """Have the kernel read a range that is not in the page cache, in a thread."""
        if not part.segment.file.cached(position, length):
            await asyncio.to_thread(part.segment.file.read_at, position, length)

    def close(self) -> None:
        """Close both ways: FIN after all that was sent, even if the client has sent more than was read."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
            thrown = 0
            while thrown < _LINGER:
                received = len(self._sock.recv(1 << 16))
                if not received:
                    break
                thrown += received
        except OSError:
            pass  # the client has closed the connection or sends nothing more: no error to report in either case
        finally:
            self._sock.close()
            self._buffer, self._begin, self._end = bytearray(), 0, 0
            self._hold(0)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

"""The connections of a broker: serves their requests in order, and closes connections that are idle for too long.

Strategy: one task per connection, in the broker's task group, reads a frame, handles it, sends the response, and only
then reads the next (golden notes, 1: responses are in the order of requests): a client that does not read its responses
is served no further, and its requests do not pile up here. A refused request closes the connection, as the protocol
has no other refusal. One more task checks all connections regularly, instead of a timer for each: a connection that
was idle since the last check releases its buffer, so that ten thousand idle clients are cheap, and is closed after
connections.max.idle.ms. A request that is not complete in time ends its connection, too, and when memory for requests
has run out, the connection that has held some for the longest is closed.

An idle producer's connection is never closed: 0.7 gives producers no answers, so they do not notice before they have
lost their next messages. Consumers reconnect and fetch again.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from operator import itemgetter

import structlog

from consumerd.base.errors import reason_of
from consumerd.base.ports import Clock
from consumerd.base.turns import in_turns
from consumerd.storage import CorruptLogError, FlushFailedError, StorageError
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.errors import RequestRefusedError
from consumerd.storage.broker.memory import RequestMemory
from consumerd.storage.broker.requests import BrokerReply, RequestHandlers
from consumerd.storage.broker.sockets import ClientStream
from consumerd.storage.broker.stats import BrokerStats
from consumerd.wire.errors import WireError
from consumerd.wire.v07 import MultiProduceRequest, ProduceRequest, decode_request_steps, decode_single_request

logger = structlog.get_logger(__name__)

#: Pause of the acceptor when the process has no descriptors or memory left.
_ACCEPT_PAUSE = 0.5
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: Longest pause between two checks of all connections, in seconds.
_LOOK = 1.0
#: Seconds for which a connection may hold memory for requests, at least, also when others wait for it.
_GRACE = 2.0
#: Work of a request within its connection's turn, in addition to its bytes.
_REQUEST = 1 << 15


class ClientConnections:
    """The clients of one broker."""

    def __init__(self, config: BrokerConfig, clock: Clock, stats: BrokerStats) -> None:
        self._config = config
        self._clock = clock
        self._stats = stats
        self._streams: dict[asyncio.Task[None], ClientStream] = {}
        self._resting: dict[asyncio.Task[None], float] = {}
        #: The memory of all requests together.
        self.memory = RequestMemory(max(config.queued_bytes, config.max_request_bytes))
        #: Connections that wait for the rest of a request or response: the request's number, and since when.
        self._busy: dict[asyncio.Task[None], tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._streams)

    async def accept(self, listener: socket.socket, group: asyncio.TaskGroup, requests: RequestHandlers) -> None:
        """Accept clients until cancelled; each gets a task in `group`."""
        refused = 0
        while True:
            try:
                sock, address = await _accepted(listener)
            except OSError as error:
                if error.errno in _SHORTAGES:
                    logger.error("connection_accept_paused", reason=error.strerror, connections=len(self))
                    await self._clock.sleep(_ACCEPT_PAUSE)
                continue  # otherwise the client closed the connection before it was accepted
            peer = f"{address[0]}:{address[1]}"
            if self._config.max_connections and len(self) >= self._config.max_connections:
                sock.close()
                refused += 1
                self._stats.connections_refused += 1
                if refused == 1:
                    logger.warning("connections_refused", peer=peer, limit=self._config.max_connections)
                await asyncio.sleep(0)
                continue
            if refused:
                logger.warning("connection_accept_resumed", refused=refused)
                refused = 0
            try:
                self._prepare(sock)
                stream = ClientStream(sock, self._config.max_request_bytes, self.memory, self._stats)
            except OSError as error:
                logger.info("connection_lost", peer=peer, reason=reason_of(error))
                sock.close()
                continue
            task = group.create_task(serve(stream, requests, peer), name=f"connection {peer}")
            self._streams[task] = stream
            self._stats.accepted += 1
            task.add_done_callback(self._forget)
            await asyncio.sleep(0)  # many new connections must not delay the existing ones

    def _forget(self, task: asyncio.Task[None]) -> None:
        stream = self._streams.pop(task)
        if task.cancelled():
            stream.close()  # a task that is cancelled before its first step closes nothing itself
        self._resting.pop(task, None)
        self._busy.pop(task, None)

    def _prepare(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._config.send_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._config.send_buffer)
        if self._config.receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._config.receive_buffer)

    async def look_after(self) -> None:
        """Release the memory of idle connections, and close those that are idle for too long; until cancelled."""
        times = [ms / 1000 for ms in (self._config.max_idle_ms, self._config.request_timeout_ms) if ms]
        pause = min(_LOOK, *(seconds / 4 for seconds in times)) if times else _LOOK
        while True:
            await self._clock.sleep(pause)
            now = self._clock.monotonic()
            for task, stream in self._streams.items():
                self._end_if_idle(task, stream, now)
                self._end_if_overdue(task, stream, now)
            if self.memory.wanted:
                self._make_room(now)

    def _end_if_idle(self, task: asyncio.Task[None], stream: ClientStream, now: float) -> None:
        limit = self._config.max_idle_ms / 1000
        if not stream.rest() or (stream.produced and stream.quiet):
            self._resting.pop(task, None)
        elif limit and now - self._resting.setdefault(task, now) >= limit:
            stream.abort(f"the connection was idle for {limit:g} seconds (connections.max.idle.ms)")

    def _end_if_overdue(self, task: asyncio.Task[None], stream: ClientStream, now: float) -> None:
        """Note the start of a request, and close the connection if it is not complete in time."""
        if not (stream.receiving or stream.held):
            self._busy.pop(task, None)
            return
        number, since = self._busy.get(task, (-1, now))
        if number != stream.frames:
            number, since = self._busy[task] = stream.frames, now
        limit = self._config.request_timeout_ms / 1000
        if limit and stream.receiving and now - since >= limit:
            stream.abort(f"a request was not complete after {limit:g} seconds (socket.request.timeout.ms)")

    def _make_room(self, now: float) -> None:
        """Close the connection that has held memory for the longest, if long enough, as others wait for memory."""
        holders = [(since, task) for task, (_, since) in self._busy.items() if self._streams[task].held]
        since, task = min(holders, key=itemgetter(0), default=(now, None))
        if task is not None and now - since >= _GRACE:
            logger.warning("request_memory_exhausted", limit=self.memory.limit, connections=len(holders))
            self._streams[task].abort(
                "memory for requests ran out (queued.max.request.bytes), and this connection held its share longest"
            )

    async def stop(self, patience: float) -> None:
        """Let every client finish what it has sent; abort those that take longer than `patience` seconds."""
        for stream in self._streams.values():
            stream.stop()
        if self._streams:
            _, pending = await asyncio.wait(self._streams, timeout=patience)
            for task in pending:
                logger.warning("connection_aborted", task=task.get_name())
                task.cancel()


async def _accepted(listener: socket.socket) -> tuple[socket.socket, tuple[str, int]]:
    """Accept the next client; safe to cancel: `loop.sock_accept` may lose an accepted one, and leave it open."""
    while True:
        try:
            return listener.accept()
        except BlockingIOError:
            await _readable(listener)


async def _readable(listener: socket.socket) -> None:
    loop, descriptor = asyncio.get_running_loop(), listener.fileno()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


async def serve(stream: ClientStream, requests: RequestHandlers, peer: str) -> None:
    """Serve one connection until the client is done, breaks the rules, or the broker stops; closes it.

    Raises FlushFailedError, after which the broker must stop.
    """
    try:
        while (body := await stream.frame()) is not None:
            with body:
                size = len(body)
                request = decode_single_request(body)
                if request is None:
                    request = await in_turns(decode_request_steps(body))
            stream.let_go(size)  # large message sets of the request are still parts of the buffer
            if isinstance(request, (ProduceRequest, MultiProduceRequest)):
                stream.produced = True
            reply = await requests.handle(request)
            if reply is not None and not await _send(stream, reply):
                break
            del request, reply  # before the buffer receives the next request
            if stream.turn_ends(_REQUEST):
                await asyncio.sleep(0)
    except FlushFailedError:
        raise
    except (WireError, RequestRefusedError) as error:
        requests.stats.refused += 1
        logger.warning("request_refused", peer=peer, reason=reason_of(error))
    except (StorageError, CorruptLogError) as error:
        requests.stats.failed += 1
        logger.error("request_failed", peer=peer, reason=reason_of(error))
    except OSError as error:
        logger.info("connection_lost", peer=peer, reason=reason_of(error))
    finally:
        stream.close()


async def _send(stream: ClientStream, reply: BrokerReply) -> bool:
    """Send a reply and release its segments; return False if the connection ends after it."""
    try:
        await stream.send(reply.parts)
    finally:
        reply.release()
    return not reply.close

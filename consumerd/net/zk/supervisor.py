"""The task that maintains the session: connect, send heartbeats, reconnect, and replace an expired session.

Strategy: one task loops: pick a server and an address of its name at random, do the handshake, prepare (credentials
first, then a new session's chroot), announce the session, send heartbeats until the connection ends. `lifecycle` has
the transitions of the session's state, this module decides when they happen.

The lease must never say that the session lives when the server may have expired it. A handshake proves the session from
the moment it was sent: the leader itself touches the session. A heartbeat proves less: a follower answers pings alone,
even when it lost its leader, and tells the leader about its sessions only every half tick. So the heartbeat is a
`sync`, which passes the leader, every T/4 (at least half a tick, as T is at least two), and when one is answered the
lease counts from the heartbeat *before*: the leader must have received that one. When nothing came for 5T/12 while one
is outstanding, the connection is ended: 2T/3 after the last sign of life, which leaves T/3 to come back. Heartbeats
overtake the calls that wait for their turn, so a burst of calls does not hold them up. A server that sheds load drops a
heartbeat with ThrottledOp: it is repeated after a pause, on the same connection, since another one would add load.

The zxid. We tell each server the newest transaction we saw, and one that is behind closes the connection. A wiped
ensemble does so for ever; after 1.5 T in which each round had closed handshakes we send no zxid and let the server
report whether the session is alive (a `sync` then makes up for what the zxid guaranteed). Silence proves nothing: a
server that was frozen or restarted closes a handshake, too, until it serves again.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import structlog
from aiozk import protocol

from consumerd.base.credentials import Renewed
from consumerd.base.errors import ZooKeeperError, reason_of
from consumerd.base.ports import Clock, SessionState
from consumerd.net.addresses import addresses_of, connect_reason
from consumerd.net.zk.connect_string import ZooKeeperHost
from consumerd.net.zk.connection import (
    FIRST_PAUSE,
    ConnectionEnded,
    ConnectionLimits,
    HandshakeClosed,
    ZooKeeperConnection,
)
from consumerd.net.zk.errors import (
    PASSING_CODES,
    THROTTLED,
    BadReply,
    ConnectionLost,
    ServerError,
    error_for,
    name_of,
)
from consumerd.net.zk.lifecycle import NO_PASSWORD, SessionLifecycle

log = structlog.get_logger(__name__)

_BEHIND = "servers closed all handshakes, as an ensemble does that was emptied or restored from an older snapshot"
#: The usual reasons of servers that accept a connection and close it, which they do not tell.
_CLOSED_BECAUSE = (
    "it does not serve yet, its limit of connections from this address (maxClientCnxns) is reached, this port expects "
    "TLS or is not that of ZooKeeper, or the server is behind the transactions that this client saw"
)
HEARTBEATS_PER_TIMEOUT = 4
HEARTBEAT_LIMIT = 5 / 12
RESET_ZXID_AFTER = 1.5
_CLOSE_GRACE = 0.5
_CLOSE_LIMIT = 1.0
#: Seconds by which a timer may fire early: the rest is too short for another one.
_TIMER_SLACK = 0.001


def _respect_cancellation() -> None:
    """Raise a pending cancellation.

    Before Python 3.13 a TaskGroup that ends with an error forgets that its task was cancelled at the same time.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


_FIRST_DELAY = 0.05
_LARGEST_DELAY = 1.0
#: A connection that lived this long (and twice the last delay) was healthy.
_HEALTHY = 0.25


class ReconnectDelay:
    """Delays between connection attempts: 0, 0.05, 0.1 ... 1 s, each cut to 50-100 % at random.

    The jitter keeps members from reconnecting in step. A healthy connection resets the delay.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._next = 0.0

    def delay(self) -> float:
        """Return the seconds to wait now; the next delay is longer."""
        delay = self._next
        self._next = min(_LARGEST_DELAY, max(_FIRST_DELAY, delay * 2))
        return delay * self._rng.uniform(0.5, 1.0)

    def lived(self, seconds: float) -> None:
        """Note that a connection was up for `seconds`: if it was healthy, the next attempt starts at once."""
        if seconds >= max(_HEALTHY, self._next):
            self._next = 0.0


class SessionSupervisor:
    """Runs the rounds (`run`, the one task) and ends the session (`farewell`).

    `prepare(connection, new)` is awaited on every connection before other calls may use it.
    """

    def __init__(
        self,
        hosts: Sequence[ZooKeeperHost],
        lifecycle: SessionLifecycle,
        *,
        connect_timeout: float,
        ssl: tls.SSLContext | Renewed[tls.SSLContext] | None,
        limits: ConnectionLimits,
        clock: Clock,
        rng: Random,
        prepare: Callable[[ZooKeeperConnection, bool], Awaitable[None]],
        on_watch: Callable[[str], None],
    ) -> None:
        self._hosts = hosts
        self._lifecycle = lifecycle
        #: The requested session timeout; a granted one takes its place in the lifecycle.
        self._session_timeout = lifecycle.timeout
        self._connect_timeout, self._ssl, self._limits = connect_timeout, ssl, limits
        self._clock = clock
        self._rng = rng
        self._prepare = prepare
        self._on_watch = on_watch
        self._zxid = 0
        self._without_zxid = False
        #: The time since which each round had closed handshakes; None after any other.
        self._refused_since: float | None = None
        self._noted: dict[ZooKeeperHost, str] = {}
        #: The number of addresses of each name.
        self._addresses: dict[ZooKeeperHost, int] = {}

    async def run(self) -> None:
        """Keep the session until it is closed (then cancelled).

        Never raises: a failure that ends the session for good (AuthFailed, a refused chroot, a defect) is kept in the
        lifecycle and raised from there by every call.
        """
        backoff = ReconnectDelay(self._rng)
        failure: Exception | None = None
        try:
            while self._lifecycle.state is not SessionState.CLOSED:
                await self._clock.sleep(backoff.delay())
                began = await self._one_round()
                if began is not None:
                    backoff.lived(self._clock.monotonic() - began)
        except Exception as error:
            failure = error
        finally:
            self._lifecycle.finish(failure)

    async def _one_round(self) -> float | None:
        """Try each server until one accepts; serve the connection to its end. Returns its start time, or None."""
        refused = False
        ssl = self._ssl
        if isinstance(ssl, Renewed):
            ssl = await ssl.current()
        for host in self._rng.sample(self._hosts, len(self._hosts)):
            for address in await self._resolve(host):
                connection = ZooKeeperConnection(
                    host,
                    address,
                    ssl=ssl,
                    limits=self._limits,
                    on_watch=self._on_watch,
                    on_end=self._on_end,
                )
                try:
                    began = await self._attempt(connection)
                    self._refused_since = None
                    if began is not None:
                        await self._serve(connection, began)
                    return began
                except TimeoutError:
                    self._note(host, f"{host} does not answer")
                except (ConnectionResetError, BrokenPipeError, HandshakeClosed) as error:
                    refused |= isinstance(error, HandshakeClosed)
                    self._note(host, f"{host} closed the connection during the handshake: {_CLOSED_BECAUSE}")
                except (OSError, BadReply) as error:
                    self._note(host, f"{host}: {connect_reason(error)}")
                finally:
                    connection.kill("the connection is unusable")
                    await connection.wait_closed()
        self._consider_zxid(refused=refused)
        return None

    async def _resolve(self, host: ZooKeeperHost) -> list[str]:
        """Return the addresses of a server's name in random order, since any may be silent; none if it has none."""
        try:
            async with asyncio.timeout(self._attempt_limit()):
                addresses = await addresses_of(host.name, host.port)
        except TimeoutError:
            self._note(host, f"the name {host.name} was not resolved in time", unresolved=True)
            return []
        except (OSError, UnicodeError) as error:
            self._note(host, f"{host}: {connect_reason(error)}", unresolved=True)
            return []
        self._addresses[host] = len(addresses)
        return self._rng.sample(addresses, len(addresses))

    def _consider_zxid(self, *, refused: bool) -> None:
        now = self._clock.monotonic()
        if not refused:
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = now
        elif self._zxid and now - self._refused_since > RESET_ZXID_AFTER * self._lifecycle.timeout:
            seconds = round(now - self._refused_since, 1)
            log.warning("zxid_reset", zxid=self._zxid, seconds=seconds, reason=_BEHIND)
            self._zxid, self._without_zxid = 0, True

    def _note(self, host: ZooKeeperHost, problem: str, *, unresolved: bool = False) -> None:
        """Log a new problem of a host, and not the same one in every round of a long outage.

        A first connection that fails ends in an error for the caller, but not where a name may yet resolve.
        """
        self._lifecycle.problem = problem
        if self._noted.get(host) != problem:
            self._noted[host] = problem
            if unresolved or self._lifecycle.granted_id:
                log.warning("connect_failed", reason=problem)
            else:
                log.info("connect_failed", reason=problem)

    def _on_end(self, connection: ZooKeeperConnection) -> None:
        self._zxid = max(self._zxid, connection.last_zxid)
        self._lifecycle.detach(connection)

    # -- one connection

    async def _attempt(self, connection: ZooKeeperConnection) -> float | None:
        """Connect and do the handshake. Returns the time at which it was sent, or None if the session has expired."""
        session = self._lifecycle
        async with asyncio.timeout(self._attempt_limit()):
            await connection.connect()
            sent = self._clock.monotonic()
            response = await connection.handshake(
                protocol.ConnectRequest(
                    protocol_version=0,
                    last_seen_zxid=self._zxid,
                    timeout=round(self._session_timeout * 1000),
                    session_id=session.granted_id,
                    password=session.password,
                    read_only=False,
                )
            )
        if response.session_id != session.granted_id:
            session.expire()
        if not response.session_id:
            return None
        session.grant(response.session_id, response.password or NO_PASSWORD, response.timeout / 1000)
        return sent

    def _attempt_limit(self) -> float:
        """Return the seconds for one attempt: a silent server leaves time for the others within the session timeout."""
        share = max(2, sum(self._addresses.get(host, 1) for host in self._hosts))
        return min(self._connect_timeout, max(0.2, self._lifecycle.timeout / share))

    async def _serve(self, connection: ZooKeeperConnection, began: float) -> None:
        """Serve the connection from the handshake to its end. Raises only failures that end the session for good."""
        fatal: ExceptionGroup[ZooKeeperError] | None = None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(connection.read_loop())
                await self._introduce(connection)
                if connection.closing:  # it ended in the very step that brought the last answer
                    raise ConnectionEnded(connection.end_reason)
                self._lifecycle.announce(connection, began)
                self._noted.clear()
                await self._beat(connection, began)
        except* ConnectionEnded:
            self._lifecycle.problem = connection.end_reason
        except* ZooKeeperError as refused:
            fatal = refused
        _respect_cancellation()
        if fatal is not None:
            raise fatal.exceptions[0]

    async def _introduce(self, connection: ZooKeeperConnection) -> None:
        new = self._lifecycle.session_id != self._lifecycle.granted_id
        limit = self._attempt_limit()
        try:
            async with asyncio.timeout(limit) as deadline:
                loop = asyncio.get_running_loop()
                connection.on_throttled = lambda pause: deadline.reschedule(loop.time() + pause + limit)  # not silent
                await self._prepare(connection, new)
                if self._without_zxid:
                    await connection.request(protocol.SyncRequest(path="/"))
                    self._without_zxid = False
        except ConnectionLost as error:
            raise ConnectionEnded from error
        except TimeoutError:
            raise self._end(connection, "the server did not answer while the session was prepared") from None
        except ServerError as error:
            if error.code in PASSING_CODES:
                raise self._end(
                    connection, f"the server refused the session with code {name_of(error.code)}"
                ) from error
            raise error_for(error.code, "/") from error
        finally:
            connection.on_throttled = None

    async def _beat(self, connection: ZooKeeperConnection, began: float) -> None:
        """Send heartbeats until the connection ends; each answer moves the lease to the one before (see above)."""
        session = self._lifecycle
        before = began
        pause = FIRST_PAUSE
        while True:
            sent = self._clock.monotonic()
            try:
                await self._heartbeat(connection)
            except ServerError as error:
                if error.code == THROTTLED:  # it proves nothing, as the leader has not seen it; the session lives on
                    pause = min(pause, session.timeout / HEARTBEATS_PER_TIMEOUT)
                    connection.note_throttled(pause)
                    await self._clock.sleep(pause)
                    pause *= 2
                    continue
                raise self._end(
                    connection, f"the server refused a heartbeat with code {name_of(error.code)}"
                ) from error
            except ConnectionLost as error:
                raise ConnectionEnded from error
            session.prove(before)
            before, pause = sent, FIRST_PAUSE
            await self._clock.sleep(sent + session.timeout / HEARTBEATS_PER_TIMEOUT - self._clock.monotonic())

    async def _heartbeat(self, connection: ZooKeeperConnection) -> None:
        """Send one `sync`. While other frames arrive, it may take up to the session timeout."""
        loop = asyncio.get_running_loop()
        sent = loop.time()
        answer = connection.write(protocol.SyncRequest(path="/"))
        silence = self._lifecycle.timeout * HEARTBEAT_LIMIT
        try:
            while not answer.done():
                left = min(max(sent, connection.heard) + silence, sent + self._lifecycle.timeout) - loop.time()
                if left < _TIMER_SLACK:
                    raise self._end(connection, "the server does not answer heartbeats")
                await asyncio.wait([answer], timeout=left)
            answer.result()
        finally:
            answer.cancel()  # its result is not needed any more

    def _end(self, connection: ZooKeeperConnection, reason: str) -> ConnectionEnded:
        connection.kill(reason)
        return ConnectionEnded(reason)

    # -- the end

    async def farewell(self) -> None:
        """Refuse new calls, then end the session on the server, if it can be reached within a moment."""
        session = self._lifecycle
        try:
            if session.session_id:
                grace = _CLOSE_GRACE if session.lease_left() > 0 else 0.0
                connection = await session.connection(limit=grace)
                session.refuse()
                async with asyncio.timeout(_CLOSE_LIMIT):
                    await connection.write(protocol.CloseRequest())
        except (ZooKeeperError, ServerError, TimeoutError) as error:
            log.info("session_left_to_expire", session_id=f"{session.session_id:#x}", reason=reason_of(error))
        finally:
            session.refuse()

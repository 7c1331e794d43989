"""The state of the session: its id, connection and lease, its listeners, and the calls that wait for a connection.

Theory of operation. The id survives everything except the server's own word that it is over; "granted" means that the
server gave the id, "announced" that callers and listeners may use it (credentials were sent, the chroot is there):

    LOST --announce--> CONNECTED --detach--> SUSPENDED --announce, same id--> CONNECTED
     ^                                           |
     +----- expire (the server's word) ----------+              (finish, from anywhere: CLOSED)

All transitions are synchronous and, but for `detach`, wake the callers that wait in `connection`. Listeners are
notified before watchers, so that a new session is known before anything is read on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from consumerd.base.errors import ZooKeeperError, reason_of
from consumerd.base.ports import Clock, SessionEvent, SessionState
from consumerd.net.zk.errors import NotConnected, SessionChanged
from consumerd.net.zk.watches import WatchTable

if TYPE_CHECKING:
    from consumerd.net.zk.connection import ZooKeeperConnection

log = structlog.get_logger(__name__)

NO_PASSWORD = bytes(16)


class SessionLifecycle:
    """State of one session and the calls that wait for it. Times in seconds of the clock's monotonic time."""

    def __init__(self, servers: str, timeout: float, wait: float, *, clock: Clock, watches: WatchTable) -> None:
        self._servers = servers
        self._wait = wait
        self._clock = clock
        self._watches = watches
        self._listeners: dict[object, Callable[[SessionEvent, int], None]] = {}
        self._changed = asyncio.Event()
        self._connection: ZooKeeperConnection | None = None
        self._closed = False
        self._lease_from = 0.0
        #: The id that callers know (0: none), and the one that the server gave with its password.
        self.session_id = 0
        self.granted_id = 0
        self.password = NO_PASSWORD
        self.timeout = timeout
        #: Whether the server carries out multis (3.4 and later); asked before a new session is announced.
        self.has_multi = True
        #: The reason why there is no connection, for messages.
        self.problem = "no attempt was made yet"
        #: The failure that ended the session for good, if it was not `close`.
        self.failure: BaseException | None = None

    @property
    def state(self) -> SessionState:
        if self._closed:
            return SessionState.CLOSED
        if self._connection is not None:
            return SessionState.CONNECTED
        return SessionState.SUSPENDED if self.session_id else SessionState.LOST

    def lease_left(self) -> float:
        if not self.session_id:
            return -1.0
        return self._lease_from + self.timeout - self._clock.monotonic()

    def subscribe(self, listener: Callable[[SessionEvent, int], None]) -> Callable[[], None]:
        token = object()
        self._listeners[token] = listener

        def unsubscribe() -> None:
            self._listeners.pop(token, None)

        return unsubscribe

    async def connection(self, session_id: int | None = None, *, limit: float | None = None) -> ZooKeeperConnection:
        """Wait for the live connection up to `limit` seconds (default: the session's `wait_connected`); return it.

        With `session_id`, only a connection of that session. To stay fenced, the caller writes without awaiting first.
        Raises NotConnected, SessionChanged, and the failure that ended the session for good.
        """
        ready = self._ready(session_id)
        if ready is not None:
            return ready
        try:
            async with asyncio.timeout(self._wait if limit is None else limit):
                while True:
                    await self._changed.wait()
                    ready = self._ready(session_id)
                    if ready is not None:
                        return ready
        except TimeoutError:
            raise NotConnected(
                f"no connection to ZooKeeper at {self._servers} ({self.problem}); check that it runs, and the address"
            ) from None

    def _ready(self, session_id: int | None) -> ZooKeeperConnection | None:
        if self.failure is not None:
            raise self._ended()
        if self._closed:
            raise NotConnected("the ZooKeeper session is closed")
        if session_id is not None and session_id != self.session_id:
            raise SessionChanged(session_id, self.session_id)
        return self._connection

    def _ended(self) -> ZooKeeperError:
        if isinstance(self.failure, ZooKeeperError):
            return self.failure
        return NotConnected(f"the ZooKeeper session stopped because of a defect: {self.failure!r}")

    # -- transitions

    def grant(self, session_id: int, password: bytes, timeout: float) -> None:
        """Note the session that the server gave or confirmed."""
        self.granted_id, self.password, self.timeout = session_id, password, timeout

    def announce(self, connection: ZooKeeperConnection, began: float) -> None:
        """Announce that the granted session may be used on this connection; it is proven alive since `began`."""
        new = self.session_id != self.granted_id
        self._connection, self._lease_from, self.session_id = connection, began, self.granted_id
        log.info(
            "session_established" if new else "session_reconnected",
            session_id=f"{self.session_id:#x}",
            server=str(connection.where),
            timeout=self.timeout,
        )
        self._notify(SessionEvent.NEW if new else SessionEvent.RECONNECTED, self.session_id)
        self._watches.fire_all()
        self._wake()

    def prove(self, since: float) -> None:
        """Note that the session is proven alive at this later time."""
        self._lease_from = max(self._lease_from, since)

    def detach(self, connection: ZooKeeperConnection) -> None:
        """Note that a connection ended; ignored unless it is the live one."""
        if connection is not self._connection:
            return
        self._connection = None
        self.problem = connection.end_reason
        if not self._closed:
            log.warning("session_suspended", session_id=f"{self.session_id:#x}", reason=connection.end_reason)
        self._notify(SessionEvent.SUSPENDED, self.session_id)

    def expire(self) -> None:
        """End the session, as the server reported. Listeners are notified of announced sessions only."""
        self.granted_id, self.password = 0, NO_PASSWORD
        session_id, self.session_id = self.session_id, 0
        if session_id:
            log.warning("session_expired", session_id=f"{session_id:#x}")
            self._notify(SessionEvent.EXPIRED, session_id)
            self._wake()

    def refuse(self) -> None:
        """Refuse new calls: the session is being closed, of which listeners are not notified."""
        self._closed = True
        self._wake()

    def finish(self, failure: BaseException | None) -> None:
        """Note the end of the supervising task; if not by `close`, listeners are notified to release the session."""
        if failure is not None:
            self.failure = failure
            log.error("session_failed", reason=reason_of(failure))
            self.expire()
        elif self.session_id:
            log.info("session_closed", session_id=f"{self.session_id:#x}")
        self._closed = True
        self.session_id = 0
        self._wake()

    def _notify(self, event: SessionEvent, session_id: int) -> None:
        if self._closed:
            return
        for listener in list(self._listeners.values()):
            try:
                listener(event, session_id)
            except Exception:  # a listener's defect must not cost the session
                log.exception("session_listener_failed", state=event.value)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

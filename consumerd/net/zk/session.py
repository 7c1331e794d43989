"""The ZooKeeper session of a process: implements `consumerd.base.ports.ZooKeeper` on aiozk's protocol.

Strategy: `SessionLifecycle` knows state, lease and events, `SessionSupervisor` keeps the connection, `WatchTable` holds
the callbacks for changes, and `BaseSession` sends the requests; here they are put together, started and closed.
"""

from __future__ import annotations

import asyncio
import copy
import ssl as tls
from collections.abc import Callable, Sequence
from random import Random

from aiozk import protocol

from consumerd.base.credentials import Renewed
from consumerd.base.errors import ConfigError, ConsumerdError
from consumerd.base.ports import Check, Clock, SaslMechanism
from consumerd.base.settings.servers import ZooKeeperSection
from consumerd.net.zk.acl import AclSetting, needs_identity, parse_acl
from consumerd.net.zk.base_session import BaseSession, ensure_on
from consumerd.net.zk.connect_string import parse_connect_string
from consumerd.net.zk.connection import ConnectionLimits, ZooKeeperConnection
from consumerd.net.zk.errors import (
    AUTH_CODES,
    CONNECTION_CODES,
    PASSING_CODES,
    UNIMPLEMENTED,
    AuthFailed,
    ServerError,
    error_for,
)
from consumerd.net.zk.lifecycle import SessionLifecycle
from consumerd.net.zk.multi import MultiRequest, encode_operations
from consumerd.net.zk.requests import ExistsRequest
from consumerd.net.zk.supervisor import SessionSupervisor
from consumerd.net.zk.watches import WatchTable

#: A day; the server's own limit (20 ticks by default) is far lower.
LONGEST_TIMEOUT = 86_400
Credential = tuple[str, str | bytes]


class Session(BaseSession):
    """A supervised session, used as `async with Session(...)` or by `start` and `close`.

    `connect` is `host:port,.../chroot`; a missing chroot is created with null data by each new session while
    `create_chroot` is set. `session_timeout` (seconds) is the
    requested one, `self.session_timeout` the granted one. `connect_timeout` bounds one attempt at one server,
    `wait_connected` (default: the session timeout) is the limit of a call's wait for a connection. `auth` holds
    credentials such as `("digest", "user:password")`, sent before anything else on every connection, but for the tokens
    of the mechanism that `sasl` makes (such as `DigestMd5`). `acl` is `open`, `creator`, `creator-all` or a list of
    `scheme:id:perms`. Raises ConfigError for invalid settings.
    """

    def __init__(
        self,
        connect: str,
        *,
        clock: Clock,
        rng: Random,
        session_timeout: float = ZooKeeperSection.session_timeout,
        connect_timeout: float = 2.0,
        wait_connected: float | None = None,
        ssl: tls.SSLContext | Renewed[tls.SSLContext] | None = None,
        auth: Sequence[Credential] | Renewed[Sequence[tuple[str, bytes]]] = (),
        sasl: Callable[[], SaslMechanism] | None = None,
        acl: AclSetting = ZooKeeperSection.acl,
        limits: ConnectionLimits | None = None,
    ) -> None:
        hosts, chroot = parse_connect_string(connect)
        if not (0 < session_timeout <= LONGEST_TIMEOUT and connect_timeout > 0):
            raise ConfigError(
                f"ZooKeeper's session_timeout must be between 0 and {LONGEST_TIMEOUT} s, and connect_timeout above 0"
            )
        if needs_identity(acl) and not auth and ssl is None and sasl is None:
            raise ConfigError(
                "an ACL for the creator (`creator`, `creator-all`, `auth:`) needs credentials in `auth` or `sasl`"
            )
        self.connect = connect
        self.hosts = hosts
        self.create_chroot = True
        self._sasl = sasl
        self._credentials = auth if isinstance(auth, Renewed) else [check_credential(each) for each in auth]
        watches = WatchTable()
        lifecycle = SessionLifecycle(
            self.servers,
            session_timeout,
            session_timeout if wait_connected is None else wait_connected,
            clock=clock,
            watches=watches,
        )
        super().__init__(lifecycle, watches, chroot=chroot, acl=parse_acl(acl), clock=clock)
        self._supervisor = SessionSupervisor(
            hosts,
            lifecycle,
            connect_timeout=connect_timeout,
            ssl=ssl,
            limits=limits or ConnectionLimits(),
            clock=clock,
            rng=rng,
            prepare=self._prepare,
            on_watch=watches.fire,
        )
        self._start_limit = max(session_timeout, connect_timeout * len(hosts))
        self._task: asyncio.Task[None] | None = None

    @property
    def servers(self) -> str:
        """`host:port,...`, without the chroot."""
        return ",".join(map(str, self.hosts))

    @property
    def chroot(self) -> str:
        """The chroot, `""` without one."""
        return self._chroot

    def at_root(self) -> Session:
        """Return this session for paths outside of the chroot. It ends with this one, and is not closed itself."""
        root = copy.copy(self)
        root._chroot = ""  # noqa: SLF001 - of the same class
        return root

    # -- lifecycle

    async def start(self, timeout: float | None = None) -> None:
        """Start, and return when the first session is established (with `create_chroot` its chroot exists then).

        `timeout` seconds default to the session timeout, or the connect timeout times the servers if that is more.
        Raises NotConnected, AuthFailed, NoAuth (for the chroot); the session is closed then.
        """
        if self._task is not None:
            raise RuntimeError("a session cannot be started twice")
        self._task = asyncio.create_task(self._supervisor.run(), name="zookeeper session")
        try:
            await self._lifecycle.connection(limit=self._start_limit if timeout is None else timeout)
        except BaseException:
            await self._stop()
            raise

    async def close(self) -> None:
        """End the session and its tasks, in about a second at most, whether or not the server can be reached.

        Outstanding calls fail. May be called again; raises the defect, if one had ended the session.
        """
        try:
            await self._supervisor.farewell()
        finally:
            await self._stop()

    async def _stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        failure = self._lifecycle.failure
        if failure is not None and not isinstance(failure, ConsumerdError):
            raise failure  # a defect of ours; declared failures were raised by every call

    async def wait_closed(self) -> None:
        """Return when the session is closed. Raises the failure that ended it (AuthFailed, a defect), if any."""
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._lifecycle.failure is not None:
            raise self._lifecycle.failure

    # -- before others may use a connection

    async def _prepare(self, connection: ZooKeeperConnection, new: bool) -> None:
        """Authenticate, which the server forgets with each connection; then create a new session's chroot."""
        if self._sasl is not None:
            from consumerd.net.zk.sasl import authenticate  # noqa: PLC0415 - with OpenSSL's digests

            await authenticate(connection, await asyncio.to_thread(self._sasl))
        credentials = self._credentials
        for scheme, secret in await credentials.current() if isinstance(credentials, Renewed) else credentials:
            try:
                await connection.request(protocol.AuthRequest(type=0, scheme=scheme, auth=secret))
            except ServerError as error:
                if error.code not in AUTH_CODES:
                    raise
                raise AuthFailed(
                    f"ZooKeeper refused the {scheme!r} credentials; check the auth setting and the server's schemes"
                ) from None
        if new:
            self._lifecycle.has_multi = await _has_multi(connection)
        if new and self._chroot and self.create_chroot:
            try:
                await ensure_on(connection, self._chroot, self._acl)
            except ServerError as error:
                if error.code in PASSING_CODES:
                    raise
                raise error_for(error.code, self._chroot) from None


async def _has_multi(connection: ZooKeeperConnection) -> bool:
    """Return whether the server has multi: one before 3.4 answers a later request, but not the multi before it."""
    asked = connection.write(MultiRequest(encode_operations([Check("/")], str, ())))
    try:
        await _is_answered(connection)
        if not asked.done():
            return False
        refusal = asked.exception()
        return not (isinstance(refusal, ServerError) and refusal.code == UNIMPLEMENTED)
    finally:
        asked.cancel()


async def _is_answered(connection: ZooKeeperConnection) -> None:
    try:
        await connection.request(ExistsRequest("/", watch=False))
    except ServerError as error:
        if error.code in CONNECTION_CODES:
            raise  # any answer counts, also one that denies access to the root


def check_credential(credential: Credential) -> tuple[str, bytes]:
    """Return the credential as it is sent. Raises ConfigError."""
    scheme, secret = credential
    encoded = secret.encode() if isinstance(secret, str) else secret
    if not scheme:
        raise ConfigError("an auth entry for ZooKeeper has no scheme; write for example digest and user:password")
    if scheme == "digest" and not encoded.partition(b":")[0]:
        raise ConfigError("a digest credential for ZooKeeper must be user:password")
    return scheme, encoded

"""Opening a connection: the real `Connector` of the ports that fetchers and producers are given.

Strategy: all addresses of a name are tried (`consumerd.net.addresses`), each for its part of the time that is left.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from ssl import SSLCertVerificationError, SSLContext, SSLError
from typing import Final, Protocol

from consumerd.net.addresses import addresses_of, connect_reason
from consumerd.net.connection import BrokerConnection, ConnectionSettings, refused_certificate
from consumerd.net.errors import ClientCertificateError, ConnectError, TlsError
from consumerd.net.tls import certificate_alert

DEFAULT_SETTINGS = ConnectionSettings()
#: OpenSSL's errors when the other side sends something other than TLS, or nothing.
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING")
_NOT_A_TLS_LISTENER: Final = (
    "the listener does not speak TLS, or closed the connection; is this the port of its TLS listener?"
)
#: Where the caller does not know which certificate its context has.
_CHECK_IDENTITY: Final = "check the certificate in the client's SSL context, or give one"


class Connection(Protocol):
    """The part of a connection that fetchers and producers use; see `BrokerConnection` for the guarantees."""

    @property
    def closed(self) -> bool: ...

    async def request(
        self, frame: bytes, *, max_response: int | None = None, timeout: float | None = None
    ) -> bytes: ...

    async def send(self, frame: bytes) -> None: ...

    async def wait_closed(self) -> None: ...

    async def close(self) -> None: ...

    def abort(self) -> None: ...


#: The port: `await connector(host, port)` opens a connection or raises BrokerError.
Connector = Callable[[str, int], Awaitable[Connection]]


async def connect(
    host: str,
    port: int,
    *,
    settings: ConnectionSettings = DEFAULT_SETTINGS,
    ssl: SSLContext | None = None,
    identity: str = _CHECK_IDENTITY,
) -> BrokerConnection:
    """Connect to a broker within `settings.connect_timeout` seconds, with TLS if `ssl` is given.

    `identity`: what to check where the broker refuses the client's certificate, which is an error of the first
    request under TLS 1.3. Raises ConnectError (TlsError if TLS cannot be established); safe to cancel.
    """
    try:
        async with asyncio.timeout(settings.connect_timeout):
            made, sock = await _first_that_answers(host, port, settings, ssl, identity)
    except TimeoutError:
        raise ConnectError(
            f"broker {host}:{port} could not be reached within {settings.connect_timeout:g} s;"
            " check the network between this host and the broker"
        ) from None
    except SSLError as error:
        if alert := certificate_alert(error):
            raise ClientCertificateError(refused_certificate(f"{host}:{port}", alert, identity)) from error
        raise TlsError(f"cannot speak TLS with broker {host}:{port}: {_tls_failure(error)}") from error
    except (OSError, ValueError, OverflowError) as error:
        if ssl is not None and isinstance(error, ConnectionResetError | ConnectionAbortedError):
            raise TlsError(f"cannot speak TLS with broker {host}:{port}: {_NOT_A_TLS_LISTENER}") from error
        # ValueError covers host names that cannot be encoded: they come from ZooKeeper and may be any text.
        reason = f"cannot connect to broker {host}:{port}: {connect_reason(error)}; {_remedy(error)}"
        raise ConnectError(reason) from error
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if settings.receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer)
    return made


def _remedy(error: Exception) -> str:
    if isinstance(error, socket.gaierror | UnicodeError):
        return "check its spelling, and the DNS of this machine"
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return "raise the limit of this process (ulimit -n, or LimitNOFILE of its systemd unit) or of the machine"
    return "is it running, and is that its address?"


def _tls_failure(error: SSLError) -> str:
    """Return the problem, and what to check."""
    if isinstance(error, SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        return f"its certificate is not accepted ({why}); check which authority signed it, and for which names"
    if error.reason in _NO_TLS:
        return _NOT_A_TLS_LISTENER
    return f"{error.reason or error}; its log may say more"


async def _first_that_answers(
    host: str, port: int, settings: ConnectionSettings, ssl: SSLContext | None, identity: str
) -> tuple[BrokerConnection, socket.socket]:
    """Return a connection to one of the addresses of `host`, and its socket. Raises the error of the last one."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + settings.connect_timeout
    addresses = await addresses_of(host, port)
    for left in range(len(addresses), 0, -1):
        made = BrokerConnection(host, port, settings, identity=identity if ssl else None)
        try:
            async with asyncio.timeout((give_up - loop.time()) / left):
                transport, _ = await loop.create_connection(
                    lambda made=made: made,
                    addresses[-left],
                    port,
                    ssl=ssl,
                    server_hostname=host if ssl else None,
                )
        except BaseException as error:
            made.abort()  # also if it was made at the moment of the timeout
            if not isinstance(error, OSError) or left == 1:
                raise
        else:
            transport.set_write_buffer_limits(high=settings.write_buffer)
            return made, transport.get_extra_info("socket")
    raise OSError("its name does not resolve to an address")

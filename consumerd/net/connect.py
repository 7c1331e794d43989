"""Opening a connection: the real `Connector` of the ports that fetchers and producers are given."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from consumerd.net.connection import BrokerConnection
from consumerd.net.errors import ConnectError
from consumerd.net.settings import ConnectionSettings

if TYPE_CHECKING:
    from ssl import SSLContext

DEFAULT_SETTINGS = ConnectionSettings()


class Connection(Protocol):
    """What fetchers and producers need of a connection; see `BrokerConnection` for the promises."""

    @property
    def closed(self) -> bool: ...

    async def request(
        self, frame: bytes, *, max_response: int | None = None, timeout: float | None = None
    ) -> bytes: ...

    async def send(self, frame: bytes) -> None: ...

    async def wait_closed(self) -> None: ...

    async def close(self) -> None: ...

    def abort(self) -> None: ...

    def raise_if_closed(self) -> None: ...


#: The port: `await connector(host, port)` opens a connection or raises BrokerError.
Connector = Callable[[str, int], Awaitable[Connection]]


async def connect(
    host: str, port: int, *, settings: ConnectionSettings = DEFAULT_SETTINGS, ssl: SSLContext | None = None
) -> BrokerConnection:
    """Connect to a broker within `settings.connect_timeout` seconds, with TLS if `ssl` is given.

    Raises ConnectError; safe to cancel.
    """
    loop = asyncio.get_running_loop()
    made = BrokerConnection(host, port, settings)
    try:
        async with asyncio.timeout(settings.connect_timeout):
            transport, _ = await loop.create_connection(lambda: made, host, port, ssl=ssl)
    except TimeoutError:
        made.abort()
        raise ConnectError(
            f"broker {host}:{port} could not be reached within {settings.connect_timeout:g} s;"
            " check the network between this host and the broker"
        ) from None
    except (OSError, ValueError, OverflowError) as error:
        # ValueError covers host names that cannot be encoded: they come from ZooKeeper and may be anything.
        made.abort()
        raise ConnectError(
            f"cannot connect to broker {host}:{port}: {error}; is it running, and is that its address?"
        ) from error
    except BaseException:
        made.abort()  # cancelled just when the connection had been made
        raise
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if settings.receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer)
    transport.set_write_buffer_limits(high=settings.write_buffer)
    return made

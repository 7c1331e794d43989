"""Keeping one connection to one broker, for all fetchers of its partitions.

Strategy: a supervising task connects, waits for the connection's end, and connects again after a jittered back-off;
requests wait for the connection in `connection()`. The address is looked up again for every attempt. A broker id may
come back elsewhere: a connection to its old address, which may be dead, is then ended. The
back-off starts over only after an answer was received (`worked`): a broker that closes each connection is as
useless as one that refuses it.
One log line when it is lost, one when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from consumerd.base.backoff import Backoff
from consumerd.base.errors import BrokerError, reason_of
from consumerd.member.fetch.errors import BrokerUnknownError
from consumerd.member.fetch.policies import FetchServices
from consumerd.net.connect import Connection, Connector

log = structlog.get_logger(__name__)


class Directory(Protocol):
    """The addresses of brokers; see `consumerd.net.cluster.directory.BrokerDirectory`."""

    def subscribe(self, changed: Callable[..., None]) -> Callable[[], None]:
        """Call `changed` when a broker came, went or moved; returns the unsubscriber."""
        ...

    def address(self, broker_id: int) -> tuple[str, int] | None:
        """Return host and port, or None while the broker is not registered."""
        ...


async def open_connection(broker: int, connect: Connector, directory: Directory) -> Connection:
    """Open a new connection to a broker, at its present address. Raises BrokerUnknownError, ConnectError."""
    address = directory.address(broker)
    if address is None:
        raise BrokerUnknownError(broker)
    return await connect(*address)


class BrokerLink:
    """The one connection to a broker. `run` must be running for `connection` to return."""

    def __init__(
        self,
        broker: int,
        connect: Connector,
        directory: Directory,
        services: FetchServices,
    ) -> None:
        self.broker = broker
        self._connect = connect
        self._directory = directory
        self._clock = services.clock
        self._counters = services.counters
        settings = services.settings
        self._backoff = Backoff(settings.retry_backoff_min, settings.retry_backoff_max, services.rng)
        self._connection: Connection | None = None
        #: Number of connections so far.
        self.connections = 0
        self._peer: tuple[str, int] | None = None
        self._up = asyncio.Event()
        self._troubled = False

    async def connection(self) -> Connection:
        """Wait for an open connection and return it."""
        while True:
            connection = self._connection
            if connection is not None and not connection.closed:
                self._leave_old_address()
                if not connection.closed:
                    return connection
            self._up.clear()
            await self._up.wait()

    def _leave_old_address(self, *_: object) -> None:
        """End the connection if the broker has moved, and with it the requests to the old address."""
        connection, address = self._connection, self._directory.address(self.broker)
        if connection is None or connection.closed or address is None or address == self._peer:
            return  # an unregistered broker may well continue to serve
        log.info("broker_moved", broker=self.broker, old=_text(self._peer), new=_text(address))
        connection.abort()

    async def private_connection(self) -> Connection:
        """Open a connection for one request that may break it; the caller closes it. Raises BrokerError."""
        return await open_connection(self.broker, self._connect, self._directory)

    def worked(self) -> None:
        """Start the back-off over, as a response came."""
        if self._troubled:
            self._troubled = False
            log.info("broker_reconnected", broker=self.broker, address=_text(self._peer))
        self._backoff.reset()

    async def run(self) -> None:
        """Keep the connection up until cancelled, then drop it."""
        unsubscribe = self._directory.subscribe(self._leave_old_address)
        try:
            while True:
                try:
                    self._peer = self._directory.address(self.broker)
                    connection = await open_connection(self.broker, self._connect, self._directory)
                except BrokerError as error:
                    self._lost(reason_of(error))
                else:
                    self._counters.connects += 1
                    self.connections += 1
                    self._connection = connection
                    self._up.set()
                    await connection.wait_closed()
                    self._lost("the connection ended")
                await self._clock.sleep(self._backoff.next())
        finally:
            unsubscribe()
            if self._connection is not None:
                self._connection.abort()
                await self._connection.wait_closed()

    def _lost(self, reason: str) -> None:
        self._counters.disconnects += 1
        if not self._troubled:
            self._troubled = True
            log.warning("broker_lost", broker=self.broker, address=_text(self._peer), reason=reason)


def _text(address: tuple[str, int] | None) -> str:
    return "unknown" if address is None else f"{address[0]}:{address[1]}"

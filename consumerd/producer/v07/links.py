"""One connection per broker: requests, and how their receipt is confirmed.

Strategy: a broker works through the requests of a connection in order, so an answer to a FETCH of zero bytes that was
sent behind a batch confirms the batch. A connection that ended with something unconfirmed on it is remembered until
it is reported. Connections are made when they are needed, and again when they have ended.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import structlog

from consumerd.base.ports import Clock
from consumerd.net.connect import Connection, Connector
from consumerd.net.errors import ConnectionClosedError
from consumerd.producer.errors import UncertainError
from consumerd.producer.v07.encoding import frames
from consumerd.producer.v07.settings import ProducerSettings
from consumerd.producer.v07.verify import Verification
from consumerd.wire.v07 import EncodedProduceRequest, FetchRequest, ProduceRequest

log = structlog.get_logger(__name__)

Address = tuple[str, int]

#: Body of the answer to a FETCH of zero bytes: an error code (and room for a broker that is not so exact).
_PROBE_ANSWER_BYTES = 1024


@dataclass(slots=True)
class _Link:
    """The state of the connection to one broker."""

    connection: Connection | None = None
    #: One task connects, the others wait for it.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: A topic that was sent to without confirmation since the last one.
    unconfirmed: str | None = None


class BrokerLinks:
    """The connections of one producer."""

    def __init__(self, connect: Connector, settings: ProducerSettings, *, clock: Clock, rng: random.Random) -> None:
        self._connect = connect
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._links: defaultdict[Address, _Link] = defaultdict(_Link)
        self._lost: UncertainError | None = None

    async def deliver(self, address: Address, entries: Sequence[ProduceRequest], *, multi: bool) -> None:
        """Send `entries` in order; with `multi` also a single one as a MULTIPRODUCE.

        Returns when they are confirmed, or verified, if the settings say so. Raises ConnectError and NoPartitionError
        before anything is sent, UncertainError after that, NotArrivedError.
        """
        link = self._links[address]
        connection = await self._connected(address, link)
        verification: Verification | None = None
        if self._settings.verify:
            verification = await Verification.begin(connection, address, entries, rng=self._rng)
            entries = verification.entries
        requests = frames(entries, self._settings.max_request_bytes, multi=multi)
        confirm = self._settings.confirm or verification is not None
        await self._send(link, connection, entries[-1].topic, requests, confirm=confirm)
        if verification is not None:
            try:
                await verification.finish(self._clock, self._settings.verify_timeout)
            except ConnectionClosedError as error:
                raise _uncertain(error) from error

    async def deliver_encoded(self, address: Address, request: EncodedProduceRequest) -> None:
        """As `deliver`, one request that is encoded already; without verification."""
        link = self._links[address]
        connection = await self._connected(address, link)
        await self._send(link, connection, request.topic, (request.frame,), confirm=self._settings.confirm)

    async def _send(
        self, link: _Link, connection: Connection, topic: str, requests: Iterable[bytes], *, confirm: bool
    ) -> None:
        try:
            for frame in requests:
                await connection.send(frame)
            if confirm:
                await self._confirm(connection, topic)
            else:
                link.unconfirmed = topic
        except ConnectionClosedError as error:
            raise _uncertain(error) from error
        except asyncio.CancelledError:
            link.unconfirmed = topic  # no task waits for it now: a flush will
            raise

    async def flush(self) -> None:
        """Return when everything that was sent is confirmed.

        Raises UncertainError when a connection ended since the last flush with something unconfirmed on it.
        """
        for link in list(self._links.values()):
            if link.unconfirmed is not None and link.connection is not None:
                topic, link.unconfirmed = link.unconfirmed, None
                try:
                    await self._confirm(link.connection, topic)
                except ConnectionClosedError as error:
                    self._lost = _uncertain(error)
        if self._lost is not None:
            lost, self._lost = self._lost, None
            raise lost

    async def close(self) -> None:
        """Close all connections. Unconfirmed batches stay unconfirmed."""
        connections = [link.connection for link in self._links.values() if link.connection is not None]
        self._links.clear()
        try:
            for connection in connections:
                await connection.close()
        finally:
            for connection in connections:  # cancelled meanwhile: the others get no time
                connection.abort()

    async def _confirm(self, connection: Connection, topic: str) -> None:
        """Wait until the broker has worked through everything that was sent on the connection."""
        # Partition 0 is there on every broker, and a fetch neither creates the topic nor can be refused by a FIN.
        probe = FetchRequest(topic, 0, 0, 0).encode()
        await connection.request(probe, max_response=_PROBE_ANSWER_BYTES)

    async def _connected(self, address: Address, link: _Link) -> Connection:
        """The open connection to a broker; a new one if the last has ended."""
        async with link.turn:
            await asyncio.sleep(0)  # lets the loop see a FIN that has already come
            if link.connection is not None and link.connection.closed:
                if link.unconfirmed is not None:
                    self._lost = UncertainError(
                        f"broker {address[0]}:{address[1]} closed the connection before it confirmed messages for "
                        f"topic {link.unconfirmed!r}; some may be lost."
                    )
                    log.warning("messages_unconfirmed", broker=f"{address[0]}:{address[1]}", topic=link.unconfirmed)
                    link.unconfirmed = None
                link.connection = None
            if link.connection is None:
                link.connection = await self._connect(*address)
            return link.connection


def _uncertain(error: ConnectionClosedError) -> UncertainError:
    return UncertainError(f"{error}; it may have stored the messages: sending them again may duplicate them.")

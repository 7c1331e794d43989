"""OFFSETS of many partitions: sent together, over one connection for each broker.

Strategy: simultaneous requests share a connection, which is opened for the first and closed after the last of them;
some hundred requests are in flight on it, so a thousand partitions of a broker far away begin in a second or two. No
fetch uses it, because a broker answers a bad request by closing the connection (golden notes, 1).

Other lookups must not fail for good because of it. When the broker closes the connection, the oldest request is
repeated over a connection of its own; the others are repeated over another shared one, and alone after that: which
request was the bad one is not sure, since a reset connection may lose responses that had come. A request on which the
broker closes its own connection is sent alone from then on, until it is answered.
"""

from __future__ import annotations

import asyncio
from typing import Final

from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.v07.link import Directory, open_connection
from consumerd.net.connect import Connection, Connector
from consumerd.net.errors import ConnectionClosedError, RequestTimeoutError
from consumerd.wire.errors import FrameError
from consumerd.wire.v07 import OffsetsRequest, decode_offsets_response

#: Requests in flight on a shared connection. Those behind them wait, and are not lost with it.
IN_FLIGHT: Final = 100
#: Connections for single requests open at once.
ALONE_AT_ONCE: Final = 8
#: Shared connections that a request may be lost with before it goes alone.
SHARED_TRIES: Final = 2


class _NotSentError(Exception):
    """The shared connection ended before it was this request's turn."""


class _Shared:
    """One connection to a broker, and the number of its users."""

    def __init__(self) -> None:
        self.users = 0
        self.turn = asyncio.Semaphore(IN_FLIGHT)
        self.opening = asyncio.Lock()
        self.connection: Connection | None = None
        #: The error of opening it, for all that waited for it.
        self.error: Exception | None = None


class OffsetLookups:
    """Requests offsets from brokers. `connect` and `directory` are the ports to them."""

    def __init__(self, connect: Connector, directory: Directory) -> None:
        self._connect = connect
        self._directory = directory
        self._shared: dict[int, _Shared] = {}
        self._alone = asyncio.Semaphore(ALONE_AT_ONCE)
        #: The broker closed the connection on these when they were sent alone.
        self._refused: set[TopicPartition] = set()

    async def list_offsets(self, partition: TopicPartition, time: int, max_number: int = 1) -> tuple[int, ...]:
        """Ask for offsets: `time` is EARLIEST, LATEST or milliseconds since the epoch.

        An unknown topic answers (0,) for EARLIEST and LATEST (golden notes, 1). Raises BrokerError, and FrameError for
        an invalid response.
        """
        request = OffsetsRequest(partition.topic, partition.partition, time, max_number)
        body = await self._answer(partition, request.encode(), request.longest_response)
        offsets = decode_offsets_response(body).offsets
        if any(offset < 0 for offset in offsets):
            raise FrameError(f"broker {partition.broker} answered with offset {min(offsets)} of {partition}")
        return offsets

    async def _answer(self, partition: TopicPartition, frame: bytes, longest: int) -> bytes:
        tries = 0
        while tries < SHARED_TRIES and partition not in self._refused:
            try:
                return await self._ask_together(partition.broker, frame, longest)
            except _NotSentError:
                continue
            except RequestTimeoutError:
                raise
            except ConnectionClosedError as error:
                if error.blamed:
                    break
                tries += 1
        return await self._ask_alone(partition, frame, longest)

    async def _ask_together(self, broker: int, frame: bytes, longest: int) -> bytes:
        shared = self._shared.setdefault(broker, _Shared())
        shared.users += 1
        try:
            async with shared.turn:
                connection = await self._open(broker, shared)
                try:
                    return await connection.request(frame, max_response=longest)
                finally:
                    if connection.closed:
                        self._retire(broker, shared)
        finally:
            shared.users -= 1
            if not shared.users:
                self._retire(broker, shared)
                if shared.connection is not None:
                    await shared.connection.close()

    async def _open(self, broker: int, shared: _Shared) -> Connection:
        """Return the connection. Raises _NotSentError if it has ended by now, and the errors of `open_connection`."""
        async with shared.opening:
            if shared.error is not None:
                raise shared.error
            if shared.connection is not None:
                if shared.connection.closed:
                    self._retire(broker, shared)
                    raise _NotSentError
                return shared.connection
            try:
                shared.connection = await open_connection(broker, self._connect, self._directory)
            except Exception as error:
                shared.error = error
                self._retire(broker, shared)
                raise
            return shared.connection

    def _retire(self, broker: int, shared: _Shared) -> None:
        """Have later requests open another connection."""
        if self._shared.get(broker) is shared:
            del self._shared[broker]

    async def _ask_alone(self, partition: TopicPartition, frame: bytes, longest: int) -> bytes:
        async with self._alone:
            connection = await open_connection(partition.broker, self._connect, self._directory)
            try:
                body = await connection.request(frame, max_response=longest)
            except ConnectionClosedError:
                self._refused.add(partition)
                raise
            finally:
                await connection.close()
        self._refused.discard(partition)
        return body

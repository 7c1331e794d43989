"""Fetching from brokers of 0.7: one link and one poller per broker, which its partitions share.

Strategy: a broker's link and poller live as long as it has partitions here. OFFSETS go over connections of their own
(`offset_lookups`). A partition without new messages waits in the `IdlePoller`; messages or an error wake it. A large
response is decoded in steps, in turns with everything else.

When a partition's fetch is to blame for a broken connection (the broker hangs, closes it or sends garbage over it), the
partition backs off and is fetched alone, over a connection for one request, until there was a response: the others
have the common connection to themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from random import Random

from consumerd.base.budget import ByteBudget, Reservation
from consumerd.base.errors import BrokerError
from consumerd.base.partition import LogId, TopicPartition
from consumerd.base.ports import Clock
from consumerd.base.turns import in_turns
from consumerd.member.fetch.errors import NoBoundaryError
from consumerd.member.fetch.fetcher import PartitionResponse, Put
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.listener import FetchListener
from consumerd.member.fetch.log_changes import LogChange, not_a_boundary
from consumerd.member.fetch.policies import FetchServices
from consumerd.member.fetch.response import FetchOutcome
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v07.boundaries import MAX_SEGMENTS, LogAccess, boundary_before
from consumerd.member.fetch.v07.link import BrokerLink, Directory, open_connection
from consumerd.member.fetch.v07.offset_lookups import OffsetLookups
from consumerd.member.fetch.v07.pace import Pace
from consumerd.member.fetch.v07.poller import IdlePoller, Idler
from consumerd.net.connect import Connection, Connector
from consumerd.net.errors import ConnectionClosedError
from consumerd.wire import WireError
from consumerd.wire.v07 import (
    EARLIEST,
    LATEST,
    ErrorCode,
    FetchRequest,
    MessageBatch,
    decode_steps,
    split_fetch_response,
)


class V07Source:
    """One partition at its broker; see `PartitionSource`."""

    identifies = False

    def __init__(
        self,
        partition: TopicPartition,
        lane: Lane,
        link: BrokerLink,
        poller: IdlePoller,
        services: FetchServices,
        logs: LogAccess,
    ) -> None:
        self.idle = False
        self._logs = logs
        self._partition = partition
        self._lane = lane
        self._link = link
        self._poller = poller
        self._services = services
        #: Whether our last fetch ended the connection: the next one goes over a connection of its own.
        self._suspect = False
        self._idler = Idler(lane, Pace(services.clock.monotonic()))

    async def ask(self, offset: int, size: int, log: LogId, put: Put) -> PartitionResponse | None:
        """Fetch, or return the common poll's response; None if the partition should be fetched by itself."""
        del put  # decoding may take a thread
        if self.idle:
            polled = await self._poller.wait(self._idler, offset)
            self.idle = False
            return polled
        connection, reservation = await self._prepare(size)
        try:
            request = FetchRequest(self._partition.topic, self._partition.partition, offset, size)
            body = await connection.request(request.encode(), max_response=request.longest_response)
            error, messages = split_fetch_response(body)
        except BaseException:
            reservation.release()
            raise
        finally:
            if self._suspect:
                await connection.close()
        if not self._suspect:
            self._link.worked()
        self._suspect = False
        self._services.counters.fetches += 1
        number = self._link.connections
        return PartitionResponse(self._link.broker, error, messages, size, reservation, connection=number)

    async def _prepare(self, size: int) -> tuple[Connection, Reservation]:
        """Return a connection and memory, reserved in this order: a broker that is unavailable must not hold memory.

        If the connection ends meanwhile, the request fails without blame, and the fetcher repeats it.
        """
        connection = await (self._link.private_connection() if self._suspect else self._link.connection())
        try:
            return connection, await self._lane.budget.reserve(size)
        except BaseException:
            if self._suspect:
                await connection.close()
            raise

    async def decode(self, response: PartitionResponse, offset: int) -> MessageBatch:
        """Decode in steps; large responses one after the other, each when memory still allows it."""
        steps = decode_steps(response.data, offset, limits=self._services.settings.limits)
        batch = await in_turns(steps, self._decoding(response.reservation))
        if len(batch):
            self._idler.pace.seen(len(batch), self._services.clock.monotonic())
        return batch

    @contextlib.asynccontextmanager
    async def _decoding(self, reservation: Reservation) -> AsyncIterator[None]:
        async with self._services.decoding:
            await self._lane.budget.solvent(reservation)
            yield

    def classified(self, outcome: FetchOutcome, response: PartitionResponse, offset: int) -> None:
        """Poll a partition that is empty."""
        self.idle = outcome is FetchOutcome.EMPTY

    def is_doubtful(self) -> bool:
        """False: only what stands at an offset shows whether it is of this log."""
        return False

    async def compare(self, offset: int, log: LogId) -> tuple[LogId, LogChange | None]:
        """Follow the messages up to `offset`: one has to begin there. Damage before it makes that unknown."""
        try:
            begins = await boundary_before(self._logs, self._partition, offset)
        except NoBoundaryError:
            return log, None
        return log, None if begins == offset else not_a_boundary(offset, begins)

    def refusal(self, error: int) -> str | None:
        return None if error == ErrorCode.OFFSET_OUT_OF_RANGE else f"the broker answered with error {error}"

    def failed(self, error: BrokerError | WireError) -> bool:
        """Repeat a request that was lost with another one's connection as soon as there is a connection."""
        if not isinstance(error, ConnectionClosedError):
            return True
        self._suspect = self._suspect or error.blamed
        return error.blamed

    def pause(self) -> None:
        """Leave the partition out of polls."""
        self._poller.pause(self._idler)

    def resume(self) -> None:
        self._poller.resume(self._idler)


@dataclass(slots=True)
class _Broker:
    link: BrokerLink
    poller: IdlePoller
    partitions: set[TopicPartition]
    tasks: list[asyncio.Task[None]]


class V07Brokers:
    """The brokers of a cluster of 0.7; see `FetchBrokers`.

    `connect` and `directory` are the ports to them (`consumerd.net.connect`, `consumerd.net.cluster.directory`),
    `budget` the common memory budget that the lanes were made with.
    """

    def __init__(
        self,
        connect: Connector,
        directory: Directory,
        budget: ByteBudget,
        settings: FetchSettings,
        clock: Clock,
        rng: Random,
        listener: FetchListener,
    ) -> None:
        #: As `FetchBrokers.list_offsets`.
        self.list_offsets = OffsetLookups(connect, directory).list_offsets
        self.services = FetchServices(settings, clock, rng, listener, self.list_offsets)
        self._connect = connect
        self._directory = directory
        self._budget = budget
        self._brokers: dict[int, _Broker] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Connect to the brokers, and to those that are added later."""
        self._tasks = tasks
        for broker in self._brokers.values():
            self._start(broker)

    def _start(self, broker: _Broker) -> None:
        if self._tasks is not None:
            broker.tasks = [
                self._tasks.create_task(broker.link.run(), name=f"link {broker.link.broker}"),
                self._tasks.create_task(broker.poller.run(), name=f"poll {broker.link.broker}"),
            ]

    def source(self, partition: TopicPartition, lane: Lane) -> V07Source:
        broker = self._brokers.get(partition.broker)
        if broker is None:
            link = BrokerLink(partition.broker, self._connect, self._directory, self.services)
            poller = IdlePoller(link, self._budget, self.services)
            broker = self._brokers[partition.broker] = _Broker(link, poller, set(), [])
            self._start(broker)
        broker.partitions.add(partition)
        return V07Source(partition, lane, broker.link, broker.poller, self.services, self)

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        """Do nothing: a connection takes one round trip, and ends with the last partition of its broker."""

    def release(self, partition: TopicPartition) -> Iterable[asyncio.Task[None]]:
        """Return the tasks of a broker that has no other partition here."""
        broker = self._brokers[partition.broker]
        broker.partitions.discard(partition)
        if broker.partitions:
            return ()
        del self._brokers[partition.broker]
        return broker.tasks

    @contextlib.asynccontextmanager
    async def connection(self, broker: int) -> AsyncIterator[Connection]:
        """A connection to a broker for looking into its logs; see `LogAccess`."""
        connection = await open_connection(broker, self._connect, self._directory)
        try:
            yield connection
        finally:
            await connection.close()

    async def segment_starts(self, partition: TopicPartition) -> tuple[int, ...]:
        """The offsets at which the segments of a partition begin, and its end; see `LogAccess`."""
        return await self.list_offsets(partition, LATEST, MAX_SEGMENTS)

    async def offset_at(self, partition: TopicPartition, time_ms: int) -> int:
        """Return the start of the last segment that was complete at a time, or the first; see `FetchBrokers`."""
        for time in (time_ms, EARLIEST):
            if offsets := await self.list_offsets(partition, time):
                return offsets[0]
        raise BrokerError(f"broker {partition.broker} returned no offset of {partition} yet.")

    def known_end(self, partition: TopicPartition) -> None:
        """Return None: a response does not say where a log ends."""

    async def log_end(self, partition: TopicPartition) -> int:
        """Ask the broker for the end of the log. Raises BrokerError, FrameError."""
        if not (offsets := await self.list_offsets(partition, LATEST)):
            raise BrokerError(f"broker {partition.broker} returned no offset of {partition}")
        return offsets[0]

"""FETCH to one broker: its connections, and what all requests to it have in common.

A broker over whose quota we are answers without any partitions (since 2.0) and says how long it wants no request. No
partition is then requested from it for that time, on any connection, and no memory is reserved meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from typing import Final, Protocol

from consumerd.base.errors import BrokerError
from consumerd.base.ports import Clock
from consumerd.member.fetch.listener import FetchCounters
from consumerd.member.fetch.settings import FetchSettings
from consumerd.net.client.channel import Channel
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.fetching import FetchedPartition, FetchedPartitions, fetch_partitions
from consumerd.net.client.metadata import ClusterMetadata
from consumerd.net.errors import BadFrameError
from consumerd.wire import WireError
from consumerd.wire.v08.fetch_session import PartitionFetch, Place, SessionRequest

#: An offset that the broker did not return.
UNKNOWN: Final = -1


class Poller(Protocol):
    """The source that polls a partition. One object for all that a request needs of it: thousands wait."""

    def stays(self) -> bool:
        """Whether a patient request may stay while its answers are empty."""
        ...

    def take(self, part: FetchedPartition) -> bool:
        """Take the answer as soon as it is here, before the fetcher has its turn; return whether that was possible.

        It takes no other one until `go_on` was called, or the request is settled.
        """
        ...

    def go_on(self, request: PartitionRequest) -> bool:
        """Let a request whose answer was taken ask for what follows; False: the fetcher decides that in its turn."""
        ...


class PartitionRequest:
    """One partition in the next FETCH."""

    __slots__ = ("answer", "fetch", "patient", "place", "poller")

    def __init__(self, fetch: PartitionFetch, answer: asyncio.Future[FetchedPartition | None]) -> None:
        #: Of a request that is polled, another one after each answer that was taken.
        self.fetch = fetch
        #: None: ask again. Over a quota the broker answers without the partition; or the poll let go of it.
        self.answer = answer
        #: Of a request that is polled.
        self.poller: Poller | None = None
        #: Of a request that is polled: whether it stays while its answers are empty or taken, if `poller` says so.
        self.patient = False
        #: The topic and the number of the partition.
        self.place: Place = fetch[:2]

    def deliver(self, part: FetchedPartition) -> bool:
        """Let the poller take the answer, unless there is one; the fetcher raises what that raises.

        Return whether it took it.
        """
        if self.poller is None or self.answer.done():
            return False
        try:
            return self.poller.take(part)
        except Exception as error:
            self.answer.set_exception(error)
            return False

    def settle(self, part: FetchedPartition | None) -> None:
        """Give the fetcher its answer, unless there is one; None: it asks again."""
        if not self.answer.done():
            self.answer.set_result(part)


class Line:
    """A connection to a broker, opened when it is needed."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._opening = asyncio.Lock()
        self._channel: Channel | None = None

    def ready(self) -> Channel | None:
        """Return the connection if it is open: what `channel` returns then, at once."""
        channel = self._channel
        return None if channel is None or channel.closed else channel

    async def channel(self) -> Channel:
        """Return the connection, opened again if it has ended. Raises BrokerError."""
        async with self._opening:
            self.count_lost()
            if self._channel is None:
                self._channel = await self._exchange.open()
            return self._channel

    def count_lost(self) -> None:
        """Count the connection if it has ended: once, however many requests waited for it."""
        if self._channel is not None and self._channel.closed:
            self._channel = None
            self._exchange.counters.disconnects += 1

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._channel is not None:
            await self._channel.close()


class Exchange:
    """Requests to one broker, whichever connection they use."""

    #: The metadata that the client has now; others once they were refreshed. Without a call of Python code.
    metadata: ClusterMetadata = property(attrgetter("_client.metadata"))  # type: ignore[assignment]

    def __init__(
        self,
        node_id: int,
        client: ClusterClient,
        settings: FetchSettings,
        counters: FetchCounters,
        clock: Clock,
        rack: str = "",
    ) -> None:
        self.node_id = node_id
        self._rack = rack
        self.settings = settings
        self.counters = counters
        self.clock = clock
        self._client = client
        #: The end of the time (the clock's seconds) in which the broker wants no request, because of a quota.
        self.silent_until = -math.inf

    @property
    def leased(self) -> bool:
        """Whether a partition may move to another replica without a change of the metadata."""
        return bool(self._client.settings.rack)

    def is_fresh(self, topic: str) -> bool:
        """Whether the metadata of a topic are neither old nor stale."""
        return self._client.is_fresh(topic)

    async def open(self) -> Channel:
        """Open a connection. Raises BrokerError."""
        try:
            channel = await self._client.private_channel(self.node_id)
        except BrokerError:
            self.counters.disconnects += 1
            raise
        self.counters.connects += 1
        return channel

    async def wait_out_quota(self) -> None:
        """Return when the broker wants requests again."""
        while (left := self.silent_until - self.clock.monotonic()) > 0:
            await self.clock.sleep(left)

    async def send(
        self,
        channel: Channel,
        partitions: Collection[PartitionFetch] | SessionRequest,
        max_bytes: int,
        wait: float,
        received: Callable[[FetchedPartitions], object] | None = None,
    ) -> FetchedPartitions:
        """Send a FETCH for which the broker may wait `wait` seconds. Raises BrokerError, WireError.

        `received`: as in `fetch_partitions`; it calls `obey` if the response tells of a quota, as is done without it.
        """
        settings = self.settings
        fetched = await fetch_partitions(
            channel,
            partitions,
            max_bytes=min(max_bytes, settings.max_answer_bytes),
            max_wait=wait,
            min_bytes=settings.min_bytes if wait else 0,
            read_committed=settings.read_committed,
            rack=self._rack,
            timeout=self._client.settings.connection.socket_timeout + wait,
            views=True,
            received=received or self.obey,
        )
        self.counters.fetches += 1
        return fetched

    def obey(self, fetched: FetchedPartitions) -> None:
        """Obey the quota that a response tells of, if there is one."""
        if fetched.silence:
            self.counters.throttled += fetched.silence
            self.silent_until = max(self.silent_until, self.clock.monotonic() + fetched.silence)

    async def end_session(self, last: SessionRequest) -> None:
        """End a fetch session, in as much time as a connection may take to close. Never raises.

        On the connection that all share: on ours the broker may hold a poll back, and reads no further.
        """
        try:
            async with asyncio.timeout(self._client.settings.connection.close_timeout):
                await fetch_partitions(await self._client.node_channel(self.node_id), last, max_bytes=0)
        except (BrokerError, WireError, TimeoutError):
            pass  # the broker drops it when others need its place

    def require_all(self, fetched: FetchedPartitions, requests: Iterable[PartitionRequest], channel: Channel) -> None:
        """Raise BadFrameError, and drop the connection, if a partition is missing that nothing excuses."""
        if fetched.throttled or fetched.error:
            return
        for request in requests:
            if request.place not in fetched.partitions and not request.answer.done():
                channel.abort()
                name = "{}/{}".format(*request.place)
                raise BadFrameError(f"broker {self.node_id} left {name} out of its FETCH response", blamed=True)


def answer_of(fetched: FetchedPartitions, place: Place) -> FetchedPartition | None:
    """Return what a response says of a partition: maybe the error of all of it; None: nothing."""
    part = fetched.partitions.get(place)
    return FetchedPartition(fetched.error, b"", UNKNOWN, ()) if part is None and fetched.error else part


def fail(requests: Iterable[PartitionRequest], error: Exception) -> None:
    """Raise an error in those that wait."""
    for request in requests:
        if not request.answer.done():
            request.answer.set_exception(error)


def cancel(requests: Iterable[PartitionRequest]) -> None:
    """Cancel those that wait: their responses will not come."""
    for request in requests:
        request.answer.cancel()

"""FETCH to one broker of 0.8 or later, for all partitions that it leads.

Strategy: each partition's fetcher queues a `PartitionRequest` and waits; a sender combines what is queued into one
FETCH, and passes on the parts of the response. A broker works on one request of a connection at a time, and may hold it
back until there are new messages. So there are two queues with a connection each: *busy* partitions, whose last
response brought something, are fetched without waiting, by a few senders in turn, so that the broker and the network
work while responses are decoded; *idle* ones are fetched together, and the broker waits up to `max_wait` for
`min_bytes` of new messages of any of them.

Memory: a busy request comes with its reservation. The size of all idle ones together is bounded by the FETCH, and
counted when the response is here. One FETCH never asks for more than `max_answer_bytes`, which brokers before 0.10.1 do
not obey by themselves. A busy one asks for less: of a few MiB nothing is left in the processor's caches when it is
decoded, and the other sender's response comes meanwhile anyway.

A broker over whose quota we are answers without any partitions (since 2.0) and says how long it wants no request. No
partition is then requested from it for that time, on either connection, and no memory is reserved meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from consumerd.client import FetchedPartition, PartitionFetch, fetch_partitions
from consumerd.errors import BrokerError
from consumerd.net import BadFrameError
from consumerd.wire import WireError
from consumerd.wire.v08.schema import NO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from consumerd.client import Channel, ClusterClient, FetchedPartitions
    from consumerd.fetch.listener import FetchCounters
    from consumerd.fetch.settings import FetchSettings
    from consumerd.partition import LogId, TopicPartition
    from consumerd.ports import Clock

#: Senders of the busy queue: one sends a request while the response of another is decoded.
BUSY_SENDERS: Final = 2
#: Size of a busy sender's request, unless a single partition's is larger.
BUSY_BYTES: Final = 2 << 20
#: An offset that the broker did not return.
_UNKNOWN: Final = -1


@dataclass(slots=True, eq=False)
class PartitionRequest:
    """One partition in the next FETCH: `max_bytes` of it from `offset` on, which was read from `log`."""

    partition: TopicPartition
    offset: int
    max_bytes: int
    leader_epoch: int
    log: LogId
    #: None: over a quota, the broker answered without the partition.
    answer: asyncio.Future[FetchedPartition | None]


class _RequestQueue:
    """Requests that go together, over one connection."""

    def __init__(
        self,
        wait: float,
        max_bytes: int,
        open_channel: Callable[[], Coroutine[Any, Any, Channel]],
        counters: FetchCounters,
    ) -> None:
        self.wait = wait
        self.max_bytes = max_bytes
        self.requests: deque[PartitionRequest] = deque()
        self.filled = asyncio.Event()
        self._open_channel = open_channel
        self._counters = counters
        self._opening = asyncio.Lock()
        self._channel: Channel | None = None

    def put(self, request: PartitionRequest) -> None:
        self.requests.append(request)
        self.filled.set()

    async def channel(self) -> Channel:
        async with self._opening:
            self.count_lost()
            if self._channel is None:
                try:
                    self._channel = await self._open_channel()
                except BrokerError:
                    self._counters.disconnects += 1
                    raise
                self._counters.connects += 1
            return self._channel

    def count_lost(self) -> None:
        """Count the connection if it has ended: once, however many requests waited for it."""
        if self._channel is not None and self._channel.closed:
            self._channel = None
            self._counters.disconnects += 1

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()


class BrokerSource:
    """Sends the requests to one broker. `run` must be running for `fetch` and `poll` to return."""

    def __init__(
        self, node_id: int, client: ClusterClient, settings: FetchSettings, counters: FetchCounters, clock: Clock
    ) -> None:
        self.node_id = node_id
        self._client = client
        self._settings = settings
        self._counters = counters
        self._clock = clock
        self._silent_until = -math.inf
        most = settings.max_answer_bytes
        self._busy = _RequestQueue(0.0, min(BUSY_BYTES, most), self._open_channel, counters)
        self._idle = _RequestQueue(settings.max_wait, most, self._open_channel, counters)

    async def _open_channel(self) -> Channel:
        return await self._client.private_channel(self.node_id)

    async def wait_out_quota(self) -> None:
        """Return when the broker wants requests again."""
        while (left := self._silent_until - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)

    async def fetch(self, request: PartitionRequest) -> FetchedPartition | None:
        """Fetch the messages that there are now; None because of a quota. Raises BrokerError, WireError."""
        return await self._ask(self._busy, request)

    async def poll(self, request: PartitionRequest) -> FetchedPartition | None:
        """Fetch messages, or nothing after a while; None because of a quota. Raises BrokerError, WireError."""
        return await self._ask(self._idle, request)

    @staticmethod
    async def _ask(queue: _RequestQueue, request: PartitionRequest) -> FetchedPartition | None:
        queue.put(request)
        return await request.answer

    async def run(self) -> None:
        """Send until cancelled, then close the connections."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(BUSY_SENDERS):
                    group.create_task(self._send(self._busy))
                group.create_task(self._send(self._idle))
        finally:
            # The tasks that wait here end as well; their responses will not come.
            for queue in (self._busy, self._idle):
                await queue.close()

    async def _send(self, queue: _RequestQueue) -> None:
        while True:
            await queue.filled.wait()
            await self._send_next(queue)

    async def _send_next(self, queue: _RequestQueue) -> None:
        """Send one FETCH if there are requests.

        A call of its own, so that nothing refers to the answers while the next requests are awaited.
        """
        requests = self._gathered(queue)
        if not requests:
            return
        try:
            await self._exchange(queue, requests)
        except (BrokerError, WireError) as error:
            queue.count_lost()
            for request in requests:
                if not request.answer.done():
                    request.answer.set_exception(error)
        except BaseException:
            for request in requests:
                request.answer.cancel()
            raise

    def _gathered(self, queue: _RequestQueue) -> list[PartitionRequest]:
        """Return the requests for one FETCH; those beyond its size wait for the next."""
        requests: list[PartitionRequest] = []
        left = queue.max_bytes
        while queue.requests and (not requests or queue.requests[0].max_bytes <= left):
            request = queue.requests.popleft()
            if not request.answer.done():  # cancelled meanwhile
                requests.append(request)
                left -= request.max_bytes
        if not queue.requests:
            queue.filled.clear()
        return requests

    async def _exchange(self, queue: _RequestQueue, requests: list[PartitionRequest]) -> None:
        channel = await queue.channel()
        settings = self._settings
        partitions = [
            PartitionFetch(
                request.partition.topic,
                request.partition.partition,
                request.offset,
                request.max_bytes,
                request.leader_epoch,
                request.log.topic_id or NO_UUID,
                _UNKNOWN if request.log.leader_epoch is None else request.log.leader_epoch,
            )
            for request in requests
        ]
        fetched = await fetch_partitions(
            channel,
            partitions,
            max_bytes=min(sum(request.max_bytes for request in requests), settings.max_answer_bytes),
            max_wait=queue.wait,
            min_bytes=settings.min_bytes if queue.wait else 0,
            read_committed=settings.read_committed,
            timeout=self._client.settings.connection.request_timeout + queue.wait,
            views=True,
        )
        self._counters.fetches += 1
        if fetched.throttled:
            self._counters.throttled += fetched.silence
            self._silent_until = max(self._silent_until, self._clock.monotonic() + fetched.silence)
        try:
            self._hand_out(fetched, requests)
        except BadFrameError:
            channel.abort()
            raise

    def _hand_out(self, fetched: FetchedPartitions, requests: list[PartitionRequest]) -> None:
        for request in requests:
            if request.answer.done():
                continue
            part = fetched.partitions.get((request.partition.topic, request.partition.partition))
            if part is None and fetched.error:
                part = FetchedPartition(fetched.error, b"", _UNKNOWN, ())
            if part is None and not fetched.throttled:
                raise BadFrameError(
                    f"broker {self.node_id} left {request.partition} out of its FETCH response", blamed=True
                )
            request.answer.set_result(part)

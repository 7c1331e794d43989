"""FETCH to one broker of 0.8 or later, for all partitions that it leads.

Strategy: each partition's fetcher queues a `PartitionRequest` and waits; a sender combines what is queued into one
FETCH, and hands out the parts of the response. A broker works on one request of a connection at a time, and may hold it
back until there are new messages. So there are two queues with a connection each: *busy* partitions, whose last
response brought something, are fetched without waiting, by a few senders in turn, so that the broker and the network
work while responses are decoded; *idle* ones are fetched together, and the broker waits up to `max_wait` for
`min_bytes` of new messages of any of them.

Memory: a busy request comes with its reservation. What idle ones may bring together is bounded by the FETCH, and
counted when it is here. One FETCH never asks for more than `max_answer_bytes`, which brokers before 0.10.1 do not obey
by themselves. A busy one asks for less: of a few MiB nothing is left in the processor's caches when it is decoded, and
the other sender's response comes meanwhile anyway.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from consumerd.errors import BrokerError
from consumerd.net import BadFrameError
from consumerd.wire import WireError
from consumerd.wire.v08.apis import FETCH

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from consumerd.client import Channel, ClusterClient
    from consumerd.fetch.listener import FetchCounters
    from consumerd.fetch.settings import FetchSettings
    from consumerd.partition import TopicPartition

#: The last version that names topics and not their ids.
LAST_VERSION: Final = 12
#: Senders of the busy queue: one asks while what another got is decoded.
BUSY_SENDERS: Final = 2
#: What a busy sender asks for at once, unless a single partition's is more.
BUSY_BYTES: Final = 2 << 20
#: The replica id of whoever is no replica.
_CONSUMER: Final = -1
#: The first version that can leave out what transactions did not commit.
_ISOLATION_SINCE: Final = 4
#: An offset that is not told.
_UNKNOWN: Final = -1


class PartitionResponse(NamedTuple):
    """What a broker answered for one partition. `aborted`: (producer id, first offset) of aborted transactions."""

    error: int
    data: bytes
    #: Up to here it may be read: what is replicated and, where that is asked for, of transactions that have ended.
    readable_end: int
    aborted: tuple[tuple[int, int], ...]


@dataclass(slots=True, eq=False)
class PartitionRequest:
    """One partition in the next FETCH: `max_bytes` of it from `offset` on."""

    partition: TopicPartition
    offset: int
    max_bytes: int
    leader_epoch: int
    answer: asyncio.Future[PartitionResponse]


class _RequestQueue:
    """Requests that go together, over one connection."""

    def __init__(self, wait: float, max_bytes: int, open_channel: Callable[[], Coroutine[Any, Any, Channel]]) -> None:
        self.wait = wait
        self.max_bytes = max_bytes
        self.requests: deque[PartitionRequest] = deque()
        self.filled = asyncio.Event()
        self._open_channel = open_channel
        self._opening = asyncio.Lock()
        self._channel: Channel | None = None

    def put(self, request: PartitionRequest) -> None:
        self.requests.append(request)
        self.filled.set()

    async def channel(self) -> Channel:
        async with self._opening:
            if self._channel is None or self._channel.closed:
                self._channel = await self._open_channel()
            return self._channel

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()


class BrokerSource:
    """Asks one broker. `run` must be running for `fetch` and `poll` to return."""

    def __init__(self, node_id: int, client: ClusterClient, settings: FetchSettings, counters: FetchCounters) -> None:
        self.node_id = node_id
        self._client = client
        self._settings = settings
        self._counters = counters
        most = settings.max_answer_bytes
        self._busy = _RequestQueue(0.0, min(BUSY_BYTES, most), self._open_channel)
        self._idle = _RequestQueue(settings.max_wait, most, self._open_channel)

    async def _open_channel(self) -> Channel:
        channel = await self._client.private_channel(self.node_id)
        self._counters.connects += 1
        return channel

    async def fetch(self, request: PartitionRequest) -> PartitionResponse:
        """What there is now. Raises BrokerError, WireError."""
        return await self._ask(self._busy, request)

    async def poll(self, request: PartitionRequest) -> PartitionResponse:
        """What there is, or nothing after a while. Raises BrokerError, WireError."""
        return await self._ask(self._idle, request)

    @staticmethod
    async def _ask(queue: _RequestQueue, request: PartitionRequest) -> PartitionResponse:
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
            # Whoever waits here belongs to tasks that end as well; what they asked for comes no more.
            for queue in (self._busy, self._idle):
                await queue.close()

    async def _send(self, queue: _RequestQueue) -> None:
        while True:
            await queue.filled.wait()
            requests = self._gathered(queue)
            if not requests:
                continue
            try:
                await self._exchange(queue, requests)
            except (BrokerError, WireError) as error:
                self._counters.disconnects += 1
                for request in requests:
                    if not request.answer.done():
                        request.answer.set_exception(error)
            except BaseException:
                for request in requests:
                    request.answer.cancel()
                raise

    def _gathered(self, queue: _RequestQueue) -> list[PartitionRequest]:
        """The requests for one FETCH; what is too much for one waits for the next."""
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
        version = channel.versions.pick(FETCH, at_most=LAST_VERSION)
        by_topic: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for request in requests:
            by_topic[request.partition.topic].append(
                {
                    "partition": request.partition.partition,
                    "current_leader_epoch": request.leader_epoch,
                    "fetch_offset": request.offset,
                    "max_bytes": request.max_bytes,
                }
            )
        settings = self._settings
        most = sum(request.max_bytes for request in requests)
        body = {
            "replica_id": _CONSUMER,
            "max_wait_time": round(queue.wait * 1000),
            "min_bytes": settings.min_bytes if queue.wait else 0,
            "max_bytes": min(most, settings.max_answer_bytes),
            "isolation_level": int(settings.read_committed),
            "topics": [{"topic": topic, "partitions": parts} for topic, parts in by_topic.items()],
        }
        if version < _ISOLATION_SINCE:  # nobody writes transactions to such a broker
            del body["isolation_level"]
        # The broker may take its time for the answer, and hold it back as long as it was told.
        patience = self._client.settings.connection.request_timeout + queue.wait
        answer = await channel.call(FETCH, body, version=version, timeout=patience)
        self._counters.fetches += 1
        try:
            self._hand_out(answer, requests)
        except BadFrameError:
            channel.abort()
            raise

    def _hand_out(self, answer: dict[str, Any], requests: list[PartitionRequest]) -> None:
        error = answer.get("error_code", 0)
        told = {
            (topic["topic"], part["partition"]): part
            for topic in answer["responses"]
            for part in topic["partition_responses"]
        }
        for request in requests:
            if request.answer.done():
                continue
            part = told.get((request.partition.topic, request.partition.partition))
            if part is None and not error:
                raise BadFrameError(
                    f"broker {self.node_id} left {request.partition} out of its answer to a FETCH", blamed=True
                )
            told_nothing = PartitionResponse(error, b"", _UNKNOWN, ())
            committed_only = self._settings.read_committed
            request.answer.set_result(told_nothing if part is None else _answer(part, committed_only))


def _answer(part: dict[str, Any], committed_only: bool) -> PartitionResponse:
    stable = part.get("last_stable_offset", _UNKNOWN)
    return PartitionResponse(
        part["error_code"],
        part["record_set"] or b"",
        stable if committed_only and stable != _UNKNOWN else part["high_watermark"],
        tuple((each["producer_id"], each["first_offset"]) for each in part.get("aborted_transactions") or ()),
    )

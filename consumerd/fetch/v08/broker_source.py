"""FETCH to one broker of 0.8 or later, for all partitions that it leads.

Strategy: fetchers of partitions come with a `Want` each and wait; a sender gathers what has come into one request, and
hands the parts of the answer out. A broker works on one request of a connection at a time, and may hold it back until
there is news. So there are two ways with a connection each: *busy* partitions, whose last answer brought something, are
asked with no waiting, by a few senders in turn, so that the broker and the network work while answers are decoded;
*idle* ones are asked together, and the broker waits up to `max_wait` for `min_bytes` of news of any of them.

Memory: a busy want comes with its reservation. What idle ones may bring together is bounded by the request, and counted
when it is here. What one sender asks for at once never exceeds `max_answer_bytes`, which brokers before 0.10.1 do not
obey by themselves. On the busy way it is less: of a few MiB nothing is left in the processor's caches when it is
decoded, and the other sender's answer comes meanwhile anyway.
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
#: Senders of the busy way: one asks while what another got is decoded.
BUSY_SENDERS: Final = 2
#: What a busy sender asks for at once, unless a single partition's is more.
BUSY_BYTES: Final = 2 << 20
#: The replica id of whoever is no replica.
_CONSUMER: Final = -1
#: The first version that can leave out what transactions did not commit.
_ISOLATION_SINCE: Final = 4
#: An offset that is not told.
_UNKNOWN: Final = -1


class Answer(NamedTuple):
    """What a broker answered for one partition. `aborted`: (producer id, first offset) of aborted transactions."""

    error: int
    data: bytes
    #: Up to here it may be read: what is replicated and, where that is asked for, of transactions that have ended.
    readable_end: int
    aborted: tuple[tuple[int, int], ...]


@dataclass(slots=True, eq=False)
class Want:
    """One partition in the next request: `max_bytes` of it from `offset` on."""

    partition: TopicPartition
    offset: int
    max_bytes: int
    leader_epoch: int
    answer: asyncio.Future[Answer]


class _Way:
    """Wants that go together, over one connection."""

    def __init__(self, wait: float, max_bytes: int, open_channel: Callable[[], Coroutine[Any, Any, Channel]]) -> None:
        self.wait = wait
        self.max_bytes = max_bytes
        self.wants: deque[Want] = deque()
        self.come = asyncio.Event()
        self._open_channel = open_channel
        self._opening = asyncio.Lock()
        self._channel: Channel | None = None

    def put(self, want: Want) -> None:
        self.wants.append(want)
        self.come.set()

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
        self._busy = _Way(0.0, min(BUSY_BYTES, most), self._open_channel)
        self._idle = _Way(settings.max_wait, most, self._open_channel)

    async def _open_channel(self) -> Channel:
        channel = await self._client.private_channel(self.node_id)
        self._counters.connects += 1
        return channel

    async def fetch(self, want: Want) -> Answer:
        """What there is now. Raises BrokerError, WireError."""
        return await self._ask(self._busy, want)

    async def poll(self, want: Want) -> Answer:
        """What there is, or nothing after a while. Raises BrokerError, WireError."""
        return await self._ask(self._idle, want)

    @staticmethod
    async def _ask(way: _Way, want: Want) -> Answer:
        way.put(want)
        return await want.answer

    async def run(self) -> None:
        """Send until cancelled, then close the connections."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(BUSY_SENDERS):
                    group.create_task(self._send(self._busy))
                group.create_task(self._send(self._idle))
        finally:
            # Whoever waits here belongs to tasks that end as well; what they asked for comes no more.
            for way in (self._busy, self._idle):
                await way.close()

    async def _send(self, way: _Way) -> None:
        while True:
            await way.come.wait()
            wants = self._gathered(way)
            if not wants:
                continue
            try:
                await self._exchange(way, wants)
            except (BrokerError, WireError) as error:
                self._counters.disconnects += 1
                for want in wants:
                    if not want.answer.done():
                        want.answer.set_exception(error)
            except BaseException:
                for want in wants:
                    want.answer.cancel()
                raise

    def _gathered(self, way: _Way) -> list[Want]:
        """The wants for one request; what is too much for one waits for the next."""
        wants: list[Want] = []
        left = way.max_bytes
        while way.wants and (not wants or way.wants[0].max_bytes <= left):
            want = way.wants.popleft()
            if not want.answer.done():  # cancelled meanwhile
                wants.append(want)
                left -= want.max_bytes
        if not way.wants:
            way.come.clear()
        return wants

    async def _exchange(self, way: _Way, wants: list[Want]) -> None:
        channel = await way.channel()
        version = channel.versions.pick(FETCH, at_most=LAST_VERSION)
        by_topic: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for want in wants:
            by_topic[want.partition.topic].append(
                {
                    "partition": want.partition.partition,
                    "current_leader_epoch": want.leader_epoch,
                    "fetch_offset": want.offset,
                    "max_bytes": want.max_bytes,
                }
            )
        settings = self._settings
        most = sum(want.max_bytes for want in wants)
        body = {
            "replica_id": _CONSUMER,
            "max_wait_time": round(way.wait * 1000),
            "min_bytes": settings.min_bytes if way.wait else 0,
            "max_bytes": min(most, settings.max_answer_bytes),
            "isolation_level": int(settings.read_committed),
            "topics": [{"topic": topic, "partitions": parts} for topic, parts in by_topic.items()],
        }
        if version < _ISOLATION_SINCE:  # nobody writes transactions to such a broker
            del body["isolation_level"]
        # The broker may take its time for the answer, and hold it back as long as it was told.
        patience = self._client.settings.connection.request_timeout + way.wait
        answer = await channel.call(FETCH, body, version=version, timeout=patience)
        self._counters.fetches += 1
        try:
            self._hand_out(answer, wants)
        except BadFrameError:
            channel.abort()
            raise

    def _hand_out(self, answer: dict[str, Any], wants: list[Want]) -> None:
        error = answer.get("error_code", 0)
        told = {
            (topic["topic"], part["partition"]): part
            for topic in answer["responses"]
            for part in topic["partition_responses"]
        }
        for want in wants:
            if want.answer.done():
                continue
            part = told.get((want.partition.topic, want.partition.partition))
            if part is None and not error:
                raise BadFrameError(
                    f"broker {self.node_id} left {want.partition} out of its answer to a FETCH", blamed=True
                )
            told_nothing = Answer(error, b"", _UNKNOWN, ())
            committed_only = self._settings.read_committed
            want.answer.set_result(told_nothing if part is None else _answer(part, committed_only))


def _answer(part: dict[str, Any], committed_only: bool) -> Answer:
    stable = part.get("last_stable_offset", _UNKNOWN)
    return Answer(
        part["error_code"],
        part["record_set"] or b"",
        stable if committed_only and stable != _UNKNOWN else part["high_watermark"],
        tuple((each["producer_id"], each["first_offset"]) for each in part.get("aborted_transactions") or ()),
    )

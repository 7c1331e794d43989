"""FETCH to one broker of 0.8 or later, for all partitions that are read from it.

Strategy: each partition's fetcher queues a `PartitionRequest` and waits. A broker works on one request of a connection
at a time, and may hold it back until there are new messages. So *busy* partitions, of which the log has more, and
*idle* ones, whose end was reached, never share a connection. Busy ones are fetched here without waiting, by a few
senders in turn, so that the broker and the network work while responses are decoded. Idle ones are polled (`polls`).

Memory: a busy request comes with its reservation. One FETCH never asks for more than `max_answer_bytes`, which brokers
before 0.10.1 do not obey by themselves. A busy one asks for less: of a few MiB nothing is left in the processor's
caches when it is decoded, and the other sender's response comes meanwhile anyway.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from operator import attrgetter
from typing import Final

from consumerd.base.errors import BrokerError
from consumerd.member.fetch.v08.exchange import Exchange, Line, PartitionRequest, answer_of, cancel, fail
from consumerd.member.fetch.v08.polls import Polls
from consumerd.net.client.fetching import FetchedPartition
from consumerd.wire import WireError

#: Senders of busy partitions: one sends a request while the response of another is decoded.
BUSY_SENDERS: Final = 2
#: Size of a busy sender's request, unless a single partition's is larger.
BUSY_BYTES: Final = 2 << 20


class BrokerSource:
    """Sends the requests to one broker. `run` must be running for `fetch` and `poll` to return."""

    #: The end of the time (the clock's seconds) in which the broker wants no request, because of a quota. Each request
    #: looks at it: without a call of Python code.
    silent_until: float = property(attrgetter("_exchange.silent_until"))  # type: ignore[assignment]

    def __init__(self, exchange: Exchange) -> None:
        self.node_id = exchange.node_id
        self._exchange = exchange
        self._polls = Polls(exchange)
        self._line = Line(exchange)
        self._most = min(BUSY_BYTES, exchange.settings.max_answer_bytes)
        self._requests: deque[PartitionRequest] = deque()
        self._filled = asyncio.Event()
        self.wait_out_quota = exchange.wait_out_quota
        self.poll = self._polls.poll
        self.hurry = self._polls.hurry
        self.confirms = self._polls.confirms

    async def fetch(self, request: PartitionRequest) -> FetchedPartition | None:
        """Fetch the messages that there are now; None because of a quota. Raises BrokerError, WireError."""
        self._requests.append(request)
        self._filled.set()
        return await request.answer

    async def open(self) -> None:
        """Open the connection of the first requests, before there are any. They meet an error again."""
        with suppress(BrokerError, WireError):
            await self._line.channel()

    async def run(self) -> None:
        """Send until cancelled, then close the connections."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(BUSY_SENDERS):
                    group.create_task(self._send())
                group.create_task(self._polls.run())
        finally:
            await self._line.close()

    async def _send(self) -> None:
        while True:
            await self._filled.wait()
            await self._send_next()

    async def _send_next(self) -> None:
        """Send one FETCH if there are requests.

        A call of its own, so that nothing refers to the answers while the next requests are awaited.
        """
        requests = self._gathered()
        if not requests:
            return
        try:
            channel = await self._line.channel()
            size = sum(request.fetch.max_bytes for request in requests)
            fetched = await self._exchange.send(channel, [request.fetch for request in requests], size, 0.0)
            self._exchange.require_all(fetched, requests, channel)
            for request in requests:
                request.settle(answer_of(fetched, request.place))
        except (BrokerError, WireError) as error:
            self._line.count_lost()
            fail(requests, error)
        except BaseException:
            cancel(requests)
            raise

    def _gathered(self) -> list[PartitionRequest]:
        """Return the requests for one FETCH; those beyond its size wait for the next."""
        requests: list[PartitionRequest] = []
        left = self._most
        while self._requests and (not requests or self._requests[0].fetch.max_bytes <= left):
            request = self._requests.popleft()
            if not request.answer.done():  # cancelled meanwhile
                requests.append(request)
                left -= request.fetch.max_bytes
        if not self._requests:
            self._filled.clear()
        return requests

"""Messages for every partition, all the while: each says which one it is, and the feed knows when it was sent."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise

from consumerd.base.clock import SystemClock
from consumerd.demo.ledger import digest
from consumerd.demo.ports import LOOPBACK
from consumerd.net.connect import connect
from consumerd.producer import Producer, ProducerData, ProducerSettings, StaticRouter

#: A round over all partitions is sent in so many requests, so that it is a stream and no pulse.
SLICES = 10


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that the broker confirmed."""

    partition: int
    #: `time.monotonic()` just before it was sent.
    at: float


class Feed:
    """Sends `rate` messages a second to each of `partitions` partitions of `topic` on the broker at `port`."""

    def __init__(self, port: int, topic: str, partitions: int, rate: float) -> None:
        self._port = port
        self._topic = topic
        self._partitions = partitions
        self._rate = rate
        self._number = 0
        #: Confirmed messages by the digest of their payload.
        self.sent: dict[int, Sent] = {}

    @contextlib.asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        """What sends; nothing is sent twice."""
        router = StaticRouter([(LOOPBACK, self._port)], rng=random.Random(1))
        settings = ProducerSettings(resends=0)
        async with Producer(
            router, connect=connect, clock=SystemClock(), rng=random.Random(1), settings=settings
        ) as producer:
            yield producer

    async def send(self, producer: Producer, partitions: range) -> None:
        """One message to each of `partitions`."""
        payloads = {}
        for partition in partitions:
            self._number += 1
            payloads[partition] = b"%d of %d " % (self._number, partition)
        at = time.monotonic()
        await producer.send_all([ProducerData(self._topic, [it], partition=p) for p, it in payloads.items()])
        self.sent.update((digest(payload), Sent(partition, at)) for partition, payload in payloads.items())

    async def backlog(self, count: int) -> None:
        """`count` messages to each partition."""
        async with self.producer() as producer:
            for _ in range(count):
                for first in range(0, self._partitions, 500):
                    await self.send(producer, range(first, min(first + 500, self._partitions)))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send as long as this lasts."""
        end = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run(end))
            try:
                yield
            finally:
                end.set()

    async def _run(self, end: asyncio.Event) -> None:
        due = time.monotonic()
        bounds = [self._partitions * number // SLICES for number in range(SLICES + 1)]
        slices = [range(*pair) for pair in pairwise(bounds) if pair[0] < pair[1]]
        async with self.producer() as producer:
            while True:
                for part in slices:
                    await self.send(producer, part)
                    due += 1 / self._rate / len(slices)
                    due = max(due, time.monotonic() - 1)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(end.wait(), max(due - time.monotonic(), 0.001))
                    if end.is_set():
                        return

"""Feeding the demo's topic: lines in batches over all partitions, plain, gzip and snappy in turn, at a set pace.

Strategy: batch number n goes to partition n modulo their number, and the codec changes with every round, so every
partition holds all three. Each batch is confirmed by its broker before the next one is sent and is never sent twice,
so that a partition holds exactly the lines of the ledger, in that order. The feed never runs ahead of the
play: it waits at a fraction of the input until `allow` moves it, so that on a slow machine too, members join and die
while there is work.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.demo.corpus import Corpus, Measure
from consumerd.demo.errors import DemoInputError
from consumerd.demo.ledger import Ledger
from consumerd.demo.ports import LOOPBACK
from consumerd.net.connect import connect
from consumerd.net.connection import ConnectionSettings
from consumerd.producer import Producer, ProducerSettings, StaticRouter
from consumerd.wire.v07 import Codec

CODECS: Final = (Codec.NONE, Codec.GZIP, Codec.SNAPPY)
#: Longer lines would exceed the size that the daemon unpacks from one compressed message.
LONGEST_LINE: Final = 60 << 20
_BATCH_LINES: Final = 500
_BATCH_BYTES: Final = 1 << 20
#: At least this many batches go to each partition with each codec, if there are lines enough.
_ROUNDS: Final = 8


def message_limit(size: Measure) -> int:
    """max.message.size for brokers and producer: the longest line, also if it grows by compression.

    Raises DemoInputError for a line that is longer than `LONGEST_LINE`.
    """
    if size.longest > LONGEST_LINE:
        raise DemoInputError(
            f"the longest line has {size.longest} bytes; the demo accepts at most {LONGEST_LINE} bytes per line"
        )
    return max(1_000_000, size.longest + size.longest // 5 + 65_536)


class Feed:
    """Sends the corpus to `topic` on brokers (id -> port) with `partitions` each, in about `seconds`."""

    def __init__(
        self,
        corpus: Corpus,
        size: Measure,
        ledger: Ledger,
        topic: str,
        brokers: Mapping[int, int],
        partitions: int,
        *,
        seconds: float,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._corpus = corpus
        self._size = size
        self._ledger = ledger
        self._topic = topic
        self._brokers = dict(brokers)
        self._seconds = seconds
        self._clock = clock
        self._rng = rng
        self.partitions = [TopicPartition(topic, b, p) for p in range(partitions) for b in sorted(self._brokers)]
        #: Lines that brokers have confirmed.
        self.sent = 0
        self.finished = False
        #: Everything that may be sent is sent.
        self.idle = False
        self._allowed = 1.0
        self._progress = asyncio.Condition()

    async def allow(self, fraction: float) -> None:
        """Send up to this part of all lines (0 to 1), then wait for the next call."""
        async with self._progress:
            self._allowed = fraction
            self.idle = False
            self._progress.notify_all()

    async def reached(self, fraction: float) -> None:
        """Return when this part of all lines (0 to 1) is sent, or everything."""
        async with self._progress:
            await self._progress.wait_for(lambda: self.finished or self.sent >= fraction * self._size.lines)

    async def run(self) -> None:
        """Send everything. Raises DemoInputError, BrokerError."""
        due = self._clock.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            producers = {
                (broker, codec): await stack.enter_async_context(self._producer(port, codec))
                for broker, port in self._brokers.items()
                for codec in CODECS
            }
            batches = self._batches()
            number = 0
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                await self._allowance()
                target = self.partitions[number % len(self.partitions)]
                codec = CODECS[number // len(self.partitions) % len(CODECS)]
                await producers[target.broker, codec].send(self._topic, batch, partition=target.partition)
                self._ledger.partition(target).send(batch)
                number += 1
                await self._advance(len(batch))
                due = max(due, self._clock.monotonic() - 1.0) + self._seconds * len(batch) / self._size.lines
                await self._clock.sleep(due - self._clock.monotonic())
        async with self._progress:
            self.finished = True
            self._progress.notify_all()

    async def _allowance(self) -> None:
        async with self._progress:
            while self.sent >= self._allowed * self._size.lines:
                self.idle = True
                await self._progress.wait()

    async def _advance(self, lines: int) -> None:
        async with self._progress:
            self.sent += lines
            self._progress.notify_all()

    def _producer(self, port: int, codec: Codec) -> Producer:
        limit = message_limit(self._size)
        request = max(ProducerSettings().max_request_bytes, limit + _BATCH_BYTES)
        return Producer(
            StaticRouter([(LOOPBACK, port)], rng=self._rng),
            connect=partial(connect, settings=ConnectionSettings()),
            clock=self._clock,
            rng=self._rng,
            settings=ProducerSettings(codec=codec, max_message_bytes=limit, max_request_bytes=request, resends=0),
        )

    def _batches(self) -> Iterator[list[bytes]]:
        wanted = max(1, min(_BATCH_LINES, self._size.lines // (len(self.partitions) * len(CODECS) * _ROUNDS)))
        batch: list[bytes] = []
        size = 0
        for line in self._corpus.lines():
            if len(batch) == wanted or (batch and size + len(line) > _BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(line)
            size += len(line)
        if batch:
            yield batch

"""The producer for brokers of 0.8 and later.

Strategy: `send` puts a message into its partition's open batch and returns at once, as long as there is room; full or
old batches are sent by `Sender`, in the order of each partition, whatever is retried. With idempotence, which is the
default where the brokers have it, a batch that is sent again is recognised, so that nothing is there twice either.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

import structlog

from consumerd.errors import BrokerError
from consumerd.fetch import ByteBudget
from consumerd.partition import TopicPartition
from consumerd.producer.errors import MessageSizeTooLargeError, ProducerClosedError
from consumerd.producer.logical_batches import Batch, message_size
from consumerd.producer.logical_sender import Sender
from consumerd.producer.logical_settings import LogicalProducerSettings
from consumerd.producer.murmur2 import key_partition

if TYPE_CHECKING:
    from random import Random
    from types import TracebackType
    from typing import Self

    from consumerd.client import ClusterClient
    from consumerd.fetch import Reservation
    from consumerd.ports import Clock
    from consumerd.producer.logical_batches import Delivery
    from consumerd.wire.v08.records import Headers

log = structlog.get_logger(__name__)


class LogicalProducer:
    """Sends messages. `async with` runs it; leaving it sends what is left. `client` stays the caller's."""

    def __init__(
        self,
        client: ClusterClient,
        settings: LogicalProducerSettings | None = None,
        *,
        clock: Clock,
        rng: Random,
    ) -> None:
        self.settings = settings or LogicalProducerSettings()
        self._client = client
        self._clock = clock
        self._rng = rng
        self._budget = ByteBudget(self.settings.buffer_bytes)
        self._sender = Sender(
            client, self.settings, clock, rng, self._settle, lambda topic: self._sticky.pop(topic, None)
        )
        self._reservations: dict[Batch, Reservation] = {}
        self._sticky: dict[str, int] = {}
        self._turn: defaultdict[str, int] = defaultdict(int)
        self._unsettled = 0
        #: Set while no batch is open or under way.
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._running: asyncio.Task[None] | None = None

    # -- life

    async def start(self) -> None:
        """Begin to send."""
        self._running = asyncio.create_task(self._sender.run(), name="producer")

    async def close(self, timeout: float | None = None) -> None:
        """Send what is left, for at most `timeout` seconds (by default as long as deliveries may take), and end."""
        self._closed = True
        try:
            async with asyncio.timeout(self.settings.delivery_timeout if timeout is None else timeout):
                await self.flush()
        except TimeoutError:
            log.warning("producer_closed_early", batches=self._unsettled)
        finally:
            await self._end()

    async def abort(self) -> None:
        """End at once: nothing more is sent, and what is not settled fails. What is on the wire may still arrive."""
        self._closed = True
        await self._end()

    async def _end(self) -> None:
        running = self._running
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
        self._sender.give_up(ProducerClosedError("the producer was closed before this message was sent."))
        if running is not None and not running.cancelled() and (error := running.exception()) is not None:
            raise error

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self.abort()

    async def flush(self) -> None:
        """Send at once, and return when everything that was given before is settled, one way or the other."""
        self._sender.hurry(1)
        idle = asyncio.ensure_future(self._idle.wait())
        try:
            # Should sending end by a defect, nobody waits for what it would have sent.
            await asyncio.wait([idle, *([self._running] if self._running else [])], return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
            self._sender.hurry(-1)

    # -- taking messages

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
    ) -> Delivery:
        """Take a message; returns when there is room for it, not when it is sent: await the `Delivery` for that.

        Where `partition` is None the key decides, as for the JVM's producers; without a key the settings do.
        `timestamp`: milliseconds, now by default. Raises ProducerClosedError, MessageSizeTooLargeError, and BrokerError
        while nothing is known of the topic.
        """
        self._require_open()
        size = message_size(key, value, headers)
        if size > min(self.settings.buffer_bytes, self._client.settings.max_request_bytes):
            raise MessageSizeTooLargeError(f"a message of {size} bytes is more than a request or the buffer may have.")
        count = await self._partition_count(topic)
        number = self._choose(topic, key, count) if partition is None else partition
        if not 0 <= number < count:
            raise BrokerError(f"{topic} has {count} partitions, and so no partition {number}")
        reservation = await self._budget.reserve(size)
        try:
            self._require_open()
        except ProducerClosedError:
            reservation.release()
            raise
        wall = int(self._clock.wall() * 1000) if timestamp is None else timestamp
        batch = self._batch(TopicPartition.numbered(topic, number), size)
        held = self._reservations.get(batch)
        if held is None:
            self._reservations[batch] = reservation
        else:
            held.resize(held.amount + size)
            reservation.release()
        delivery = batch.add(key, value, wall, headers)
        if batch.size >= self.settings.batch_bytes:
            self._sender.queue(batch.partition).seal()
            self._sticky.pop(topic, None)
            self._sender.wake()
        return delivery

    def _require_open(self) -> None:
        if self._closed or self._running is None:
            raise ProducerClosedError("the producer is not open.")

    async def _partition_count(self, topic: str) -> int:
        known = self._client.metadata.topics.get(topic)
        if known is not None and known.partitions:
            return len(known.partitions)

        async def ask() -> int:
            metadata = await self._client.topics([topic], create=self.settings.create_topics)
            found = metadata.topics.get(topic)
            if found is None or not found.partitions:
                await self._client.leader(topic, 0)  # says what is wrong with it
            return len(found.partitions) if found is not None else 0

        return await self._client.retrying(f"partitions of {topic}", ask)

    def _choose(self, topic: str, key: bytes | None, count: int) -> int:
        if key is not None:
            return key_partition(key, count)
        if self.settings.keyless == "round_robin":
            self._turn[topic] += 1
            return self._turn[topic] % count
        number = self._sticky.get(topic)
        if number is None or number >= count:
            number = self._sticky[topic] = self._rng.randrange(count)
        return number

    def _batch(self, partition: TopicPartition, size: int) -> Batch:
        queue = self._sender.queue(partition)
        if queue.open is not None and queue.open.size + size > self.settings.batch_bytes:
            queue.seal()
        if queue.open is None:
            due = self._clock.monotonic() + self.settings.linger
            queue.open = Batch(partition, due, asyncio.get_running_loop().create_future())
            self._unsettled += 1
            self._idle.clear()
            self._sender.wake()
        return queue.open

    def _settle(self, batch: Batch) -> None:
        reservation = self._reservations.pop(batch, None)
        if reservation is not None:
            reservation.release()
        self._unsettled -= 1
        if not self._unsettled:
            self._idle.set()

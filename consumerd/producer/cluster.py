"""The producer for brokers of 0.8 and later with the methods of `Producer` and `AsyncProducer`.

Strategy: one `V08Producer` below, which batches, retries and keeps the order of each partition. In the foreground
`send` waits until the brokers have confirmed its messages; in the background it returns when they are buffered, and
batches that fail later are counted here, and raised by the next flush.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import structlog

from consumerd.base.errors import ConsumerdError, reason_of
from consumerd.producer.encoders import DefaultEncoder, Encoder, encode_all
from consumerd.producer.errors import EncodingError, MessageSizeTooLargeError, NotSentError
from consumerd.producer.partitioners import Partitioner, checked_index
from consumerd.producer.v07.data import ProducerData
from consumerd.producer.v08.batches import BatchRange, Deliveries, ProducerBatch
from consumerd.producer.v08.producer import ProducerTransaction, V08Producer
from consumerd.wire.v08.records import Headers

log = structlog.get_logger(__name__)

DEFAULT_ENCODER = DefaultEncoder()
#: The timestamp of a message without one, and the largest number.
_NO_TIME: Final = -1
_LAST_TIME: Final = (1 << 63) - 1


class ClusterProducer:
    """Sends messages through `producer`, which it runs and ends. `open_producer` makes one.

    `partitioner`: which of a topic's partitions a key belongs to; by default that of Java's producers.
    """

    def __init__(
        self,
        producer: V08Producer,
        *,
        background: bool = False,
        encoder: Encoder = DEFAULT_ENCODER,
        partitioner: Partitioner | None = None,
    ) -> None:
        self.encoder = encoder
        self._producer = producer
        self._background = background
        self._partitioner = partitioner
        #: In the background: messages of ours in batches of which nothing is known yet.
        self._pending: dict[ProducerBatch, int] = {}
        self._failed = 0
        self._cause: BaseException | None = None

    async def send(
        self,
        topic: str,
        payloads: Sequence[Any],
        *,
        key: Hashable = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> None:
        """Send `payloads`, one message each, in order, all with `key`, `headers` and `timestamp` (milliseconds).

        A payload of None deletes the messages of its key, in a compacted topic. In the foreground returns when the
        brokers have confirmed all messages, by `acks`, and raises the first error; other messages may be stored. In
        the background returns when there is room. Raises EncodingError and PartitionerError before anything is sent;
        MessageSizeTooLargeError, BrokerError, ProducerClosedError.
        """
        await self.send_all([ProducerData(topic, payloads, key, partition, headers, timestamp)])

    async def send_all(self, data: Sequence[ProducerData], *, merge: bool = True) -> None:
        """The same for several. Messages to one partition are joined with any value of `merge`."""
        deliveries: list[Deliveries] = []
        for item in data:
            deliveries += await self._taken(item)
        for each in deliveries:
            await each.confirm()

    async def send_each(self, data: Sequence[ProducerData]) -> list[ConsumerdError | None]:
        """Send several as `send_all` in the foreground; return for each the error with which it failed.

        Nothing is on its way any more when this returns. Raises what is not about one of them, as `send`.
        """
        taken: list[list[Deliveries] | MessageSizeTooLargeError] = []
        for item in data:
            try:
                taken.append(await self._taken(item))
            except MessageSizeTooLargeError as error:
                taken.append(error)
        outcomes: list[ConsumerdError | None] = []
        for each in taken:
            try:
                if isinstance(each, MessageSizeTooLargeError):
                    raise each
                for deliveries in each:
                    await deliveries.confirm()
            except ConsumerdError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    async def _taken(self, data: ProducerData) -> list[Deliveries]:
        topic, payloads, key, partition = data.topic, data.payloads, data.key, data.partition
        headers, timestamp = data.headers, data.timestamp
        if headers or timestamp is not None:
            headers = _checked(headers, timestamp)
        filled = encode_all(self.encoder, [payload for payload in payloads if payload is not None])
        values: list[bytes | None] = [*filled]
        if len(values) != len(payloads):
            rest = iter(filled)
            values = [None if payload is None else next(rest) for payload in payloads]
        encoded = _encoded_key(key)
        if values and partition is None and key is not None and self._partitioner is not None:
            partition = checked_index(self._partitioner, key, await self._producer.partition_count(topic))
        send, watch = self._producer.send, self._watch if self._background else None
        if len(values) == 1:
            one = await send(topic, values[0], key=encoded, partition=partition, timestamp=timestamp, headers=headers)
            deliveries = Deliveries([BatchRange(one.batch, one.number, 1)])
            if watch is not None:
                watch(deliveries.ranges[0])
        else:
            deliveries = await self._producer.send_many(
                topic, values, key=encoded, partition=partition, timestamp=timestamp, headers=headers, taken=watch
            )
        return [] if self._background else [deliveries]

    def _watch(self, part: BatchRange) -> None:
        batch = part.batch
        if batch not in self._pending:
            self._pending[batch] = 0
            batch.outcome.add_done_callback(partial(self._settled, batch))
        self._pending[batch] += part.messages

    def _settled(self, batch: ProducerBatch, outcome: asyncio.Future[Any]) -> None:
        count = self._pending.pop(batch, 0)  # none where `_tell` was faster
        if count and not outcome.cancelled() and (error := outcome.exception()) is not None:
            count = min(count, batch.failed)
            self._failed += count
            self._cause = self._cause or error
            log.error("messages_not_sent", messages=count, topics=[batch.partition.topic], reason=reason_of(error))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[ClusterTransaction]:
        """A transaction, for `async with`, of a producer with a transactional id. See `V08Producer.transaction`."""
        async with self._producer.transaction() as opened:
            yield ClusterTransaction(self._taken, opened)

    async def flush(self) -> None:
        """Return when everything sent is settled. Raises NotSentError if messages failed since the last call."""
        await self._producer.flush()
        self._tell()

    def _tell(self) -> None:
        """Raise NotSentError for messages that failed since the last call."""
        for batch in [batch for batch in self._pending if batch.outcome.done()]:
            self._settled(batch, batch.outcome)
        if self._failed:
            (count, cause), self._failed, self._cause = (self._failed, self._cause), 0, None
            raise NotSentError(count, str(cause)) from cause

    async def close(self, timeout: float | None = None) -> None:
        """Send the rest, for at most `timeout` seconds (by default `delivery_timeout`), and close.

        Raises as `flush`.
        """
        await self._producer.close(timeout)
        self._tell()

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        elif isinstance(error, Exception) and self._background:
            # Accepted messages are sent; the error in the block matters more than one of the flush.
            try:
                await self.close()
            except Exception as own:
                log.error("producer_close_failed", reason=reason_of(own))
        else:
            await self._producer.abort()


class ClusterTransaction:
    """An open transaction: what is sent with it counts together, or not at all."""

    def __init__(self, take: Callable[[ProducerData], Awaitable[object]], transaction: ProducerTransaction) -> None:
        self._take = take
        #: As `consumerd.producer.v08.producer.ProducerTransaction.send_offsets`.
        self.send_offsets = transaction.send_offsets

    async def send(
        self,
        topic: str,
        payloads: Sequence[Any],
        *,
        key: Hashable = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> None:
        """Send as `ClusterProducer.send`; return when there is room. The end of the transaction raises what failed."""
        await self._take(ProducerData(topic, payloads, key, partition, headers, timestamp))


def _checked(headers: Headers, timestamp: int | None) -> Headers:
    """The headers, as a value that can be read twice. Raises EncodingError for what no message can hold."""
    if timestamp is not None and (not isinstance(timestamp, int) or not _NO_TIME <= timestamp <= _LAST_TIME):
        raise EncodingError(f"a timestamp must be a number of milliseconds since 1970, not {timestamp!r}.")
    pairs = tuple(headers)
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise EncodingError(f"a header must be a pair of name and value, not {pair!r}.")
        name, value = pair
        if not isinstance(name, str) or not (value is None or isinstance(value, (bytes, bytearray, memoryview))):
            raise EncodingError(f"a header must have a text as its name, and bytes or None as its value, not {pair!r}.")
        _encoded_key(name)
    return pairs


def _encoded_key(key: Hashable) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise EncodingError(f"a key or the name of a header cannot be encoded as UTF-8: {error.reason}.") from error
    raise EncodingError(f"a key must be text or bytes, not {type(key).__name__}.")

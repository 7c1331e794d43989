"""Sends one source partition to the target: chunk by chunk, each acknowledged before the next one is sent.

Strategy: a feed has a producer of its own, so that it ends alone when something fails or is cancelled, and nothing of
it is sent after that. A chunk is one batch for each partition of the target that it has messages for. Chunk after chunk
means that a failed one has no successor on the target: the target always has the beginning of the delivered messages,
perhaps with a part repeated. A chunk that the target finds too large is halved, down to a single message.

With a `name` each batch is a transaction that has the position after it, too: it counts as a whole, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import structlog

from consumerd.base.errors import HandlerFailedError, reason_of
from consumerd.base.partition import NO_BROKER, LogId, TopicPartition
from consumerd.base.ports import Clock
from consumerd.handlers import Batch
from consumerd.handlers.contents import known_timestamp
from consumerd.handlers.counts import TargetCounts
from consumerd.handlers.forward.errors import OtherLogError, is_too_large
from consumerd.handlers.forward.identity import SourceIdentity, SourceMark
from consumerd.handlers.forward.positions import PartitionTransactions
from consumerd.handlers.forward.settings import ForwardPlacing, ForwardSettings
from consumerd.handlers.messages import Message
from consumerd.net.client.cluster import ClusterClient
from consumerd.producer.v08.batches import message_size
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.wire.crc import crc32
from consumerd.wire.v08.records import Headers

log = structlog.get_logger(__name__)

#: Longer than any chunk takes to be filled: chunks are sent when they are complete, not before.
_LINGER = 3600.0
#: The largest offset or index.
_LARGEST = (1 << 63) - 1
#: Messages that are looked at before others have their turn: a batch may have millions.
_TURN = 10_000
#: Bytes of a batch beside its messages.
_BATCH_OVERHEAD = 61


class _Outgoing(NamedTuple):
    """A message as it will be sent."""

    value: bytes | None
    key: bytes | None
    partition: int | None
    timestamp: int | None
    headers: Headers
    size: int


class PartitionFeed:
    """Sends batches of `source` to `topic`, which has `count` partitions; `place` is that of the source partition."""

    def __init__(
        self,
        source: TopicPartition,
        topic: str,
        place: int,
        settings: ForwardSettings,
        client: ClusterClient,
        *,
        clock: Clock,
        rng: Random,
        counts: TargetCounts | None = None,
        name: str | None = None,
    ) -> None:
        self.source = source
        self._counts = counts or TargetCounts()
        self.topic = topic
        self.place = place
        self._settings = settings
        self._chunk_bytes = settings.chunk_bytes
        self._mark = SourceMark(source, settings.cluster) if settings.headers else None
        #: Bytes of a message beside key, payload and headers of its own, at most.
        self._overhead = _BATCH_OVERHEAD
        #: The last message that the target has already: messages up to this one are left out.
        self.known: SourceIdentity | None = None
        #: The position that was returned for the start of the partition: no delivery begins before it.
        self.began: int | None = None
        room = settings.chunk_bytes + settings.max_message_bytes
        self._producer = V08Producer(
            client,
            V08ProducerSettings(
                codec=settings.codec,
                batch_bytes=2 * room,
                buffer_bytes=4 * room,
                linger=_LINGER,
                delivery_timeout=settings.delivery_timeout,
                keyless="round_robin" if settings.placing is ForwardPlacing.ROUND_ROBIN else "sticky",
                idempotent=settings.idempotent,
                create_topics=False,
                transactional_id=name,
                transaction_timeout=settings.delivery_timeout,
            ),
            clock=clock,
            rng=rng,
            divides=False,  # a chunk is stored as a whole or not at all; `_send` makes smaller ones
        )
        #: None without transactions.
        self.transactions = None if name is None else PartitionTransactions(self._producer, client, name, source, topic)

    def _read_from(self, log: LogId) -> None:
        """Send messages of `log` from now on."""
        if self._mark is not None:
            self._mark.read_from(log)
            marked = self._mark.headers(_LARGEST, _LARGEST, b"")
            self._overhead = _BATCH_OVERHEAD + message_size(None, None, marked) - message_size(None, None, ())

    async def open(self) -> None:
        """Begin; with transactions, fence former feeds of the partition, and read its position."""
        if self.transactions is None:
            await self._producer.start()
        else:
            await self.transactions.open()

    async def abort(self) -> None:
        """End at once: messages that were not acknowledged are not sent any more."""
        await self._producer.abort()

    async def forward(self, batch: Batch) -> None:
        """Send the rest of `batch`, marking it as it is acknowledged.

        Raises HandlerFailedError, and what the producer raises.
        """
        batch.mark(batch.handled)
        if self.transactions is not None:
            await self._forward_once(batch, self.transactions)
            return
        if (skipped := await self._known_in(batch)) > batch.handled:
            log.info("forwarded_messages_skipped", partition=str(self.source), messages=skipped - batch.handled)
            batch.mark(skipped)
        self._read_from(batch.log)
        for chunk in self._chunks(batch.rest(batch.handled).messages()):
            await self._send(chunk, batch)

    async def _forward_once(self, batch: Batch, transactions: PartitionTransactions) -> None:
        """Send the rest of `batch` and the position after it in one transaction, and mark it."""
        transactions.skip(batch)
        self._read_from(batch.log)
        rest = batch.rest(batch.handled)
        chunk: list[_Outgoing] = []
        while len(rest):
            self._counts.sent[self.source.topic] += len(rest)
            try:
                async with transactions.transaction(batch):
                    for chunk in self._chunks(rest.messages()):
                        await self._deliver(chunk)
                break
            except Exception as error:
                if not is_too_large(error) or len(chunk) == 1:
                    raise
                self._chunk_bytes = sum(each.size for each in chunk) // 2
                log.info(
                    "chunk_size_halved", partition=str(self.source), bytes=self._chunk_bytes, reason=reason_of(error)
                )
        batch.mark(len(batch))
        self._counts.confirmed[self.source.topic] += len(rest)

    async def _known_in(self, batch: Batch) -> int:
        """Return the number of messages from the front of the batch that the target has already.

        None of a topic that was created again since, as its id tells. Where no id does: raises OtherLogError if the
        last of them is not the one that the target has, or the log ended before it.
        """
        (known, began), self.known, self.began = (self.known, self.began), None, None
        if known is not None and known.log.replaced_by(batch.log):
            return 0
        if began is not None and batch.start_offset < began:
            raise OtherLogError(
                f"{self.source} restarts at offset {batch.start_offset}, and the target has its message at offset "
                f"{began} "
                "already: the source topic was recreated or its log was truncated; forward it to another topic, or set "
                "another `source`."
            )
        if known is None or not batch.start_offset <= known.offset < batch.next_offset:
            return 0
        count, same = 0, self.source.broker == NO_BROKER  # where compaction may have taken the message away
        for message in batch.messages():
            place = message.offset, message.index
            if place > known.place:
                # Another attempt gets the rest of a batch, which may begin inside a compressed message: behind the
                # one to compare, which this process has delivered.
                same = same or (not count and message.index > 0)
                break
            count += 1
            if not count % _TURN:
                await asyncio.sleep(0)
            if place == known.place:
                payload: bytes | None = message.payload
                same = known.crc == (None if payload is None else crc32(payload))
        if not same:
            raise OtherLogError(
                f"the message at offset {known.offset} of {self.source} differs from the last one on the target: the "
                "source topic was recreated; forward it to another topic, or set another `source`."
            )
        return count

    def _chunks(self, messages: Iterator[Message]) -> Iterator[list[_Outgoing]]:
        """The messages that are sent together: at most `chunk_bytes`, at least one message."""
        chunk: list[_Outgoing] = []
        size = 0
        for message in messages:
            outgoing = self._outgoing(message)
            if chunk and size + outgoing.size > self._chunk_bytes:
                yield chunk
                chunk, size = [], 0
            chunk.append(outgoing)
            size += outgoing.size
        if chunk:
            yield chunk

    def _outgoing(self, message: Message) -> _Outgoing:
        settings = self._settings
        payload: bytes | None = message.payload
        key = message.key
        if key is None and settings.key is not None and payload is not None:
            key = settings.key(payload)
        if key is None and settings.key_required:
            raise HandlerFailedError(f'{_where(message)} has no key, and key_missing is "fail".')
        headers = message.headers if self._mark is not None or settings.keep_headers else ()
        size = message_size(key, payload, headers) + self._overhead
        if self._mark is not None:
            headers = (*headers, *self._mark.headers(message.offset, message.index, payload))
        if size > settings.max_message_bytes:
            raise HandlerFailedError(
                f"{_where(message)} has {size} bytes with its headers; max_message_bytes is "
                f"{settings.max_message_bytes}: raise it up to the target's message.max.bytes, or raise the topic's "
                "max.message.bytes."
            )
        timestamp = known_timestamp(message.timestamp) if settings.keep_timestamps else None
        return _Outgoing(payload, key, self._partition(key), timestamp, headers, size)

    def _partition(self, key: bytes | None) -> int | None:
        """The target partition; None leaves it to the producer."""
        placing = self._settings.placing
        if placing is ForwardPlacing.KEEP or (placing is ForwardPlacing.KEY and key is None):
            return self.place
        return None

    async def _send(self, chunk: list[_Outgoing], batch: Batch) -> None:
        """Return when the target has all of `chunk`, and `batch` is marked."""
        pending = [chunk]
        while pending:
            part = pending.pop()
            self._counts.sent[self.source.topic] += len(part)
            try:
                await self._deliver(part)
            except Exception as error:
                if not is_too_large(error) or len(part) == 1:
                    raise
                half = (len(part) + 1) // 2
                self._chunk_bytes = sum(each.size for each in part) // 2
                log.info(
                    "chunk_size_halved", partition=str(self.source), bytes=self._chunk_bytes, reason=reason_of(error)
                )
                pending += [part[half:], part[:half]]
                continue
            batch.mark(batch.handled + len(part))
            self._counts.confirmed[self.source.topic] += len(part)

    async def _deliver(self, chunk: list[_Outgoing]) -> None:
        first, common = chunk[0], chunk[0][1:5]
        if self._mark is None and all(each[1:5] == common for each in chunk):
            together = await self._producer.send_many(
                self.topic,
                [each.value for each in chunk],
                key=first.key,
                partition=first.partition,
                timestamp=first.timestamp,
                headers=first.headers,
            )
            await self._producer.flush()
            await together.confirm()
            return
        send = self._producer.send
        deliveries = [
            await send(
                self.topic,
                each.value,
                key=each.key,
                partition=each.partition,
                timestamp=each.timestamp,
                headers=each.headers,
            )
            for each in chunk
        ]
        await self._producer.flush()
        for delivery in deliveries:
            await delivery


def _where(message: Message) -> str:
    return f"the message at offset {message.offset} (index {message.index}) of {message.partition}"

"""The producer for brokers of 0.8 and later.

Strategy: `send` puts a message into its partition's open batch and returns at once, as long as there is room; full or
old batches are sent by `Sender`, in the order of each partition, also with retries. With idempotence, which is the
default where the brokers have it, a batch that is sent again is recognised, so that nothing is there twice either.

The cost of a message is low: in the common case (an open batch that takes messages without a key, room) `send` chooses
nothing and waits for nothing: one call of the batch's `Filling` adds the message and makes its `Delivery`. `send_many`
does all of it once for as many messages as a batch has room for. When they need a new batch they yield to other tasks
first, or nothing would be sent before the buffer is full. Memory is taken from the budget in advance, a little for all
batches (the credit), most of which is leased to fillings, and given back when a caller has to wait for some.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from types import TracebackType
from typing import Final, Self

import structlog

from consumerd.base.budget import ByteBudget
from consumerd.base.errors import BrokerError, reason_of
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import BrokerRefusedError
from consumerd.producer.errors import MessageSizeTooLargeError, ProducerClosedError
from consumerd.producer.v08.batches import (
    BatchRange,
    Deliveries,
    Delivery,
    Filling,
    PartitionQueue,
    ProducerBatch,
    message_size,
    new_filling,
)
from consumerd.producer.v08.routing import Route
from consumerd.producer.v08.sender import Sender
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.producer.v08.sizes import sizes_of
from consumerd.producer.v08.transactions import CommittingMember, TransactionOffset, Transactions
from consumerd.wire.v08.records import Headers

log = structlog.get_logger(__name__)

#: Most bytes that are taken from the budget in advance at once, ...
_CREDIT: Final = 64 << 10
#: Seconds for an abort after an error or a cancellation.
_ABORT_PATIENCE: Final = 5.0
#: ... if they are at most this part of the budget, which the fillings divide.
_PART: Final = 32


class ProducerTransaction:
    """An open transaction of a producer: what is sent with it counts together, or not at all."""

    def __init__(self, producer: V08Producer, transactions: Transactions) -> None:
        self._transactions = transactions
        #: As `V08Producer.send`, and `V08Producer.send_many`.
        self.send = producer.send
        self.send_many = producer.send_many

    async def send_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int | TransactionOffset],
        member: CommittingMember | None = None,
    ) -> None:
        """Commit offsets of a group with the transaction: each that of the next message to handle.

        `member`: the member that consumed the messages, which the coordinator then checks (2.5 and later); None for
        offsets outside of a group that a broker coordinates. Raises TransactionAbortedError where they are refused,
        ProducerFencedError, BrokerError.
        """
        places = {
            partition: place if isinstance(place, TransactionOffset) else TransactionOffset(place)
            for partition, place in offsets.items()
        }
        await self._transactions.send_offsets(group, places, member)


class V08Producer:
    """Sends messages. `async with` runs it; leaving it sends the rest. `client` stays the caller's.

    `divides`: whether a batch that a broker finds too large is sent in parts; else all of its messages fail.
    """

    def __init__(
        self,
        client: ClusterClient,
        settings: V08ProducerSettings | None = None,
        *,
        clock: Clock,
        rng: Random,
        divides: bool = True,
    ) -> None:
        self.settings = settings or V08ProducerSettings()
        self._client = client
        self._clock = clock
        self._rng = rng
        self._budget = ByteBudget(self.settings.buffer_bytes)
        #: Of the messages in all batches, and the credit.
        self._held = self._budget.charge(0)
        self._credit = 0
        self._advance = self.settings.buffer_bytes // _PART
        self._transactions = (
            None if self.settings.transactional_id is None else Transactions(client, self.settings, clock)
        )
        self._sender = Sender(
            client, self.settings, clock, rng, self._settle, self._unstick, self._transactions, divides=divides
        )
        self._routes: dict[str, Route] = {}
        #: Of each topic's open batch that messages without a key go to; none while the producer is closed.
        self._fillings: dict[str, Filling] = {}
        self._wall = clock.wall
        self._batch_bytes = self.settings.batch_bytes
        self._largest = min(self.settings.buffer_bytes, client.settings.max_request_bytes)
        self._open = False
        self._running: asyncio.Task[None] | None = None
        self._in_transaction = asyncio.Lock()

    # -- life

    async def start(self) -> None:
        """Begin to send."""
        self._running = asyncio.create_task(self._sender.run(), name="producer")
        self._running.add_done_callback(self._ended)
        self._open = self._transactions is None

    async def close(self, timeout: float | None = None) -> None:
        """Send the rest, for at most `timeout` seconds (by default the delivery timeout), and close."""
        self._shut()
        try:
            async with asyncio.timeout(self.settings.delivery_timeout if timeout is None else timeout):
                await self.flush()
        except TimeoutError:
            log.warning("producer_close_timed_out", batches=len(self._sender.unsettled()))
        finally:
            await self._end()

    async def abort(self) -> None:
        """Close at once: nothing more is sent, and unsettled messages fail. Requests on the wire may still arrive."""
        self._shut()
        await self._end()

    def _shut(self) -> None:
        """Take no more messages."""
        self._open = False
        self._recall_all()

    def _ended(self, running: asyncio.Task[None]) -> None:
        """Sending has ended. After a defect, which `close` raises, pending deliveries fail at once."""
        if not running.cancelled() and (error := running.exception()) is not None:
            self._shut()
            self._sender.give_up(ProducerClosedError(f"the producer failed with an internal error: {error!r}"))

    async def _end(self) -> None:
        running = self._running
        try:
            if running is not None:
                running.cancel()
                await asyncio.wait([running])
        finally:  # no caller may wait for ever because we were cancelled
            self._sender.give_up(ProducerClosedError("the producer was closed before this message was confirmed."))
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
        given = self._sender.unsettled()
        if not given:
            return
        self._sender.hurry(1)
        try:
            await asyncio.wait(given)  # if sending ends by a defect, all of them fail
        finally:
            self._sender.hurry(-1)

    # -- transactions

    async def init_transactions(self) -> None:
        """Have brokers fence former producers of the transactional id, and end what they left open.

        The first transaction does it by itself. Raises ProducerFencedError, BrokerError.
        """
        await self._transactional().initialise()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[ProducerTransaction]:
        """A transaction, for `async with`: leaving the block commits it, an error or a cancellation aborts it.

        One at a time. Raises ProducerFencedError, and BrokerError where the coordinator cannot be reached; at the end
        TransactionAbortedError where the commit was refused or a message failed, and TransactionUncertainError where
        the answer to the commit is missing.
        """
        transactions = self._transactional()
        async with self._in_transaction:
            await self.flush()  # of a transaction that was cancelled: nothing of it may be sent in this one
            await transactions.begin()
            self._open = True
            try:
                yield ProducerTransaction(self, transactions)
                self._shut()
                await transactions.end(commit=True, settled=self.flush)
            except BaseException as error:
                self._shut()
                await self._abort_transaction(transactions)
                # A batch of a fenced producer is refused for its epoch; that this is final, the abort has shown.
                if transactions.fenced and type(error) is BrokerRefusedError:
                    raise transactions.state.refusal() from error
                raise

    async def _abort_transaction(self, transactions: Transactions) -> None:
        """Abort what can be aborted. What cannot, the next transaction has the coordinator end before it begins."""
        if not transactions.abortable:
            return
        try:
            async with asyncio.timeout(_ABORT_PATIENCE):
                await transactions.end(commit=False, settled=self.flush)
        except (BrokerError, TimeoutError) as error:
            log.warning(
                "transaction_abort_failed", transactional_id=transactions.transactional_id, reason=reason_of(error)
            )

    def _transactional(self) -> Transactions:
        if self._running is None or self._running.done():
            raise ProducerClosedError("the producer is not open.")
        if self._transactions is None:
            raise ProducerClosedError("the producer has no transactional_id: set one in its settings.")
        return self._transactions

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the messages that are not settled yet, as `buffer_bytes` counts them."""
        return self._budget.used - self._credit - sum([filling.room for filling in self._fillings.values()])

    # -- taking messages

    async def send(
        self,
        topic: str,
        value: bytes | None,
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
        # No parameter is keyword-only: Python looks up the default of each such one, which is a fifth of a call's cost.
        if key is None and partition is None and not headers:
            filling = self._fillings.get(topic)
            if filling is not None:
                delivery = filling.add(value, timestamp)
                if delivery is not None:
                    return delivery
        size = message_size(key, value, headers)
        self._require_size(size)
        free = key is None and partition is None
        batch = await self._batch(topic, key, partition, size)
        wall = int(self._wall() * 1000) if timestamp is None else timestamp
        delivery = batch.add(key, value, wall, headers, size)
        self._added(topic, batch, free=free)
        return delivery

    async def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
        taken: Callable[[BatchRange], object] | None = None,
    ) -> Deliveries:
        """Take messages in order, all with the same key, timestamp and headers; returns when there was room for all.

        The same as `send` for each, at a fraction of its cost. Messages without a key fill a batch before they go to
        another partition. `taken` is called for each part as soon as it is in a batch: after a cancellation or an error
        other than MessageSizeTooLargeError, those parts are sent, and the rest is not. Raises as `send`, and TypeError
        for `values` that are one value.
        """
        if isinstance(values, (str, bytes, bytearray, memoryview)):
            raise TypeError("values is a list of messages: put a single one into brackets")
        rows = list(values)  # the caller may change its list while we wait for room
        ranges: list[BatchRange] = []
        beside = message_size(key, None, headers)
        sizes = sizes_of(rows, beside)
        left = sizes.total
        if left > self._largest:
            self._require_size(sizes.largest)
        free = key is None and partition is None
        alone = free and self.settings.keyless == "round_robin"
        start, count = 0, len(rows)
        while start < count:
            size = beside + len(rows[start] or b"")
            batch = await self._batch(topic, key, partition, size)
            stop = start + 1
            if not alone:
                room = min(batch.limit - batch.size, left) - size
                if room > self._credit:
                    self._credit += self._held.grow(1, room - self._credit)
                stop, more = sizes.fitting(stop, min(room, self._credit))
                self._credit -= more
                size += more
            wall = int(self._wall() * 1000) if timestamp is None else timestamp
            ranges.append(batch.extend(key, rows[start:stop], wall, headers, size))
            self._added(topic, batch, free=free and stop == count)
            if taken is not None:
                taken(ranges[-1])
            start, left = stop, left - size
        return Deliveries(ranges)

    def _require_size(self, size: int) -> None:
        if size > self._largest:
            raise MessageSizeTooLargeError(
                f"a message of {size} bytes exceeds the limit of a request or of buffer_bytes."
            )

    async def _batch(self, topic: str, key: bytes | None, partition: int | None, size: int) -> ProducerBatch:
        """An open batch with `size` bytes taken from the budget for a message, which has to be added at once."""
        route = self._routes.get(topic)
        if route is None or route.metadata is not self._client.metadata or not self._open:
            route = await self._route(topic)
        queue = route.queue(key, partition)
        batch = queue.open
        if batch is not None and batch.leased:
            self._recall(topic)
        if batch is None and self._sender.idle and self._take(size):  # a message that is sent alone
            return self._new_batch(queue)
        if batch is None or batch.size + size > batch.limit or not self._take(size):
            batch = await self._room(route, queue, size, free=key is None and partition is None)
        return batch

    def _added(self, topic: str, batch: ProducerBatch, *, free: bool) -> None:
        """Messages were added to `batch`; `free`: they might have gone to any partition."""
        if batch.size >= batch.limit:
            self._seal(self._sender.queue(batch.partition))
        elif free and self.settings.keyless == "sticky":
            self._lease(topic, batch)

    async def _route(self, topic: str) -> Route:
        """The route of the topic by the current metadata. Raises ProducerClosedError, BrokerError."""
        self._require_open()
        route = self._routes.get(topic)
        if route is None or route.metadata is not self._client.metadata:
            count = await self.partition_count(topic)
            route = self._routes[topic] = Route(
                topic,
                count,
                self._client.metadata,
                lambda number: self._sender.queue(TopicPartition.numbered(topic, number)),
                self._rng,
                in_turns=self.settings.keyless == "round_robin",
            )
        return route

    async def _room(self, route: Route, queue: PartitionQueue, size: int, *, free: bool) -> ProducerBatch:
        """An open batch with `size` bytes reserved for a message, which has to be added at once.

        It is one of `queue`, or, for a message that is `free` to go anywhere, of the one that `route` says then.
        """
        if not self._sender.idle:
            await asyncio.sleep(0)
        reservation = None
        try:
            while True:
                self._require_open()
                if free:
                    queue = route.keyless(queue)
                batch = queue.open
                if batch is not None and batch.leased:
                    self._recall(route.topic)
                if batch is not None and batch.size + size > batch.limit:
                    self._seal(queue)
                elif reservation is not None:
                    self._held.resize(self._held.amount + size)
                    break
                elif self._take(size):
                    break
                else:
                    self._held.resize(self._held.amount - self._credit)
                    self._credit = 0
                    reservation = await self._budget.reserve(size)
        finally:
            if reservation is not None:
                reservation.release()
        return batch or self._new_batch(queue)

    def _take(self, size: int) -> bool:
        """Take `size` bytes from the budget, if they are free and no caller waits for some. Return whether it did."""
        if size > self._credit and not self._grow(size - self._credit):
            self._recall_all()
            if size > self._credit and not self._grow(size - self._credit):
                return False
        self._credit -= size
        return True

    def _grow(self, missing: int) -> bool:
        """Raise the credit by `missing` bytes, or more; return False if they are not free."""
        grown = self._held.grow(missing, missing + self._in_advance())
        self._credit += grown
        return grown > 0

    def _in_advance(self) -> int:
        """Bytes that may be taken from the budget in advance now."""
        return min(_CREDIT, self._advance // (1 + len(self._fillings)))

    # -- memory that messages of one batch may use without a further check

    def _lease(self, topic: str, batch: ProducerBatch) -> None:
        """Messages without a key may use the credit; `batch.size` includes that part of it until it is recalled."""
        self._recall(topic)
        most = min(self._largest, batch.limit) - 1 - batch.size
        if most > self._credit:  # what the last batch left would do for a few messages only
            self._credit += self._held.grow(1, min(most - self._credit, self._in_advance()))
        room = min(self._credit, most)
        if room > 0:
            self._fillings[topic] = filling = new_filling(batch, self._wall)
            filling.room = room
            self._credit -= room
            batch.size += room
            batch.leased = True

    def _recall(self, topic: str) -> None:
        """Let the batch of `topic` that is filled have the size of its messages, and no further one without a check."""
        filling = self._fillings.pop(topic, None)
        if filling is not None:
            left, filling.room = filling.room, 0
            batch = filling.batch
            batch.leased = False
            batch.size -= left
            self._credit += left

    def _recall_all(self) -> None:
        for topic in list(self._fillings):
            self._recall(topic)

    def _require_open(self) -> None:
        if not self._open:
            if self._transactions is not None:
                raise ProducerClosedError(
                    "no transaction of the producer is open: send within `async with producer.transaction()`."
                )
            raise ProducerClosedError("the producer is not open.")

    async def partition_count(self, topic: str, *, timeout: float | None = None) -> int:
        """The number of partitions of a topic. Raises BrokerError while it is not known.

        `timeout`: seconds to wait for a topic that is being created; by default those of the client.
        """
        known = self._client.metadata.topics.get(topic)
        if known is not None and known.partitions:
            return len(known.partitions)

        async def count() -> int:
            metadata = await self._client.topics([topic], create=self.settings.create_topics)
            found = metadata.topics.get(topic)
            if found is None or not found.partitions:
                raise self._client.leaderless(topic, 0)
            return len(found.partitions)

        return await self._client.retrying(f"partitions of {topic}", count, timeout=timeout)

    def _new_batch(self, queue: PartitionQueue) -> ProducerBatch:
        due = self._clock.monotonic() + self.settings.linger
        batch = queue.open = ProducerBatch(queue.partition, due, asyncio.get_running_loop().create_future())
        batch.limit = min(self._batch_bytes, queue.limit)
        self._sender.opened(queue, batch)
        return batch

    def _seal(self, queue: PartitionQueue) -> None:
        queue.seal()
        self._unstick(queue)
        self._sender.look_at(queue)

    def _unstick(self, queue: PartitionQueue) -> None:
        self._recall(queue.partition.topic)
        self._routes[queue.partition.topic].unstick(queue)

    def _settle(self, batch: ProducerBatch) -> None:
        self._held.resize(self._held.amount - batch.size)

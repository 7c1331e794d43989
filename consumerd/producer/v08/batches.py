"""Messages of one partition on their way: the batch that is filled, and those that wait to be sent.

Strategy: one batch is open at a time; it is sealed when it is full or has waited long enough. Sealed ones are sent in
order, one at a time, so that retries never change the order. The outcome of a message is that of its batch: no future
per message.

A batch that a broker finds too large is divided into halves, which are sent in its place and divided again if need be.
The outcome of a message is that of its part then; the batch itself is settled when all of its parts are.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, TypeAlias, overload

from consumerd.base.errors import reason_of
from consumerd.base.native import NativeFilling
from consumerd.base.native import codec as native_codec
from consumerd.base.partition import TopicPartition
from consumerd.wire.errors import EncodeError
from consumerd.wire.v08.records import Headers, RecordCodec, encode_message_set, encode_record_batch
from consumerd.wire.v08.records.encode import Surroundings

#: Bytes of a message beside key and value, at most: a header of magic 1, or of a record with its varints.
OVERHEAD = 36


class Delivered(NamedTuple):
    """The place of a message. `offset` is None where it is unknown (acks 0, or a batch that the broker had already).

    `timestamp`: the broker's, in milliseconds, where the topic takes the time of appending, else -1.
    """

    partition: TopicPartition
    offset: int | None
    timestamp: int


class Delivery(NamedTuple):
    """The future outcome of a message: `await` it for a `Delivered`, or the error. Need not be awaited."""

    batch: ProducerBatch
    #: The number of the message in the batch.
    number: int

    @property
    def done(self) -> bool:
        """Whether it is known."""
        return self.batch.outcome.done()

    def __await__(self) -> Generator[object, None, Delivered]:
        return delivered(self.batch, self.number)


def delivered(batch: ProducerBatch, number: int) -> Generator[object, None, Delivered]:
    """Wait for the outcome of a message. Raises its error."""
    yield from batch.wait()
    part = batch if batch.parts is None else batch.parts_of(number, 1)[0]
    base, timestamp = part.outcome.result()
    return Delivered(batch.partition, None if base is None else base + number - part.first, timestamp)


#: As `Delivery`, from a tuple of its fields; saves a call for each message.
new_delivery = partial(tuple.__new__, Delivery)


class BatchRange(NamedTuple):
    """Messages of a batch that stand side by side: the number of the first, and how many."""

    batch: ProducerBatch
    first: int
    messages: int


class Deliveries(Sequence[Delivery]):
    """The future outcomes of messages that one call sent, in their order: a `Delivery` for each, made at access.

    `await` it for a list of `Delivered`, or the error of the first message that failed. Need not be awaited.
    """

    __slots__ = ("ranges",)

    def __init__(self, ranges: Sequence[BatchRange]) -> None:
        #: The batches that the messages are in; a batch may have messages of other callers, too.
        self.ranges = ranges

    @property
    def done(self) -> bool:
        """Whether all are known."""
        return all(each.batch.outcome.done() for each in self.ranges)

    async def confirm(self) -> None:
        """Wait until all messages are confirmed. Costs a little for each batch and nothing for a message.

        Raises the error of the first message that failed; others may have arrived.
        """
        for batch, first, count in self.ranges:
            await batch
            for part in (batch,) if batch.parts is None else batch.parts_of(first, count):
                part.outcome.result()

    def __len__(self) -> int:
        return sum(count for _, _, count in self.ranges)

    @overload
    def __getitem__(self, place: int) -> Delivery: ...
    @overload
    def __getitem__(self, place: slice) -> list[Delivery]: ...
    def __getitem__(self, place: int | slice) -> Delivery | list[Delivery]:
        if isinstance(place, slice):
            return list(self)[place]
        left = place + len(self) if place < 0 else place
        if left >= 0:
            for batch, first, count in self.ranges:
                if left < count:
                    return new_delivery((batch, first + left))
                left -= count
        raise IndexError(f"delivery {place} of {len(self)}")

    def __iter__(self) -> Iterator[Delivery]:
        for batch, first, count in self.ranges:
            for number in range(first, first + count):
                yield new_delivery((batch, number))

    def __await__(self) -> Generator[object, None, list[Delivered]]:
        found: list[Delivered] = []
        for batch, first, count in self.ranges:
            yield from batch.wait()
            for part in batch.parts_of(first, count):
                base, timestamp = part.outcome.result()
                end = first + count if part is batch else min(first + count, part.first + len(part.values))
                for number in range(max(first, part.first), end):
                    offset = None if base is None else base + number - part.first
                    found.append(Delivered(batch.partition, offset, timestamp))
        return found


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Messages that go together. `outcome`: (offset of the first or None, timestamp of appending or -1)."""

    partition: TopicPartition
    due: float
    outcome: asyncio.Future[tuple[int | None, int]]
    #: Of those that wait for the outcome; one that is cancelled cancels its own future alone.
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    #: Up to the last message that has one; None while there is none.
    keys: list[bytes | None] | None = None
    timestamps: list[int] = field(default_factory=list)
    headers: dict[int, Headers] = field(default_factory=dict)
    #: Of its messages, and of the memory that is leased to its filling.
    size: int = 0
    leased: bool = False
    #: When it was first sent; None before.
    first_sent: float | None = None
    #: A broker may have it.
    sent: bool = False
    #: With which sequence number, by which producer; -1 where brokers do not count.
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    #: It is part of a transaction.
    transactional: bool = False
    #: Bytes from which on it takes no more messages, if these are fewer than the producer's `batch_bytes`.
    limit: int = sys.maxsize
    #: In their order, what it was divided into; None as long as it is whole.
    parts: list[ProducerBatch] | None = None
    #: Of a part: the batch that was divided, and the number of its first message in that one.
    whole: ProducerBatch | None = None
    first: int = 0

    def add(self, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers, size: int) -> Delivery:
        """One message more, of the `message_size` `size`."""
        number = len(self.values)
        if headers:
            self.headers[number] = headers
        if key is not None:
            keys = self.keys = self.keys or []
            keys += [None] * (number - len(keys))
            keys.append(key)
        self.values.append(value)
        self.timestamps.append(timestamp)
        self.size += size
        return new_delivery((self, number))

    def extend(
        self, key: bytes | None, values: Sequence[bytes | None], timestamp: int, headers: Headers, size: int
    ) -> BatchRange:
        """Several messages more, which have `size` bytes together, all with the same key, timestamp and headers."""
        first, count = len(self.values), len(values)
        if headers:
            self.headers.update(dict.fromkeys(range(first, first + count), headers))
        if key is not None:
            keys = self.keys = self.keys or []
            keys += [None] * (first - len(keys)) + [key] * count
        self.values += values
        self.timestamps += [timestamp] * count
        self.size += size
        return BatchRange(self, first, count)

    def encode(self, magic: int, codec: RecordCodec, around: Surroundings | None = None) -> bytes:
        """The record set, in the request `around` it if there is one (magic 2).

        Raises EncodeError for fields that the format cannot hold, or that are of another type than they must be.
        """
        if self.keys is not None:
            self.keys += [None] * (len(self.values) - len(self.keys))
        try:
            if magic == 2:
                return encode_record_batch(
                    self.values, codec=codec, keys=self.keys, timestamps=self.timestamps, headers=self.headers,
                    producer_id=self.producer_id, producer_epoch=self.producer_epoch, base_sequence=self.sequence,
                    transactional=self.transactional, around=around,
                )  # fmt: skip
            if self.headers:
                raise EncodeError("brokers before 0.11 do not support headers: remove them, or use newer brokers")
            return encode_message_set(self.values, magic=magic, codec=codec, keys=self.keys, timestamps=self.timestamps)
        except EncodeError:
            raise
        except Exception as error:  # `send` does not look at each type, and others' messages are not to fail with this
            raise EncodeError(f"a key, value, header or timestamp is invalid ({reason_of(error)})") from error

    def divide(self) -> tuple[ProducerBatch, ProducerBatch]:
        """The halves that are sent in its place. They are not numbered."""
        middle, whole = len(self.values) // 2, self.whole or self
        halves = self._part(0, middle), self._part(middle, len(self.values))
        halves[1].size = self.size - halves[0].size  # the budget has them both
        if whole.parts is None:
            whole.parts = [self]
        place = whole.parts.index(self)
        whole.parts[place : place + 1] = halves
        return halves

    def _part(self, first: int, end: int) -> ProducerBatch:
        part = ProducerBatch(self.partition, self.due, self.outcome.get_loop().create_future())
        part.values, part.timestamps = self.values[first:end], self.timestamps[first:end]
        part.keys = None if self.keys is None else self.keys[first:end] or None
        part.headers = {number - first: had for number, had in self.headers.items() if first <= number < end}
        part.size = sum(
            message_size(part.keys[number] if part.keys and number < len(part.keys) else None, value, headers)
            for number, value in enumerate(part.values)
            for headers in (part.headers.get(number, ()),)
        )
        part.first_sent, part.sent = self.first_sent, self.sent
        part.whole, part.first = self.whole or self, self.first + first
        return part

    def parts_of(self, first: int, count: int) -> list[ProducerBatch]:
        """What has the outcomes of `count` messages from number `first` on: parts, or the batch itself."""
        if self.parts is None:
            return [self]
        end = first + count
        return [part for part in self.parts if part.first < end and first < part.first + len(part.values)]

    @property
    def failed(self) -> int:
        """The number of messages that failed, once it is settled."""
        parts = [self] if self.parts is None else self.parts
        return sum(len(part.values) for part in parts if part.outcome.exception() is not None)

    def wait(self) -> Generator[object, None, None]:
        """Wait until it is settled. (`asyncio.shield` would cost a turn of the loop more.)"""
        if not self.outcome.done():
            waiter: asyncio.Future[None] = self.outcome.get_loop().create_future()
            self.waiters.append(waiter)
            yield from waiter

    __await__ = wait

    def succeed(self, base: int | None, timestamp: int) -> None:
        """The broker has it."""
        if not self.outcome.done():
            self.outcome.set_result((base, timestamp))
            self._ended()

    def fail(self, error: Exception) -> None:
        """It will not be sent (again)."""
        if not self.outcome.done():
            self.outcome.set_exception(error)
            self.outcome.exception()  # retrieved: a caller need not wait for a message
            self._ended()

    def _ended(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self.whole is not None:
            self.whole.part_ended()

    def part_ended(self) -> None:
        """Settle what was divided, with the first error of a part, once all parts are settled."""
        parts = self.parts or []
        if not parts[-1].outcome.done() or not all(part.outcome.done() for part in parts):
            return
        error = next((error for part in parts if (error := part.outcome.exception()) is not None), None)
        if isinstance(error, Exception):
            self.fail(error)
        else:
            self.succeed(*parts[0].outcome.result())


def message_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Bytes that a message adds to its batch, at most and before compression."""
    size = OVERHEAD + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += 10 + (len(name) if name.isascii() else 4 * len(name)) + len(content or b"")
    return size


class PartitionQueue:
    """The batches of one partition. `busy`: its first sealed batch is being sent."""

    __slots__ = (
        "busy", "limit", "not_before", "open", "partition", "sealed", "sequence", "timer", "trouble", "wakes_at",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.open: ProducerBatch | None = None
        self.sealed: deque[ProducerBatch] = deque()
        self.busy = False
        #: Failures in a row, and when to try again.
        self.trouble = 0
        self.not_before = 0.0
        #: When the sender looks at it next without another reason.
        self.timer: asyncio.TimerHandle | None = None
        self.wakes_at = math.inf
        #: The number of the next message, where brokers count.
        self.sequence = 0
        #: Bytes of a batch, since the broker refused a larger one.
        self.limit = sys.maxsize

    def seal(self) -> None:
        """The open batch takes no more."""
        if self.open is not None:
            self.sealed.append(self.open)
            self.open = None

    def divide(self) -> tuple[ProducerBatch, ProducerBatch]:
        """Have the halves of the first batch sent, which has several messages and which no broker took.

        Later batches are smaller, by half at most of the largest message: one alone is not divided.
        """
        batch = self.sealed.popleft()
        if batch.sequence >= 0:
            self.sequence = batch.sequence
        self.limit = min(self.limit, max(1, batch.size // 2))
        halves = batch.divide()
        self.sealed.extendleft(reversed(halves))
        return halves

    def sleep(self) -> None:
        """Cancel the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.wakes_at = math.inf

    def ready_at(self, now: float, *, hurry: bool) -> float | None:
        """Return the time when the first batch may be sent, by this partition alone; None if none, or it is busy.

        `hurry`: open batches do not linger.
        """
        if self.busy:
            return None
        if self.sealed or (hurry and self.open is not None):
            return max(self.not_before, now)
        return None if self.open is None else max(self.not_before, self.open.due)


# The common case of sending: a message without a key, for an open batch that has room for it.
#
# Strategy: a filling has a number of bytes that messages may use without a further check, and adds such messages to the
# lists of its batch, which others use, too. The native one does the same and makes its deliveries natively. Everything
# else (nulls, no room) is left to the producer.

_MILLISECOND: Final = 1_000_000


class PureFilling:
    """Adds messages to `batch` as long as they have at most `room` bytes. `wall`: seconds since the Unix epoch."""

    __slots__ = ("_nanoseconds", "_times", "_values", "batch", "room")

    def __init__(self, batch: ProducerBatch, wall: Callable[[], float]) -> None:
        self.batch = batch
        self.room = 0
        self._values = batch.values
        self._times = batch.timestamps
        # An int of a float costs twice as much as this division.
        self._nanoseconds = time.time_ns if wall is time.time else lambda: int(wall() * 1000) * _MILLISECOND

    def add(self, value: bytes | None, timestamp: int | None, /) -> Delivery | None:
        """Add a message, of now if `timestamp` is None. Return None, and add nothing, if the producer has to."""
        if value is None:
            return None
        size = OVERHEAD + len(value)
        if size > self.room:
            return None
        self._times.append(self._nanoseconds() // _MILLISECOND if timestamp is None else timestamp)
        self.room -= size
        values = self._values
        values.append(value)
        return new_delivery((self.batch, len(values) - 1))


Filling: TypeAlias = PureFilling | NativeFilling


def new_filling(batch: ProducerBatch, wall: Callable[[], float]) -> Filling:
    """A filling without room. The native one does not call `wall` if it is the system's clock."""
    native = native_codec()
    if native is None:
        return PureFilling(batch, wall)
    clock = None if wall is time.time else wall
    return native.Filling(batch, batch.values, batch.timestamps, delivered, clock, OVERHEAD)

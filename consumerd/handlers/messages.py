"""Messages as a handler sees them: batches, single messages, and what tells one from every other.

Strategy: the batch is the unit, because delivery costs the same for one message as for ten thousand. `Batch` is a
view of decoded messages: identities, and payloads where the decoder left them in its buffer, are made when asked for.
A handler that works through a batch in order may `mark` how far it came; retries, drains and commits then continue
from there.

A message's identity is (topic, broker, partition, offset of its outermost message, index); see golden notes, 2. Since
0.8 every message has an offset of its own: broker is NO_BROKER there, and index 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import length_hint
from typing import Any, Final, NamedTuple, TypeVar, cast, overload

from consumerd.base.native import NativePayloads
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.handlers.contents import Content, Source, sources_of
from consumerd.wire.batch import PIECE

_Made = TypeVar("_Made")
#: Messages that the native codec makes at once.
_LISTED: Final = 64


class Identity(NamedTuple):
    """The identity of a message in the cluster: equal payloads may be different messages."""

    topic: str
    broker: int
    partition: int
    offset: int
    index: int  # type: ignore[assignment]  # shadows tuple.index: the word is the protocol's


class Message(NamedTuple):
    """One message. `offset` is that of its outermost message, `index` counts the leaves of a compressed one from 0.

    `next_offset` is the position to commit once this message and all before it are handled: of the leaves of a
    compressed message only the last moves it.
    """

    partition: TopicPartition
    offset: int
    index: int  # type: ignore[assignment]
    next_offset: int
    payload: bytes

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.partition.topic

    @property
    def broker(self) -> int:
        """The id of the broker that holds the partition."""
        return self.partition.broker

    @property
    def identity(self) -> Identity:
        """Unique in the cluster, and the same at every delivery of this message: the key to deduplicate by."""
        return Identity(*self.partition, self.offset, self.index)

    @property
    def key(self) -> bytes | None:
        """None: 0.7 has no keys."""
        return None

    @property
    def timestamp(self) -> int:
        """-1: 0.7 has no timestamps."""
        return -1

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Empty: 0.7 has no headers."""
        return ()

    @property
    def value(self) -> Any:
        """The result of the decoder for the payload; without a decoder the payload itself."""
        return self.payload


class KeyedMessage(NamedTuple):
    """One message of a broker of 0.8 or later. As `Message`, and besides:

    `payload` may be null (None): a tombstone, which deletes its key in a compacted topic. `timestamp` in milliseconds,
    -1 where there is none; `timestamp_type` names its clock: 0 the producer's, 1 the broker's, -1 none.
    """

    partition: TopicPartition
    offset: int
    index: int  # type: ignore[assignment]
    next_offset: int
    payload: bytes | None
    key: bytes | None
    timestamp: int
    timestamp_type: int
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.partition.topic

    @property
    def broker(self) -> int:
        """NO_BROKER: since 0.8 partitions belong to no broker."""
        return self.partition.broker

    @property
    def identity(self) -> Identity:
        """Unique in the cluster, and the same at every delivery of this message: the key to deduplicate by."""
        return Identity(*self.partition, self.offset, self.index)

    @property
    def value(self) -> Any:
        """The result of the decoder for the payload, None for a tombstone; without a decoder the payload itself."""
        return self.payload


class _DecodedMessage(Message):
    """A message with its decoded value, which is not one of its fields: it compares and unpacks as any other."""

    value: Any = None


class _DecodedKeyedMessage(KeyedMessage):
    """The same, of a broker of 0.8 or later."""

    value: Any = None


#: As `Message` and `KeyedMessage`, from a tuple of their fields; saves a call for each message.
_message = functools.partial(tuple.__new__, Message)
_keyed_message = functools.partial(tuple.__new__, KeyedMessage)
_decoded_message = functools.partial(tuple.__new__, _DecodedMessage)
_decoded_keyed_message = functools.partial(tuple.__new__, _DecodedKeyedMessage)


def payload_size(message: Message | KeyedMessage) -> int:
    """The bytes of a message's payload; 0 of a tombstone."""
    return len(message.payload or b"")


_NOTHING: Final[Iterator[object]] = iter(())


class BatchBuffer(NamedTuple):
    """The payloads from number `first` on, of which number 0 stands at or after `offset` in the log."""

    payloads: NativePayloads
    first: int
    offset: int


def _no_lists(*_: object) -> None:
    """The `message_lists` of contents that the native codec has no part in."""


class Batch(Sequence[bytes]):
    """Consecutive messages of one partition: a sequence of payloads that knows where they come from.

    `partition` names topic, broker and partition. Of brokers of 0.8 and later a payload may be None: a tombstone. The
    messages fill the range `start_offset` to `next_offset` of the
    partition's log, and always whole outermost messages of it, except after `rest` and `part`.
    """

    __slots__ = ("_content", "_cut", "_end", "_first", "_handled", "_length", "_taken", "counted", "partition")

    def __init__(
        self, partition: TopicPartition, content: Content, *, first: int = 0, length: int | None = None
    ) -> None:
        self.partition = partition
        self._content = content
        self._first = first
        whole = len(content) - first
        self._length = whole if length is None else length
        #: There are messages behind the last one, which are another batch's.
        self._cut = self._length < whole
        self._handled = 0
        #: Whether the handler counts: if so, it goes in order, and a failure is that of the message at `handled`.
        self.counted = False
        #: As `mark_taken`.
        self._taken: Iterator[object] = _NOTHING
        self._end = 0

    @property
    def keyed(self) -> bool:
        """As `Content.keyed`."""
        return self._content.keyed

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.partition.topic

    @property
    def broker(self) -> int:
        """The id of the broker that holds the partition."""
        return self.partition.broker

    @property
    def payloads(self) -> list[bytes]:
        """The payloads as a list. It may be the batch's own: do not change it. What needs some of them, or one after
        the other, makes fewer objects with `batch[i]` and iteration.

        A large compressed message is unpacked as a whole for this; who iterates over the batch gets it in pieces.
        """
        payloads = self._content.payloads
        if self._first or self._cut or not isinstance(payloads, list):
            payloads = payloads[self._first : self._first + self._length]
        return cast("list[bytes]", payloads)  # typed for those who have no tombstones: nearly all

    @property
    def decoded(self) -> bool:
        """Whether a decoder has made the values."""
        return getattr(self._content, "values", None) is not None

    @property
    def _values(self) -> Sequence[Any] | None:
        """The decoded values; None without a decoder."""
        values: Sequence[Any] | None = getattr(self._content, "values", None)
        if values is None or not (self._first or self._cut):
            return values
        return values[self._first : self._first + self._length]

    @property
    def values(self) -> Sequence[Any]:
        """The messages' values, one for each, as the decoder made them (None of a tombstone); the batch itself without
        a decoder. Do not change the sequence: it may be the batch's own.
        """
        values = self._values
        return self if values is None else values

    @property
    def keys(self) -> list[bytes | None] | None:
        """The messages' keys, one for each, or None where the protocol has none (0.7)."""
        keys: list[bytes | None] | None = getattr(self._content, "keys", None)
        return keys[self._first : self._first + self._length] if keys and (self._first or self._cut) else keys

    @property
    def headers(self) -> Mapping[int, tuple[tuple[str, bytes | None], ...]]:
        """The headers of those messages that have any, by their number in the batch. Empty in 0.7."""
        headers: dict[int, tuple[tuple[str, bytes | None], ...]] | None = getattr(self._content, "headers", None)
        if not headers:
            return {}
        if not self._first and not self._cut:
            return headers
        end = self._first + self._length
        return {at - self._first: each for at, each in headers.items() if self._first <= at < end}

    @property
    def log(self) -> LogId:
        """The log that the messages were read from, as far as it is known."""
        return getattr(self._content, "log", UNKNOWN_LOG)

    @property
    def topic_id(self) -> str | None:
        """The id of the topic as Kafka's tools print it: a topic that is created again has another one.

        None of brokers before 2.8.
        """
        return self.log.topic_id_text

    @property
    def leader_epoch(self) -> int | None:
        """The epoch of the leader that stored the messages, the same for all of them. None of brokers before 0.11."""
        return self.log.leader_epoch

    @property
    def start_offset(self) -> int:
        """The offset at which the range begins; inside a compressed message (after `rest`), that of the message."""
        return self._content.prefix(self._first) if self._first else self._content.start_offset

    @property
    def next_offset(self) -> int:
        """The position to commit when all messages are handled."""
        return self._content.prefix(self._first + self._length) if self._cut else self._content.next_offset

    @property
    def contiguous(self) -> bool:
        """Whether these are all messages of the range: not in the lanes of `handler.order = "key"`, whose ranges
        overlap, and not for replayed dead letters.
        """
        return getattr(self._content, "contiguous", True)

    @property
    def handled(self) -> int:
        """The number of messages from the front that are handled, as far as the handler has marked (`mark`)."""
        # The message that was taken last is not handled yet.
        return max(self._handled, self._end - length_hint(self._taken) - 1)

    def timestamp(self, number: int) -> int | None:
        """The timestamp of message `number`, in milliseconds; None where it has none. Makes no message."""
        content, at = self._content, self._first + number
        timestamp_at: Callable[[int], int | None] | None = getattr(content, "timestamp_at", None)
        if timestamp_at is None:
            content, at, _ = next(sources_of(content, at, at + 1))
            timestamp_at = getattr(content, "timestamp_at", None)
        return None if timestamp_at is None else timestamp_at(at)

    def mark(self, handled: int) -> None:
        """Tell that the first `handled` messages are handled and need not be delivered again."""
        if not self._handled <= handled <= self._length:
            raise ValueError(f"cannot mark {handled} of {self._length} messages after {self._handled}")
        self._handled = handled
        self.counted = True

    def mark_all(self) -> None:
        """As `mark`, of all messages."""
        if not self.counted or self._handled < self._length:
            self.mark(self._length)

    def mark_taken(self, messages: Iterator[object], end: int) -> None:
        """Count each of `messages`, of which the last one is number `end` - 1, as handled when the next one is taken.

        The last one is left for `mark`, a call of which for each message would cost as much as the message.
        """
        self._taken, self._end = messages, end

    def prefix(self, count: int) -> int:
        """The position to commit after the first `count` messages."""
        return self.next_offset if count >= self._length else self._content.prefix(self._first + count)

    def rest(self, count: int) -> Batch:
        """The batch without its first `count` messages, for delivering the remainder. Shares the payloads."""
        return self.part(count, self._length - count) if count else self

    def part(self, first: int, length: int) -> Batch:
        """The batch of `length` messages from number `first` on. Shares the payloads.

        Where it begins and ends should be boundaries of outermost messages: see `consumerd.handlers.batching`.
        """
        return Batch(self.partition, self._content, first=self._first + first, length=length)

    def made_by(self, make: Callable[..., _Made]) -> _Made:
        """The same messages as a batch of another class, by its constructor. Shares the payloads."""
        return make(self.partition, self._content, first=self._first, length=self._length)

    @property
    def buffer(self) -> BatchBuffer | None:
        """The buffer of the payloads, for sinks that need no object for each; None where they are objects, and for a
        part of a batch that ends before the buffer does.
        """
        payloads: NativePayloads | None = getattr(self._content, "buffer", None)
        return None if payloads is None or self._cut else BatchBuffer(payloads, self._first, self._content.start_offset)

    def sources(self, first: int = 0, stop: int | None = None) -> Iterator[Source]:
        """The contents that hold the messages from number `first` to `stop` (the end of the batch), in order."""
        end = self._length if stop is None else stop
        return sources_of(self._content, self._first + first, self._first + end)

    def to_arrow(self, *, large: bool = False) -> Any:
        """The messages as a `pyarrow.RecordBatch`, with the columns of the Parquet files of the handler `parquet`.

        With the native codec no object is created for any message. `payload` and `key` are of the type `binary`, whose
        32-bit offsets hold 2 GiB; of the type `large_binary` if `large`. Decoded values are not a column. A timestamp
        that is negative, or does not fit into 64 bits, is null. One after the year 9999 is null as well, and its number
        is in `raw_timestamp`, which is null otherwise.

        Needs the extra `archive`: raises `consumerd.storage.archives.errors.MissingExtraError` without it. Raises
        OverflowError where the payloads, keys or headers of the batch are too large for one column.

        Buffers are passed to `pyarrow.Array.from_buffers` as `bytes` objects. Arrow's C data interface would need
        memory addresses, and with them unsafe code in the native codec, which has none.
        """
        from consumerd.handlers.arrow_columns import record_batch  # noqa: PLC0415 - the extra `archive`

        return record_batch(self.partition, self.sources(), len(self), large=large)

    def messages(self) -> Iterator[Message]:
        """The messages with their identities, made as they are consumed; of brokers of 0.8 and later `KeyedMessage`s,
        which have all that a `Message` has.
        """
        lists = self._message_lists(_LISTED)
        if lists is not None:
            return chain.from_iterable(lists)
        values, keyed = self._values, self._content.keyed
        if values is None:
            plain: Callable[[tuple[Any, ...]], Any] = _keyed_message if keyed else _message
            return self.messages_as(plain, self.partition)
        make: Callable[[tuple[Any, ...]], Any] = _decoded_keyed_message if keyed else _decoded_message
        return self._decoded(self.messages_as(make, self.partition), values)

    def message_pieces(self, most: int, made: int) -> Iterator[Sequence[Message]]:
        """`messages`, at most `most` at a time, where the native codec has them; else at most `made`."""
        whole, first = self._content, self._first
        make: Callable[..., Iterator[list[Message]] | None] | None = getattr(whole, "message_lists", None)
        if make is not None and getattr(whole, "values", None) is None:  # as `_message_lists`: a call less for each
            kind = KeyedMessage if whole.keyed else Message
            lists = make(kind, self.partition, first, first + self._length, most)
        else:
            lists = self._message_lists(most)
        if lists is not None:
            return lists
        messages = self.messages()
        return iter(lambda: tuple(islice(messages, made)), ())

    def _message_lists(self, most: int) -> Iterator[list[Message]] | None:
        """`message_pieces` as the native codec makes them; None where it does not."""
        whole = self._content
        if getattr(whole, "values", None) is not None:  # decoded
            return None
        kind, first, stop = KeyedMessage if whole.keyed else Message, self._first, self._first + self._length
        make: Callable[..., Iterator[list[Message]] | None] | None = getattr(whole, "message_lists", None)
        if make is not None:  # nearly always: it is its own source
            return make(kind, self.partition, first, stop, most)
        found = []
        for content, begin, end in sources_of(whole, first, stop):
            lists = getattr(content, "message_lists", _no_lists)(kind, self.partition, begin, end, most)
            if lists is None:
                return None
            found.append(lists)
        return chain.from_iterable(found)

    @staticmethod
    def _decoded(messages: Iterator[Any], values: Sequence[Any]) -> Iterator[Any]:
        for message, value in zip(messages, values, strict=True):
            message.value = value
            yield message

    def messages_as(self, make: Callable[[tuple[Any, ...]], _Made], *before: object, first: int = 0) -> Iterator[_Made]:
        """As `Content.messages_as`: a batch can be what another batch is made of."""
        messages = self._content.messages_as(make, *before, first=self._first + first)
        return islice(messages, self._length - first) if self._cut else messages

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, position: int) -> bytes: ...
    @overload
    def __getitem__(self, position: slice) -> list[bytes]: ...
    def __getitem__(self, position: int | slice) -> bytes | list[bytes]:
        if isinstance(position, slice):
            start, stop, step = position.indices(self._length)
            if step != 1:
                return self.payloads[position]
            return cast("list[bytes]", list(self._content[self._first + start : self._first + stop]))
        if not -self._length <= position < self._length:
            raise IndexError("message index out of range")
        return cast("bytes", self._content[self._first + position % self._length])

    def __iter__(self) -> Iterator[bytes]:
        payloads = cast("Sequence[bytes]", self._content)
        if not self._first and not self._cut:
            return iter(payloads)
        # Not `islice`, which would skip all handled messages one by one: a retry message by message asks often.
        end = self._first + self._length
        starts = range(self._first, end, PIECE)
        return chain.from_iterable(payloads[start : min(start + PIECE, end)] for start in starts)

    def __repr__(self) -> str:
        return f"<Batch {self.partition} {self.start_offset}-{self.next_offset}: {self._length} messages>"
